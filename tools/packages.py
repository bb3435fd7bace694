"""Build dist/*.deb and dist/*.rpm from the wheel in dist/, with dpkg-deb and rpmbuild.

Both have the program in /usr/share/gpuledger, the units, the manual page and shell completion. The distribution
provides Python and its packages. The units are not enabled, because every client may read names of users and pods.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.utils import formatdate
from pathlib import Path

from gpuledger import __version__

ROOT = Path(__file__).parents[1]
SUMMARY = "Prometheus exporter for NVIDIA GPU use by process, container and pod"
DESCRIPTION = (
    "gpuledger tells whose process, container, pod or batch job uses an NVIDIA",
    "GPU: how much memory, how busy, how many joules. It needs only the driver.",
)
PACKAGER = os.environ.get("PACKAGER", "The gpuledger authors <gpuledger@example.org>")
"""Name and mail address of whoever distributes the packages."""
PROGRAM = """#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/usr/share/gpuledger")

from gpuledger.{module} import main

sys.exit(main())
"""
PROGRAMS = {"gpuledger": "cli", "kubectl-gpu": "cli.kubectl"}
"""Module by program."""
ZSH = {"deb": "usr/share/zsh/vendor-completions", "rpm": "usr/share/zsh/site-functions"}
CONTROL = f"""Package: gpuledger
Version: {{version}}
Architecture: all
Maintainer: {PACKAGER}
Installed-Size: {{size}}
Depends: python3 (>= 3.10), python3-h2 (>= 4.1), python3-yaml (>= 6)
Recommends: python3-bcrypt
Suggests: python3-textual
Section: admin
Priority: optional
Description: {SUMMARY}
{{description}}
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gpuledger

Files: *
Copyright: {year} The gpuledger authors
License: Apache-2.0
 On Debian systems, the license is in /usr/share/common-licenses/Apache-2.0.
"""
RELOAD = """if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
    {invoke} try-restart gpuledger.service || true
fi
"""
UNITS = "gpuledger.service gpuledger.socket gpuledger-bill.timer"
STOP = f"if [ -d /run/systemd/system ]; then systemctl disable --now {UNITS} || true; fi\n"
INSTALLED = "py3compile -p gpuledger /usr/share/gpuledger\n" + RELOAD.format(invoke="deb-systemd-invoke")
SCRIPTS = {
    "postinst": f'#!/bin/sh\nset -e\nif [ "$1" = configure ]; then\n{INSTALLED}fi\n',
    "prerm": f'#!/bin/sh\nset -e\nif [ "$1" = remove ]; then\n{STOP}fi\npy3clean -p gpuledger /usr/share/gpuledger\n',
    "postrm": "#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then systemctl --system daemon-reload || true; fi\n",
}
SPEC = f"""Name: gpuledger
Version: {{version}}
Release: 1
Summary: {SUMMARY}
License: Apache-2.0
Packager: {PACKAGER}
Group: System/Monitoring
BuildArch: noarch
AutoReqProv: no
Requires: python3 >= 3.10, python3dist(h2) >= 4.1, python3dist(pyyaml) >= 6
Recommends: python3dist(bcrypt)
%define __os_install_post %{{{{nil}}}}
%define _build_id_links none

%description
{{description}}

%install
cp -a {{tree}}/. %{{{{buildroot}}}}

%posttrans
python3 -m compileall -q /usr/share/gpuledger
{RELOAD.format(invoke="systemctl")}
%preun
if [ "$1" = 0 ]; then
{STOP}fi
find /usr/share/gpuledger -name __pycache__ -exec rm -rf {{{{}}}} +

%files
{{files}}

%changelog
* {{date}} {PACKAGER} - {{version}}-1
- See CHANGELOG.md.
"""


def stage(wheel: Path, tree: Path, kind: str) -> None:
    """The files of a package under `tree`."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        shutil.copytree(Path(folder, "gpuledger"), tree / "usr/share/gpuledger/gpuledger")
    for name, module in PROGRAMS.items():
        program = tree / "usr/bin" / name
        _write(program, PROGRAM.format(module=module))
        program.chmod(0o755)
    for path in sorted((ROOT / "deploy/systemd").iterdir()):
        unit = path.read_text(encoding="utf-8")
        _write(tree / "usr/lib/systemd/system" / path.name, unit.replace("/usr/local/bin/", "/usr/bin/"))
    _compress(tree / "usr/share/man/man1/gpuledger.1.gz", (ROOT / "deploy/man/gpuledger.1").read_text(encoding="utf-8"))
    (tree / "usr/share/man/man1/kubectl-gpu.1.gz").symlink_to("gpuledger.1.gz")
    completion = ROOT / "deploy/completion"
    for name, place in (
        ("gpuledger", "usr/share/bash-completion/completions"),
        ("_gpuledger", ZSH[kind]),
        ("gpuledger.fish", "usr/share/fish/vendor_completions.d"),
    ):
        _write(tree / place / name, (completion / name).read_text(encoding="utf-8"))


def deb(wheel: Path, folder: Path) -> Path:
    """The Debian package."""
    package = folder / f"gpuledger_{__version__}_all.deb"
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary, "tree")
        stage(wheel, tree, "deb")
        date = formatdate(_epoch())
        _write(tree / "usr/share/doc/gpuledger/copyright", COPYRIGHT.format(year=date.split()[3]))
        entry = (
            f"gpuledger ({__version__}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {PACKAGER}  {date}\n"
        )
        _compress(tree / "usr/share/doc/gpuledger/changelog.gz", entry)
        files = [path for path in sorted(tree.rglob("*")) if path.is_file()]
        size = sum(path.stat().st_size for path in files) >> 10
        description = "\n".join(f" {line}" for line in DESCRIPTION)
        _write(tree / "DEBIAN/control", CONTROL.format(version=__version__, size=size, description=description))
        for name, script in SCRIPTS.items():
            _write(tree / "DEBIAN" / name, script)
            (tree / "DEBIAN" / name).chmod(0o755)
        _run("chmod", "-R", "u=rwX,go=rX", str(tree))
        _run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(package))
    return package


def rpm(wheel: Path, folder: Path) -> Path:
    """The RPM package."""
    package = folder / f"gpuledger-{__version__}-1.noarch.rpm"
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary, "tree")
        stage(wheel, tree, "rpm")
        _write(tree / "usr/share/licenses/gpuledger/LICENSE", (ROOT / "LICENSE").read_text(encoding="utf-8"))
        _run("chmod", "-R", "u=rwX,go=rX", str(tree))
        paths = [f"/{path.relative_to(tree)}" for path in sorted(tree.rglob("*")) if path.is_file()]
        files = ["/usr/share/gpuledger", *(path for path in paths if not path.startswith("/usr/share/gpuledger/"))]
        spec = Path(temporary, "gpuledger.spec")
        date = formatdate(_epoch()).replace(",", "").split()
        text = SPEC.format(
            version=__version__, description="\n".join(DESCRIPTION), tree=tree, files="\n".join(files),
            date=f"{date[0]} {date[2]} {date[1]} {date[3]}",
        )  # fmt: skip
        spec.write_text(text, encoding="utf-8")
        _run("rpmbuild", "-bb", "--quiet", "--target", "noarch", "--define", f"_topdir {temporary}/rpm",
             "--define", "use_source_date_epoch_as_buildtime 1", "--define", "clamp_mtime_to_source_date_epoch 1",
             "--define", "_buildhost reproducible", str(spec))  # fmt: skip
        shutil.copy(next(Path(temporary, "rpm/RPMS").rglob("*.rpm")), package)
    return package


def _epoch() -> int:
    """Seconds of $SOURCE_DATE_EPOCH or of the commit, because builds are reproducible."""
    if "SOURCE_DATE_EPOCH" not in os.environ:
        argv = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        os.environ["SOURCE_DATE_EPOCH"] = subprocess.run(
            argv, capture_output=True, text=True, check=True
        ).stdout.strip()
    return int(os.environ["SOURCE_DATE_EPOCH"])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _compress(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")
    (built,) = place.glob(f"gpuledger-{__version__}-*.whl")
    _epoch()
    for build in (deb, rpm):
        print(f"wrote {build(built, place)}")
