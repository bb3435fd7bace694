"""A fork is like the program that a shell starts."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.cli.forks import suits
from tests.cli.running import PROGRAM, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Scenario


@pytest.mark.parametrize("words", [["--version"], ["top", "--help"], ["report"], ["explain", "--pid=x"], ["unknown"]])
def test_it_says_the_same(words: list[str]) -> None:
    """Output, errors and exit code."""
    expected = subprocess.run([*PROGRAM, *words], env=surroundings(), capture_output=True, text=True, check=False)

    done = gpuledger(*words)

    assert (done.stdout, done.stderr, done.returncode) == (expected.stdout, expected.stderr, expected.returncode)


def test_its_directory_is_that_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a path is written there."""
    monkeypatch.chdir(tmp_path)
    scenario = Scenario(gpus=[Gpu(index=0)]).write(tmp_path / "scenario")

    gpuledger("once", "--output=metrics.prom", "--tick.interval=100ms", env=surroundings(scenario))

    assert "gpu_up" in (tmp_path / "metrics.prom").read_text()


def test_it_starts_when_it_starts(tmp_path: Path) -> None:
    """Not when its modules were loaded, and with its own process id; a signal ends it."""
    scenario = Scenario(gpus=[Gpu(index=0)]).write(tmp_path / "scenario")
    with tempfile.NamedTemporaryFile() as before, serving("serve", env=surroundings(scenario)) as server:
        body = server.metrics("^process_start_time_seconds")
        began = Path(before.name).stat().st_mtime
        (started,) = [float(line.split()[1]) for line in body.splitlines() if line.startswith("process_start_time_s")]
        server.process.kill()

        assert started >= began - 0.01
        assert server.process.wait(timeout=10) == -9


def test_what_is_read_at_the_start() -> None:
    """An environment that the interpreter or the loader reads needs a program that starts."""
    assert suits({"PATH": "/bin", "GPULEDGER_LOG_LEVEL": "debug"})
    assert not suits({"LANG": "C"})
    assert not suits({"LD_LIBRARY_PATH": "/elsewhere"})
