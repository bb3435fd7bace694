"""Every command of the README runs, here or in the test that is named for it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from gpuledger.cli import main
from tests.checkout import ROOT
from tests.cli.running import Running, surroundings
from tests.components import program
from tests.fakedriver import Gpu, Scenario
from tests.real.daemons import wait_until

BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
COMMANDS: list[str] = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines()]
ELSEWHERE = {
    "docker build": "tests/image/test_readme.py",
    "docker run": "tests/image/test_readme.py",
    "kubectl create": "tests/e2e/test_chart.py",
    "kubectl label": "tests/e2e/test_chart.py",
    "helm install": "tests/e2e/test_chart.py",
    "make test": ".ci/run",
}
"""Commands that need a cluster or an image, each with the file that runs them or what they install."""
DEMO, CURL = "make demo", "curl -s localhost:9400/metrics "
HERE = (DEMO, CURL, "python3 -m venv ~/gpuledger", "~/gpuledger/bin/")


def command(begin: str) -> str:
    """The only command of the README that begins so."""
    (found,) = [line for line in COMMANDS if line.startswith(begin)]
    return found


@contextmanager
def running(words: str, env: Mapping[str, str], log: Path) -> Iterator[Running]:
    """A command that serves, on a free port."""
    with log.open("wb") as errors, subprocess.Popen(
        ["sh", "-c", f"exec {words}"], cwd=ROOT, env={**env, "GPULEDGER_WEB_LISTEN_ADDRESS": "127.0.0.1:0"},
        stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            pattern = re.compile(r"listens on 127\.0\.0\.1:(\d+)")
            wait_until(lambda: process.poll() is not None or pattern.search(log.read_text()) is not None, 30)
            found = pattern.search(log.read_text())
            assert found is not None, log.read_text()
            yield Running(process, f"http://127.0.0.1:{found[1]}", log)
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def test_every_command_is_tested() -> None:
    """A command that is added to the README needs a test."""
    assert len(COMMANDS) > 12
    assert [line for line in COMMANDS if not line.startswith((*HERE, *ELSEWHERE))] == []
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


@pytest.mark.needs("make", "curl")
def test_the_demo(tmp_path: Path) -> None:
    """It starts with nothing but Python, and the second command shows owners."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with running(command(DEMO), env, tmp_path / "log") as demo:
        demo.metrics("^container_gpu_memory_bytes")
        read = command(CURL).replace("localhost:9400", demo.url.removeprefix("http://"))
        done = subprocess.run(["sh", "-c", read], capture_output=True, text=True, check=True)

    assert 'pod="llama-finetune-0"' in done.stdout


@pytest.mark.needs("network")
def test_a_bare_host(tmp_path: Path) -> None:
    """A virtual environment, the package from the clone, `doctor` and `serve`, on a fake driver."""
    scenario = Scenario(gpus=[Gpu(0)]).write(tmp_path / "scenario")
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http"))}
    env = {**kept, **surroundings(scenario), "HOME": str(tmp_path)}
    env.pop("PYTHONPATH", None)
    shell = [program("sh"), "-euc"]
    for words in (command("python3 -m venv"), command("~/gpuledger/bin/pip")):
        subprocess.run([*shell, words], cwd=ROOT, env=env, check=True, capture_output=True)
    doctor = subprocess.run(
        [*shell, command("~/gpuledger/bin/gpuledger doctor")], env=env, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert re.search(r"^ok +driver ", doctor.stdout, re.MULTILINE), doctor.stdout + doctor.stderr
    with running(command("~/gpuledger/bin/gpuledger serve"), env, tmp_path / "log") as server:
        assert "\ngpuledger_up 1\n" in server.metrics("^gpuledger_up 1")


def test_the_report_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """All its flags exist, with these values."""
    words = shlex.split(command("~/gpuledger/bin/gpuledger report"))[1:]

    assert main([*words, "--print-config"]) == 0
    assert "month: 2026-10" in capsys.readouterr().out


def test_the_chart_has_the_values() -> None:
    """Each value that `helm install` sets is one of the chart's."""
    words = shlex.split(command("helm install"))
    chart = ROOT / words[3]
    values = yaml.safe_load((chart / "values.yaml").read_text())

    assigned = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert len(assigned) >= 2
    for text in assigned:
        *groups, key = text.partition("=")[0].split(".")
        node = values
        for group in groups:
            node = node[group]
        assert key in node
