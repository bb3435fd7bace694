"""deploy/, judged by the programs it is written for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuledger import __version__
from tests.cli.running import Running
from tests.real.daemons import run
from tests.waiting import url_in_log

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
EXPOSURE = 20
"""Maximum exposure level in tenths, on systemd's scale from 0 to 100. docs/host.md names it."""


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_the_unit_safe(tmp_path: Path) -> None:
    """`systemd-analyze security` reports the exposure that docs/host.md names, and `verify` reports nothing."""
    for name in ("gpuledger.service", "gpuledger.socket"):
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/local/bin/gpuledger", sys.executable))
    unit = str(tmp_path / "gpuledger.service")

    said = run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", unit)
    run("systemd-analyze", "verify", "--man=no", unit, str(tmp_path / "gpuledger.socket"))

    (found,) = re.findall(r"exposure level for gpuledger.service: ([0-9.]+)", said)
    assert f"**{found}**" in (ROOT / "docs" / "host.md").read_text()


@pytest.mark.needs("promtool")
def test_prometheus_takes_its_configurations(tmp_path: Path) -> None:
    """That of Compose with the rules of mixin/, and that of the minimal manifest."""
    shutil.copytree(ROOT / "mixin", tmp_path / "mixin")
    compose = tmp_path / "prometheus.yml"
    shutil.copy(DEPLOY / "compose" / "prometheus.yml", compose)
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "prometheus-minimal.yaml").read_text())
    (config,) = [yaml.safe_load(one["data"]["prometheus.yml"]) for one in documents if one["kind"] == "ConfigMap"]
    for job in config["scrape_configs"]:
        del job["kubernetes_sd_configs"]  # Debian's Prometheus is built without it
    minimal = tmp_path / "minimal.yml"
    minimal.write_text(yaml.safe_dump(config))

    said = run("promtool", "check", "config", str(compose))
    run("promtool", "check", "config", str(minimal))

    assert "rules found" in said


@pytest.mark.needs("network")
def test_the_wheel_alone_is_enough(tmp_path: Path) -> None:
    """From an empty virtual environment and the built wheel: `gpuledger demo` answers."""
    wheels = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(wheels, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv)]
    run(*pip, "install", "-q", "--no-compile", "-c", str(ROOT / "constraints.txt"), str(wheel), timeout_s=120)
    log = tmp_path / "log"
    kept = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with log.open("wb") as errors, subprocess.Popen(
        [f"{venv}/bin/gpuledger", "demo", "--web.listen-address=127.0.0.1:0"], cwd=tmp_path, env=kept,
        stdout=subprocess.DEVNULL, stderr=errors,
    ) as process:  # fmt: skip
        try:
            body = Running(process, url_in_log(process, log), log).metrics("^gpu_process_memory_used_bytes")
        finally:
            process.terminate()

    assert f'version="{__version__}"' in body
    assert (venv / "share/man/man1/gpuledger.1").exists()
    listed = run(*pip, "list", "--format=freeze").splitlines()
    names = {line.partition("==")[0].partition(" ")[0].lower() for line in listed}
    assert names == {"gpuledger", "h2", "hpack", "hyperframe", "pyyaml"}
