"""Every command of the README runs, here or in the test that is named for it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

from tests.checkout import ROOT
from tests.cli.running import COMMAND, Running, surroundings
from tests.components import program
from tests.fakedriver import Gpu, Scenario
from tests.readme import COMMANDS, TEXT, command
from tests.real.demohistory import demo_history
from tests.real.history import remembering
from tests.waiting import url_in_log

ELSEWHERE = {
    "docker build": "tests/image/test_readme.py",
    "docker run": "tests/image/test_readme.py",
    "kubectl create": "tests/e2e/test_readme.py",
    "kubectl label": "tests/e2e/test_readme.py",
    "helm install": "tests/e2e/test_readme.py",
    "make test": ".ci/run",
}
"""Commands that need a cluster or an image, each with the file that runs them."""
EXEMPT = {"docker push": "it needs a registry; the image is that of the `docker build` before it"}
"""Commands that no test runs, each with the reason."""
DEMO, CURL = "make demo", "curl -s localhost:9400/metrics "
HERE = (DEMO, CURL, "python3 -m venv ~/gpuledger", "~/gpuledger/bin/")


@contextmanager
def running(words: str, env: Mapping[str, str], log: Path) -> Iterator[Running]:
    """A command that serves, on a free port."""
    with log.open("wb") as errors, subprocess.Popen(
        ["sh", "-c", f"exec {words}"], cwd=ROOT, env={**env, "GPULEDGER_WEB_LISTEN_ADDRESS": "127.0.0.1:0"},
        stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield Running(process, url_in_log(process, log), log)
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def test_every_command_is_tested() -> None:
    """A command that is added to the README needs a test, or a reason for none."""
    assert len(COMMANDS) > 12
    assert [line for line in COMMANDS if not line.startswith((*HERE, *ELSEWHERE, *EXEMPT))] == []
    assert [begin for begin in (*HERE, *ELSEWHERE, *EXEMPT) if not any(c.startswith(begin) for c in COMMANDS)] == []
    for begin, path in ELSEWHERE.items():
        assert begin in (ROOT / path).read_text()


def test_inline_commands_of_make_exist() -> None:
    """Each `make TARGET` in the text is a target."""
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`make ([\w-]+)", TEXT + (ROOT / "CONTRIBUTING.md").read_text()))

    assert {"docs", "quick"} <= named
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_figures_are_those_of_the_docs() -> None:
    """The overhead and the errors of shares in the README are in the pages that it links."""
    overhead, accuracy = ((ROOT / "docs" / name).read_text() for name in ("overhead.md", "accuracy.md"))
    text = " ".join(TEXT.split())
    one, three = re.findall(r"takes ([\d.]+) % of a CPU core with one .*? ([\d.]+) % with three", text)[0]
    memory = re.findall(r"with three, and (\d+ MB)", text)[0]
    held_out, held_out_sm = re.findall(r"\| natural programs, held out \| (\d+) \| (\d+) \|", text)[0]
    tuned, tuned_sm = re.findall(r"\| natural programs that .*? \| (\d+) \| (\d+) \|", text)[0]

    cpu = re.findall(r"^\| gpuledger \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|$", overhead, re.MULTILINE)[0]
    assert [f"{float(share):.1f}" for share in cpu] == [one, three]
    assert f"| resident memory | {memory} |" in overhead
    assert points(accuracy, "natural programs, held out") == (held_out_sm, held_out)
    assert points(accuracy, "natural programs") == (tuned_sm, tuned)


def points(page: str, regime: str) -> tuple[str, str]:
    """Errors of SM time and of gpuledger in windows of 5 s, in percentage points."""
    line = next(line for line in page.splitlines() if line.startswith(f"| **{regime}**"))
    sm_time, ours = (float(cell.strip(" *").split("*")[0].split(" ")[0]) for cell in line.split("|")[6:8])
    return f"{100 * sm_time:.0f}", f"{100 * ours:.0f}"


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
    env = {**kept, **surroundings(scenario), "HOME": str(tmp_path), "PIP_NO_COMPILE": "1"}
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


@pytest.mark.needs("prometheus")
def test_the_report(tmp_path: Path) -> None:
    """The bill of last month, from a Prometheus that scraped the demo then: every owner's energy and cost, in HTML."""
    today = datetime.now(timezone.utc)
    month = (today.replace(day=1) - timedelta(days=1)).replace(day=15, hour=12, minute=0, second=0, microsecond=0)
    with remembering(demo_history(int(month.timestamp()), 600)) as server:
        words = shlex.split(command("~/gpuledger/bin/gpuledger report"))[1:]
        changed = {"http://localhost:9090": server.url, "2026-10": f"{month:%Y-%m}"}
        assert changed.keys() <= set(words)
        argv = [*COMMAND, *(changed.get(word, word) for word in words)]
        done = subprocess.run(argv, env=surroundings(), cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    (page,) = tmp_path.iterdir()
    assert page.name == words[-1]
    text = page.read_text()
    assert "EUR" in text
    assert f"{month:%Y-%m}" in text


def test_the_chart_has_the_values() -> None:
    """The chart of `helm install` is there, each value that it sets is one of the chart's, and the namespace is one."""
    words = shlex.split(command("helm install"))
    chart = ROOT / words[3]
    namespace = words[words.index("--namespace") + 1]
    assert (chart / "Chart.yaml").exists()
    assert command("kubectl create namespace").split()[-1] == namespace
    assert command("kubectl label namespace").split()[3] == namespace
    values = yaml.safe_load((chart / "values.yaml").read_text())

    assigned = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert len(assigned) >= 2
    for text in assigned:
        *groups, key = text.partition("=")[0].split(".")
        node = values
        for group in groups:
            node = node[group]
        assert key in node
