"""`python -m tests.e2e.build`: build Kubernetes, etcd, helm and others from Go's module proxy, and get some CRDs.

`programs/go.mod` pins the versions, `programs/go.sum` the hash of every module, and this file the version of Go and of
programs with a go.mod of their own. The results are in `.e2e/` and are rebuilt only if one of these files changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
import urllib.request
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
MODULE = HERE / "programs"
BUILT = HERE.parents[1] / ".e2e"

GO = "go1.25.14"
GO_SHA256 = {
    "linux-amd64": "1bb543a7745d4c6e045a1bfdb4c4d5a0b05b71ee8b8ff72c0a351598b26991a4",
    "linux-arm64": "eee0803776a2a3d42f0620d7b0156277350debb5d39c99a9b61c8b12108fd92c",
}
PROGRAMS = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "etcd": "go.etcd.io/etcd/server/v3",
}
ADAPTER = "sigs.k8s.io/prometheus-adapter@v0.12.0"
NERDCTL = "github.com/containerd/nerdctl/v2@v2.1.2"
MODULES = {"prometheus-adapter": (ADAPTER, "./cmd/adapter"), "nerdctl": (NERDCTL, "./cmd/nerdctl")}
"""Programs that are built in their own module, because their dependencies differ from those of Kubernetes."""
OWN = {"otelcol": HERE / "otelcol"}
"""Programs of these tests, with their own go.mod and go.sum."""
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
OPENSHIFT = "github.com/openshift/api@v0.0.0-20251015095338-264e80a2b6e7"
SUMS = {
    ADAPTER: "h1:e29A6BIwA/NKxPZeuamBMHJsvz0sSUXTb92Obg7RMV4=",
    NERDCTL: "h1:ykM+PtsTUWplav2vmf/YxyMwiAdEsaLM0FgkM4d95+c=",
    OPERATOR: "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    OPENSHIFT: "h1:Ot2fbEEPmF3WlPQkyEW/bUCV38GMugH/UmZvxpWceNc=",
}
"""Hashes of modules that are not in go.sum."""
CRDS = {
    **{
        f"{kind}.yaml": (OPERATOR, f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml")
        for kind in ("podmonitors", "prometheusrules", "servicemonitors")
    },
    "securitycontextconstraints.yaml": (
        OPENSHIFT,
        "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml",
    ),
}
"""CRDs that the test cluster needs in addition to the kinds of Kubernetes."""


def built(name: str) -> Path:
    """Path of a built program or file. Fails if it does not exist."""
    path = BUILT / name
    if not path.exists():
        raise AssertionError(f"{path} does not exist; run `make e2e` or `python -m tests.e2e.build`")
    return path


def build() -> None:
    """Build everything that is missing or older than its pins."""
    files = [folder / name for folder in (MODULE, *OWN.values()) for name in ("go.mod", "go.sum")]
    pins = "".join(path.read_text() for path in (*files, Path(__file__)))
    key, stamp = hashlib.sha256(pins.encode()).hexdigest(), BUILT / "pins"
    wanted = [stamp, *(BUILT / name for name in (*PROGRAMS, *MODULES, *OWN)), *(BUILT / "crds" / name for name in CRDS)]
    if all(path.exists() for path in wanted) and stamp.read_text() == key:
        return
    stamp.unlink(missing_ok=True)
    go = _toolchain()
    versions = {module: _version(module) for module in ("k8s.io/kubernetes", "helm.sh/helm/v3")}
    for name, package in PROGRAMS.items():
        began = time.monotonic()
        _go(go, "build", "-ldflags", _stamps(versions), "-o", str(BUILT / name), package)
        print(f"{name}: built in {time.monotonic() - began:.0f} s", flush=True)
    folders = {module: _module(go, module) for module in SUMS}
    for name, (module, package) in MODULES.items():
        began = time.monotonic()
        _go(go, "build", "-ldflags", "-s -w", "-o", str(BUILT / name), package, folder=folders[module])
        print(f"{name}: built in {time.monotonic() - began:.0f} s", flush=True)
    for name, folder in OWN.items():
        began = time.monotonic()
        _go(go, "build", "-ldflags", "-s -w", "-o", str(BUILT / name), ".", folder=folder)
        print(f"{name}: built in {time.monotonic() - began:.0f} s", flush=True)
    (BUILT / "crds").mkdir(exist_ok=True)
    for name, (module, path) in CRDS.items():
        (BUILT / "crds" / name).write_bytes((folders[module] / path).read_bytes())
    stamp.write_text(key)


def _module(go: Path, module: str) -> Path:
    """Directory of a module, after a check of its hash."""
    info = json.loads(_go(go, "mod", "download", "-json", module, folder=BUILT))
    assert info["Sum"] == SUMS[module], f"{module} has the hash {info['Sum']}, not the one in {__file__}"
    return Path(info["Dir"])


def _version(module: str) -> str:
    match = re.search(rf"^\t{re.escape(module)} v(\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert match is not None, f"programs/go.mod does not require {module}"
    return match[1]


def _stamps(versions: dict[str, str]) -> str:
    """Linker flags that set the versions, as in a release. Without them, helm assumes a Kubernetes version of 2020."""
    kubernetes = versions["k8s.io/kubernetes"]
    major, minor, _ = kubernetes.split(".")
    values = {
        "k8s.io/component-base/version.gitVersion": f"v{kubernetes}",
        "helm.sh/helm/v3/internal/version.version": f"v{versions['helm.sh/helm/v3']}",
    }
    for package in ("chartutil", "lint/rules"):
        values[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMajor"] = major
        values[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor"] = minor
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])


def _go(go: Path, *words: str, folder: Path = MODULE) -> str:
    """Run go with the proxy, caches and certificates of the environment."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"GOROOT", "GOFLAGS", "GOWORK"}}
    environment = inherited | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-trimpath -buildvcs=false"}
    done = subprocess.run([go, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _toolchain() -> Path:
    """Go toolchain from the module proxy, because the versions in distributions are too old."""
    machine = {"x86_64": "linux-amd64", "aarch64": "linux-arm64"}[platform.machine()]
    folder = BUILT / f"{GO}.{machine}"
    if not (folder / "bin/go").exists():
        BUILT.mkdir(exist_ok=True)
        archive = BUILT / "go.zip"
        proxies = re.split(r"[,|]", os.environ.get("GOPROXY", ""))
        proxy = next((word for word in proxies if word.startswith("http")), "https://proxy.golang.org")
        module = f"golang.org/toolchain@v0.0.1-{GO}.{machine}"
        address = f"{proxy}/{module.replace('@', '/@v/')}.zip"
        with urllib.request.urlopen(address, timeout=60) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert digest == GO_SHA256[machine], f"{module} has the hash {digest}, not the one in {__file__}"
        unfinished = BUILT / "go.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        zipfile.ZipFile(archive).extractall(unfinished)
        root = unfinished / module
        for program in (*root.glob("bin/*"), *root.glob("pkg/tool/*/*")):
            program.chmod(0o755)  # modules store no file modes
        root.rename(folder)
        shutil.rmtree(unfinished)
        archive.unlink()
    return folder / "bin/go"


if __name__ == "__main__":
    build()
