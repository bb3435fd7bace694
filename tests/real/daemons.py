"""Real daemons for tests: started with paths of their own, watched until they answer, always stopped by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.components import program
from tests.waiting import wait_until

LOG_TAIL = 4000
"""Characters of a daemon's log that a failed start shows."""


def answers(path: Path) -> Callable[[], bool]:
    """For `ready`: whether a server accepts connections on a unix socket."""

    def connects() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(path))
            except OSError:
                return False
            return True

    return connects


def listens(port: int) -> bool:
    """Whether a server accepts connections on a port of this host."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def start(
    argv: Sequence[str],
    log_path: Path,
    ready: Callable[[], bool],
    timeout_s: float = 20,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a daemon in a process group of its own and wait until it is ready; the log is shown if it never is."""
    with log_path.open("ab") as log:
        daemon = subprocess.Popen([program(argv[0]), *argv[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env=environment, start_new_session=True)  # fmt: skip
    try:
        wait_until(lambda: daemon.poll() is not None or ready(), timeout_s)
        if daemon.poll() is None:
            return daemon
        why = f"ended with {daemon.returncode}"
    except BaseException as error:
        stop(daemon)
        if not isinstance(error, TimeoutError):
            raise
        why = f"was not ready within {timeout_s:g} s"
    tail = log_path.read_text(errors="replace")[-LOG_TAIL:]
    raise AssertionError(f"{' '.join(argv)} {why}\n{tail}")


def stop(daemon: subprocess.Popen[bytes], timeout_s: float = 10) -> None:
    """Ask it to end; kill it when it does not. Its own process group goes with it."""
    if daemon.poll() is None:
        daemon.terminate()
        try:
            daemon.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kill(daemon)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)


def kill(daemon: subprocess.Popen[bytes]) -> None:
    """As kill -9 does: no goodbye, only the one process."""
    daemon.kill()
    daemon.wait()


def run(*argv: str, stdin: bytes | None = None, timeout_s: float = 30) -> str:
    """What a command writes to its standard output; its error text when it fails."""
    done = subprocess.run([program(argv[0]), *argv[1:]], input=stdin, capture_output=True, timeout=timeout_s,
                          check=False)  # fmt: skip
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode().strip()


def end_processes_under(folder: Path) -> None:
    """End what a daemon that was killed left behind: its shims, which name the folder, and the containers below them.

    The folder is a test's own temporary one, so no other process has it in its command line.
    """
    for pid in _family(str(folder)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _family(str(folder)))


def unmount_under(folder: Path) -> None:
    """Unmount leftovers below a folder, the deepest first, so that it can be removed."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run([program("umount"), "--lazy", mount], check=False, capture_output=True)


def _family(text: str) -> set[int]:
    """The processes with this text in their command line, and all below them."""
    parents, family = {}, set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if text.encode() in (entry / "cmdline").read_bytes():
                family.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {os.getpid()}
