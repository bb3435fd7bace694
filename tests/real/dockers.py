"""A real Docker Engine and a real Podman with paths of their own, which leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.components import program
from tests.real.daemons import answers, end_processes_under, kill, run, start, stop, unmount_under
from tests.real.images import busybox_tar
from tests.waiting import free_port

IMAGE = "tiny:1"
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""Podman raises limits by default, which a test host may forbid."""


class Engine:
    """Docker Engine on a containerd of its own: a unix socket, and a TCP port with TLS that asks for certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.port = free_port()
        self._containerd: subprocess.Popen[bytes] | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """All of it, with an image in it."""
        certificates(self.folder)
        address = self.folder / "containerd.sock"
        self._containerd = start(
            ["containerd", "--root", f"{self.folder}/c-root", "--state", f"{self.folder}/c-state", "--address",
             str(address)], self.folder / "containerd.log", answers(address)
        )  # fmt: skip
        self.start_dockerd()
        self.cli("import", "-", IMAGE, stdin=busybox_tar())

    def start_dockerd(self) -> None:
        """Again, after `kill_dockerd`."""
        folder = self.folder
        (folder / "config.json").write_text("{}")  # else the host's own is read
        (folder / "pid").unlink(missing_ok=True)  # the killed one's; its number may be somebody else's by now
        hook = folder / "bin" / "nvidia-container-runtime-hook"  # without it, dockerd refuses --gpus
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        self._dockerd = start(
            ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid",
             "--config-file", f"{folder}/config.json", "--containerd", f"{folder}/containerd.sock",
             "--host", f"unix://{self.socket}", "--host", f"tcp://127.0.0.1:{self.port}",
             "--tlsverify", "--tlscacert", f"{folder}/ca.pem", "--tlscert", f"{folder}/cert.pem",
             "--tlskey", f"{folder}/key.pem", "--storage-driver", "vfs", "--bridge=none", "--iptables=false",
             "--ip6tables=false", "--add-runtime", f"nvidia={program('runc')}"],
            folder / "dockerd.log", lambda: answers(self.socket)() and self._pings(),
            environment=os.environ | {"PATH": f"{hook.parent}:{os.environ['PATH']}"},
        )  # fmt: skip

    def kill_dockerd(self) -> None:
        """With -9; its containers live on."""
        assert self._dockerd is not None
        kill(self._dockerd)

    def stop(self) -> None:
        """Everything, whatever state it is in."""
        try:
            alive = self._dockerd is not None and self._dockerd.poll() is None
            if alive and (ids := self.cli("ps", "--all", "--quiet")):
                self.cli("rm", "--force", *ids.split())
        finally:
            for daemon in filter(None, (self._dockerd, self._containerd)):
                stop(daemon)
            _clean(self.folder)

    def cli(self, *arguments: str, stdin: bytes | None = None) -> str:
        """What Docker's own command says."""
        return run("docker", "--host", f"unix://{self.socket}", *arguments, stdin=stdin)

    def sleeper(self, name: str, *options: str) -> str:
        """Start a container that does nothing; its id."""
        kill = ("--stop-signal", "KILL")  # a sleeping init hears no other, and everybody would wait for ten seconds
        return self.cli("run", "--detach", "--network", "none", *kill, "--name", name, *options, IMAGE, "sleep", "1000")

    def _pings(self) -> bool:
        try:
            self.cli("version")
        except AssertionError:
            return False
        return True


class Podman:
    """Podman's service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "podman.sock"
        self._options = ("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs",
                         "--events-backend", "file", "--root", f"{folder}/root", "--runroot", f"{folder}/runroot",
                         "--tmpdir", f"{folder}/tmp")  # fmt: skip
        self._service: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """The service, with an image in it."""
        self.start_service()
        self.cli("import", "-", IMAGE, stdin=busybox_tar())

    def start_service(self) -> None:
        """Again, after `kill_service`."""
        argv = ["podman", *self._options, "system", "service", "--time", "0", f"unix://{self.socket}"]
        self._service = start(argv, self.folder / "podman.log", answers(self.socket))

    def kill_service(self) -> None:
        """With -9; containers need no service."""
        assert self._service is not None
        kill(self._service)

    def stop(self) -> None:
        """Everything, whatever state it is in."""
        try:
            self.cli("rm", "--all", "--force", "--time", "0")
        finally:
            if self._service is not None:
                stop(self._service)
            _clean(self.folder)

    def cli(self, *arguments: str, stdin: bytes | None = None) -> str:
        """What Podman's own command says."""
        return run("podman", *self._options, *arguments, stdin=stdin)

    def sleeper(self, name: str, *options: str) -> str:
        """Start a container that does nothing; its id."""
        return self.cli(
            "run", "--detach", "--network", "none", *LIMITS, "--name", name, *options, IMAGE, "sleep", "1000"
        )


def certificates(folder: Path) -> None:
    """A self-signed certificate for 127.0.0.1 for both sides, and another one that is not trusted."""
    for name in ("cert", "stranger"):
        key = "key" if name == "cert" else "stranger-key"
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
            "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/{key}.pem",
            "-out", f"{folder}/{name}.pem")  # fmt: skip
    shutil.copy(folder / "cert.pem", folder / "ca.pem")


def _clean(folder: Path) -> None:
    end_processes_under(folder)
    unmount_under(folder)
