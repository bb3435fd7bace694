"""The Dockerfile, built on a clean Debian: the image works, is small and needs few permissions."""

from __future__ import annotations

import json
import re
import time
from urllib.request import urlopen

from gpuledger import __version__
from tests.image.conftest import BASE, docker
from tests.real.dockers import Engine
from tests.waiting import free_port, wait_until

LOCKED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ulimit", "nofile=1024:1024")


def test_the_demo_works_without_permissions(clean_debian: Engine, image: str) -> None:
    """A scrape works with a read-only root, no capabilities and user nobody. Prints its time and the image size."""
    url = f"127.0.0.1:{free_port()}"
    demo = (image, "demo", f"--listen-address={url}")
    name = docker(clean_debian, "create", "--network", "host", *LOCKED, *demo)  # the vfs driver copies all files

    def answers() -> bool:
        try:
            with urlopen(f"http://{url}/metrics", timeout=5) as response:
                return b"\ngpuledger_up 1\n" in response.read()
        except OSError:
            return False

    began = time.monotonic()
    docker(clean_debian, "start", name)
    wait_until(answers, 60)
    took_s = time.monotonic() - began
    ids = docker(clean_debian, "exec", name, "python3", "-c", "import os; print(os.getuid(), os.getgid())")
    use = docker(clean_debian, "exec", name, "gpuledger", "top", "--demo")  # without a terminal
    docker(clean_debian, "rm", "--force", name)

    assert "research/notebook" in use
    ours, base = (int(docker(clean_debian, "image", "inspect", "--format", "{{.Size}}", i)) for i in (image, BASE))
    print(f"image {ours / 1e6:.0f} MB, {(ours - base) / 1e6:.0f} MB over its base; first scrape after {took_s:.1f} s")
    assert ids == "65534 65534"
    assert ours - base < 80_000_000


def test_the_health_check(clean_debian: Engine, image: str) -> None:
    """It follows the port of the environment, and is unhealthy if no server listens there."""
    names = [
        docker(clean_debian, "run", "--detach", "--network", "none", "--health-interval=1s", "--health-retries=1",
               "--health-start-period=0s", f"--env=EXPORTER_PORT={port}", *LOCKED, image, "demo", *flags)
        for port, flags in (("", ()), ("9500", ()), ("", ("--listen-address=:9",)))
    ]  # fmt: skip

    def state(name: str) -> str:
        return docker(clean_debian, "inspect", "--format", "{{.State.Health.Status}}", name)

    wait_until(lambda: [state(name) for name in names] == ["healthy", "healthy", "unhealthy"], 90)
    docker(clean_debian, "rm", "--force", *names)


def test_image_metadata_and_content(clean_debian: Engine, image: str) -> None:
    """The image has user, labels, entry point and commit, but no pip, compiler or caches."""
    config = json.loads(docker(clean_debian, "image", "inspect", "--format", "{{json .Config}}", image))
    version = docker(clean_debian, "run", "--rm", "--network", "none", image, "--version")
    files = docker(
        clean_debian, "run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", image, "-c",
        "ls /opt/gpuledger/bin /usr/bin | grep -x -e 'pip.*' -e 'gcc.*' -e cc; ls /var/lib/apt/lists; "
        "test -s /usr/share/doc/libc6/copyright && echo licences; ls /opt/gpuledger/share/man/man1",
    )  # fmt: skip

    assert (config["User"], config["Entrypoint"], config["Cmd"]) == ("65534:65534", ["gpuledger"], ["serve"])
    assert config["Labels"]["org.opencontainers.image.revision"] == "c0ffee"
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in config["Env"]
    assert re.match(rf"gpuledger {re.escape(__version__)} \(commit c0ffee\)", version)
    assert files.split() == ["licences", "gpuledger.1"]


def test_without_a_driver(clean_debian: Engine, image: str) -> None:
    """Without a GPU, `serve` runs with gpuledger_up 0, and `doctor` names the fix."""
    name = docker(clean_debian, "run", "--detach", "--network", "none", "--pid", "host", *LOCKED, image)
    ask = "from urllib.request import urlopen; print(urlopen('http://localhost:9400/metrics').read().decode())"

    def body() -> str:
        try:
            return docker(clean_debian, "exec", name, "python3", "-c", ask)
        except AssertionError:
            return ""

    wait_until(lambda: "\ngpuledger_up 0\n" in body(), 60)
    shown = body()
    docker(clean_debian, "rm", "--force", name)

    assert "\ngpuledger_host_pid_namespace 1\n" in shown
