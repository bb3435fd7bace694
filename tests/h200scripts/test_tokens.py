"""`tools/h200/tokens.py` without a GPU: its servers, its schedule and its arithmetic."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakedriver import Gpu, Process, Scenario, environment

FOLDER = Path(__file__).parents[2] / "tools" / "h200"


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import tokens

    yield tokens
    sys.modules.pop("tokens", None)


def a_run(tokens: Any, together: float = 1.0) -> Any:
    """A run in which a prompt token takes 0.01 J and an output token 1 J; `together` changes the energy of server-a."""
    run = tokens.Run(phases={"a alone": (10, 30), "a prefill": (30, 40), "a decode": (40, 50), "b alone": (60, 80),
                             "together": (80, 120)})  # fmt: skip
    work = dict.fromkeys(tokens.NAMES, 0.0)
    counts = {name: [0.0, 0.0] for name in tokens.NAMES}
    device = idle = 0.0
    parked = dict.fromkeys(tokens.NAMES, 0.0)
    for second in range(121):
        for name, alone in zip(tokens.NAMES, ("a alone", "b alone"), strict=True):
            phase = next((phase for phase, (begin, end) in run.phases.items() if begin < second <= end), "")
            rate = {alone: (8000, 200), "together": (4000, 100), "a prefill": (16000, 0), "a decode": (0, 400)}.get(
                phase
            )
            if rate is None or (phase.startswith("a ") and name != "server-a"):
                rate = (0, 0)
            factor = together if phase == "together" and name == "server-a" else 1.0
            work[name] += (0.01 * rate[0] + rate[1]) * factor
            device += (0.01 * rate[0] + rate[1]) * factor
            counts[name][0] += rate[0]
            counts[name][1] += rate[1]
            parked[name] += 60.0
            device += 60.0
            run.tokens[name].append([float(second), *counts[name]])
            if phase in (alone, "together") and second % 4 == 0:
                run.cycles[name].append([float(second), *counts[name]])
        servers = {
            name: {"work_energy_joules_total": work[name], "parked_energy_joules_total": parked[name]}
            | {"phase_token_energy_joules prefill": 0.011, "phase_token_energy_error_joules prefill": 0.002}
            | {"phase_token_energy_joules decode": 0.9, "phase_token_energy_error_joules decode": 0.1}
            for name in tokens.NAMES
        }
        run.ledgers.append(tokens.Ledger(float(second), device, idle, 0.0, 0.0, 0.0, 120.0, {}, servers))
    return run


def test_results(tokens: Any) -> None:
    """Joules per token, the truth of both phases and the balance are those of the made-up run."""
    found = tokens.evaluate(a_run(tokens))

    mine = found["servers"]["server-a"]
    assert mine["alone"]["j_per_token"] == pytest.approx(280 / 8200)
    assert mine["ratio"] == pytest.approx(1.0)
    assert found["phases"]["prefill"]["truth_j"] == pytest.approx(0.01)
    assert found["phases"]["decode"]["truth_j"] == pytest.approx(1.0)
    assert found["phases"]["decode"]["ratio"] == pytest.approx(0.9)
    assert found["refitted"]["server-a, together"] is None  # the ratio of prompt to output tokens never changes
    assert found["balance"]["missing"] == pytest.approx(0, abs=1e-6)
    assert set(found["checks"].values()) == {True}


def test_a_wrong_share_fails(tokens: Any) -> None:
    """A server that gets 15 % too much together does not pass."""
    checks = tokens.evaluate(a_run(tokens, together=1.15))["checks"]

    assert checks["server-a together within 10 % of alone"] is False
    assert checks["server-b together within 10 % of alone"] is True


def test_nothing_measured(tokens: Any) -> None:
    """A run that failed at once has results without numbers, and does not pass."""
    found = tokens.evaluate(tokens.Run(problem="no GPU"))

    assert set(found["checks"].values()) == {None}
    tokens.show(found)


def test_rehearsal(tokens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real servers and a real exporter on the fake driver: all phases run, tokens are joined, and the books balance."""
    scenario = tmp_path / "scenario"
    for name, value in environment(scenario).items():
        monkeypatch.setenv(name, value)

    def prepare(children: Sequence[Any]) -> None:
        processes = [Process(gpu=0, pid=child.pid, memory=1 << 30, sm=30) for child in children]
        Scenario(gpus=[Gpu(index=0, watts=400, energy_mj=10**9)], processes=processes).write(scenario)

    run = tokens.Run()
    tokens.record(run, ("sleep", "sleep"), 0.15, prepare=prepare)
    found = tokens.evaluate(run)

    assert set(run.phases) == {name for name, _, _ in tokens.PLAN} | {"both parked"}
    assert found["checks"]["tokens x joules + parked + idle is the energy of the GPU"]
    assert found["servers"]["server-a"]["together"]["j_per_token"] > 0
    assert found["servers"]["server-b"]["alone"]["output_tokens"] > 0
    assert found["phases"]["prefill"]["prompt_tokens"] > 100 * found["phases"]["prefill"]["output_tokens"]
    json.dumps(found)
