"""The program, imported once: a command is a fork of a process in which all its modules are loaded.

To import them takes 0.2 to 0.4 s of CPU time, more than most commands need for their work. A fork has arguments, an
environment and open files of its own, like a command that a shell starts.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests import fakedriver
from tests.checkout import ROOT

LARGEST = 1 << 16
"""Bytes of arguments and environment."""
AT_START = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that the interpreter or the loader reads when a program starts."""
LIBRARIES = "LD_LIBRARY_PATH"


class Fork:
    """A command that runs, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int) -> None:
        answers, theirs = os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            request = json.dumps([list(words), dict(env), str(Path.cwd())]).encode()
            socket.send_fds(_parent(), [request], [nothing.fileno(), stdout, stderr, theirs])
        os.close(theirs)
        self._answers = os.fdopen(answers, encoding="ascii")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, if the command has ended."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("gpuledger", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()


def suits(env: Mapping[str, str]) -> bool:
    """Whether a fork can have this environment: of libraries, it can load the fake driver."""
    names = {name for name in env if name.startswith(AT_START)}
    return not names or (names == {LIBRARIES} and env[LIBRARIES] == str(fakedriver.build()))


@cache
def _parent() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, env={}, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# -- in the process that forks


def _load() -> None:
    from gpuledger.cli import COMMANDS

    for name in COMMANDS:
        importlib.import_module(f"gpuledger.cli.{name}")
    gc.freeze()


def _serve(requests: socket.socket) -> None:
    """Fork for each request, and report exit codes. Returns in the fork, which is then the command."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), *running], [], [])
        for handle in running.keys() & set(ready):
            pid, answers = running.pop(handle)
            _, status = os.waitpid(pid, 0)
            _answer(answers, os.waitstatus_to_exitcode(status))
            os.close(answers)
            os.close(handle)
        if requests.fileno() not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, LARGEST, 4)
        if not request:
            sys.exit()
        pid = os.fork()
        if not pid:
            requests.close()
            for handle, (_, answers) in running.items():
                os.close(answers)
                os.close(handle)
            words, env, directory = json.loads(request)
            _become(words, env, directory, files)
            return
        *theirs, answers = files
        for file in theirs:
            os.close(file)
        running[os.pidfd_open(pid)] = pid, answers
        _answer(answers, pid)


def _answer(file: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the test has ended
        os.write(file, b"%d\n" % number)


def _become(words: list[str], env: dict[str, str], directory: str, files: list[int]) -> None:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = ["gpuledger", *words]
    if LIBRARIES in env:
        fakedriver.load(Path(env["FAKE_NVML_SCENARIO"]))
    selfstats = sys.modules.get("gpuledger.runtime.selfstats")
    if selfstats is not None:
        importlib.reload(selfstats)  # has the time of the start


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from gpuledger.cli import main

    sys.exit(main())
