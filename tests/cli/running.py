"""The program as a user runs it, on the fake driver or on none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.cli.forks import Fork, suits
from tests.fakedriver import environment
from tests.waiting import url_in_log

PROGRAM = [sys.executable, "-m", "gpuledger"]
COMMAND = PROGRAM
"""Tests may put other words before it."""


def surroundings(scenario: Path | None = None, **variables: str) -> dict[str, str]:
    """An environment with nothing in it that could be a setting."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | (environment(scenario) if scenario else {}) | variables


def start(words: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int) -> subprocess.Popen[bytes] | Fork:
    """Start a command: as a fork, which is fast, wherever that makes no difference."""
    if COMMAND is PROGRAM and suits(env):
        return Fork(words, env, stdout, stderr)
    return subprocess.Popen([*COMMAND, *words], env=env, stdout=stdout, stderr=stderr)


def gpuledger(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = start(words, surroundings() if env is None else env, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


@dataclass
class Running:
    """A server that listens."""

    process: subprocess.Popen[bytes] | Fork
    url: str
    log: Path

    def get(self, path: str) -> str:
        """A page of it."""
        with urlopen(self.url + path, timeout=10) as response:
            return str(response.read().decode())

    def metrics(self, wanted: str, path: str = "/metrics", within_s: float = 10) -> str:
        """The metrics, once there is a line in them that matches."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                body = self.get(path)
            except OSError:  # 503 before the first tick
                body = ""
            if re.search(wanted, body, re.MULTILINE):
                return body
            time.sleep(0.02)
        raise AssertionError(f"there is no {wanted} in:\n{body}")

    def stop(self, *numbers: signal.Signals) -> tuple[int, float, str]:
        """Ask it to end: exit code, seconds it took, and what it has written to standard error."""
        began = time.monotonic()
        for number in numbers or (signal.SIGTERM,):
            self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        return code, time.monotonic() - began, self.log.read_text()


@contextmanager
def serving(*words: str, env: Mapping[str, str]) -> Iterator[Running]:
    """A command that serves, from the log line on that says where."""
    with tempfile.NamedTemporaryFile() as errors, Path(os.devnull).open("wb") as nothing:
        address = "--web.listen-address=127.0.0.1:0"
        process = start([*words, address], env, nothing.fileno(), errors.fileno())
        log = Path(errors.name)
        try:
            yield Running(process, url_in_log(process, log), log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
