"""The books on readings of a real H200, with what was really running known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from bench import accuracy, attribution
from bench.replay import ACTIVITY
from bench.scores import Score, covered, figures, summary

from gpuledger.books import Books
from gpuledger.model import Account, Tick
from tests import h200
from tests.checkout import ROOT

FILES = sorted(h200.FOLDER.glob("*.json.gz"))


def booked(name: str, every: int = 10) -> list[Tick]:
    """A recording through the books."""
    books = Books()
    return [books.book(tick) for tick in h200.ticks(h200.load(h200.FOLDER / f"{name}.json.gz"), every)]


def account(tick: Tick) -> Account:
    """That of the GPU."""
    return tick.accounts[tick.readings[0].device.uuid]


def energy_mj(tick: Tick) -> dict[int, Counter[str]]:
    """By pid and method."""
    return {use.resident.pid: Counter(dict(use.energy_mj)) for use in tick.processes}


@pytest.mark.parametrize("every", [1, 5, 10, 20])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_the_parts_are_the_device(path: Path, every: int) -> None:
    """In every tick, to the millijoule, at ticks of 0.1 to 2 s; and the device is the counter."""
    books = Books()
    for tick in h200.ticks(h200.load(path), every):
        done = books.book(tick)
        gpu = account(done)
        processes = sum(mj for use in done.processes for _, mj in use.energy_mj)
        parts = processes + gpu.idle_mj + gpu.retired_mj + sum(mj for _, mj in gpu.unattributed_mj)
        assert parts == gpu.energy_mj
        pending = books._energy.ledgers[h200.GPU.uuid]._open
        assert pending is not None
        assert parts + pending.energy_mj == tick.readings[0].energy_mj
        assert {reason for reason, _ in gpu.unattributed_mj} == {"before"}


def test_an_idle_gpu_is_idle() -> None:
    """Without a process, all energy since the start is idle, at the 80 W that were measured."""
    last = account(booked("idle")[-1])

    assert last.energy_mj == last.idle_mj + dict(last.unattributed_mj)["before"]
    assert last.idle_power_mw == pytest.approx(80_000, rel=0.1)
    assert (last.parked_power_mw, last.parked_power_source) == (122_000, "model")


@pytest.mark.parametrize("name", [path.name.split(".")[0] for path in FILES if path.name.startswith("solo-")])
def test_alone_is_exclusive(name: str) -> None:
    """One process: more than 95 % of the energy after the first second is measured to be its own."""
    ticks = booked(name)
    used = (account(ticks[-1]).energy_mj or 0) - (account(ticks[1]).energy_mj or 0)
    (first,), (last,) = energy_mj(ticks[1]).values(), energy_mj(ticks[-1]).values()

    assert last["exclusive"] - first["exclusive"] > 0.95 * used


@pytest.mark.parametrize("every", [1, 10])
def test_a_holder_has_its_parked_share_and_nothing_else(every: int) -> None:
    """Beside a process that works: half of the parked power, which is that of two idle contexts, 121 to 125 W."""
    ticks = booked("p-big-hold", every)
    (holder,) = (use for use in ticks[-1].processes if use.resident.pid == 1084)
    seconds = (ticks[-1].time_ns - ticks[0].time_ns) / 1e9

    assert account(ticks[-1]).parked_power_mw == pytest.approx(123_000, rel=0.05)
    assert set(dict(holder.energy_mj)) <= {"parked", "exclusive"}  # it is alone for the last readings
    assert dict(holder.energy_mj)["parked"] == pytest.approx(123_000 / 2 * seconds, rel=0.1)


def test_clients_of_mps_share_what_their_server_did() -> None:
    """The driver's samples name only the server; it keeps nothing, its two clients have half each."""
    rows = {use.resident.pid: Counter(dict(use.energy_mj)) for use in booked("mps-small-small")[-1].processes}

    assert not rows[964]
    assert rows[985]["mps"] > 0
    assert rows[985]["mps"] == pytest.approx(rows[986]["mps"], rel=0.05)


def test_busy_time_is_the_time_work_ran() -> None:
    """12 s of work in 13 s of readings."""
    (use,) = booked("solo-big")[-1].processes
    gpu = account(booked("solo-big")[-1])

    assert (use.busy_ns or 0) / 1e9 == pytest.approx(12, rel=0.05)
    assert (gpu.busy_ns or 0) / 1e9 == pytest.approx(12, rel=0.1)
    assert gpu.in_use_ns / 1e9 == pytest.approx(13, rel=0.05)


def test_the_counter_agrees_with_power() -> None:
    """A check of one by the other, on work that is even."""
    last = account(booked("solo-copy", 1)[-1])

    assert last.checked_counter_mj / last.checked_power_mj == pytest.approx(1, abs=0.05)


def test_shares_are_near_the_truth() -> None:
    """Of all recordings of several processes, in windows of 5 s; knowing of each only what was played before."""
    scores, left_out = attribution.evaluate([h200.load(path) for path in FILES], [5.0])
    found = summary(scores, 5.0)

    assert not left_out
    assert len(scores) >= 13
    assert found["ours"]["mean"] <= 0.045
    assert found["ours"]["worst"] <= 0.15
    assert found["sm_time"]["mean"] > 3 * found["ours"]["mean"]


def test_shares_of_real_work_are_near_the_truth() -> None:
    """Training, inference, convolutions and others, recorded after the method was made and not used to make it."""
    recordings = [h200.load(path) for path in sorted((h200.FOLDER / "work").glob("*.json.gz"))]
    scores, left_out = attribution.evaluate(recordings, [5.0])
    found = summary(scores, 5.0)

    assert not left_out
    assert len(scores) >= 7
    assert found["ours"]["mean"] <= 0.06
    assert found["ours"]["p95"] <= 0.15
    assert found["sm_time"]["mean"] > 2 * found["ours"]["mean"]


measured = cache(accuracy.measure)
"""All regimes, once for several tests."""


def test_the_accuracy_table_is_fresh() -> None:
    """docs/accuracy.md and the README of the recordings have the tables that `python -m bench.accuracy` prints."""
    for page, tables in accuracy.tables(measured()).items():
        for table in tables.values():
            assert table in page.read_text(), "run python -m bench.accuracy --write"


def test_the_accuracy_table_has_all_regimes() -> None:
    """Natural programs first, in windows of 5, 15 and 60 s; one line for each regime and length that was recorded."""
    head, _, *lines = accuracy.table(measured().values()).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]

    assert len({len(line) for line in cells} | {len(head.split("|")) - 2}) == 1
    assert [(line[0], line[1]) for line in cells[:4]] == [
        (accuracy.TITLES["natural"], "5 s"), ("", "15 s"), ("", "60 s"), (accuracy.TITLES["natural known"], "5 s")
    ]  # fmt: skip
    assert [line[0] for line in cells if line[0]] == [accuracy.TITLES[key] for key in measured()]
    assert set(accuracy.TITLES) - set(measured()) <= {"held out", "held out known"}
    assert all("±" in line[6] for line in cells if line[1] == "5 s")


def test_activity_of_processes() -> None:
    """Near the truth in every regime, and much nearer than the value of the whole device."""
    for regime in (measured()[key] for key in ("steady", "unseen", "known", "bursts")):
        scores = [score for score in regime.scores if score.window_s == 5.0]
        for unit in ACTIVITY:
            errors = [error for score in scores for error in score.activity[unit]]
            copied = [error for score in scores for error in score.copied[unit]]
            assert sum(errors) / len(errors) < 0.06, (regime.title, unit)
            assert sum(errors) < 0.25 * sum(copied), (regime.title, unit)


def means_of(scores: Iterable[Score]) -> Iterator[tuple[str, float, float]]:
    """Of each recording in windows of 5 s: its name, our mean error and that of SM time."""
    for score in scores:
        if score.window_s == 5.0:
            yield score.name, figures(score.errors["ours"])["mean"], figures(score.errors["sm_time"])["mean"]


def test_shares_of_natural_programs() -> None:
    """Nothing known before: half the error of SM time or less; without GPM less than SM time, too."""
    found = {key: summary(measured()[key].scores, 5.0)["ours"] for key in measured()}
    longest = summary(measured()["natural"].scores, 60.0)["ours"]

    assert found["natural"]["mean"] <= 0.06
    assert found["natural"]["p95"] <= 0.15
    assert found["natural known"]["mean"] <= 0.055
    assert longest["mean"] <= 0.05
    assert longest["bias"] <= 0.06
    assert found["natural without GPM"]["mean"] <= 0.09
    for key in ("natural", "natural known", "held out", "held out known", "natural without GPM"):
        for name, ours, sm_time in means_of(measured()[key].scores):
            assert ours < sm_time, (key, name)


def test_shares_while_processes_come_and_go() -> None:
    """Nothing is known before; better than SM time in sum, and not much worse in any recording."""
    known, normal, unseen, bursts, mps, mig = (
        measured()[key].scores for key in ("known", "steady", "unseen", "bursts", "mps", "mig")
    )
    found = {name: summary(scores, 5.0) for name, scores in (("normal", normal), ("unseen", unseen), ("mps", mps))}

    assert found["normal"]["ours"]["mean"] < 0.07
    assert found["normal"]["ours"]["p95"] < 0.20
    assert found["normal"]["ours"]["mean"] < 0.6 * found["normal"]["sm_time"]["mean"]
    assert found["unseen"]["ours"]["mean"] < 0.5 * found["unseen"]["sm_time"]["mean"]
    for name, ours, sm_time in means_of(normal):
        assert ours <= sm_time + 0.045, name
    assert found["mps"]["ours"]["mean"] < 0.2 * found["mps"]["equal"]["mean"]
    assert summary(mig, 5.0)["ours"]["mean"] < 0.03
    for scores in (known, normal, bursts, mps):
        assert 0.65 <= round(covered(scores, 5.0) or 0, 2) <= 0.85
    for scores in (unseen, mig):  # too few windows for an upper limit
        assert (covered(scores, 5.0) or 0) >= 0.65


def test_the_command_reports_timelines_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object and nothing else, with the figures of each estimator; without --json, tables."""
    solo = h200.FOLDER / "work" / "solo-conv.json.gz"
    timeline = h200.FOLDER / "timelines" / "tl-fft-conv30.json.gz"
    mig = next((h200.FOLDER / "mig").glob("*.gz"))

    assert attribution.main(["--json", "--window", "5", "--solo", str(solo), "--timeline", str(timeline)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert attribution.main(["--json", "--mig", str(mig)]) == 0
    of_mig = json.loads(capsys.readouterr().out)
    assert attribution.main(["--mig", str(mig)]) == 0
    assert "\nall: mean " in capsys.readouterr().out
    assert attribution.main(["--solo", str(solo)]) == 1

    for told in (found, of_mig):
        assert set(told["summary"]) == {"equal", "kepler", "sm_time", "ours"}
        assert all(set(of) == {"mean", "p95", "worst", "bias"} for of in told["summary"].values())
        assert 0 <= told["covered"] <= 1


def test_the_commands_of_the_benchmark_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command in the README of the recordings scores what it names."""
    start = "python -m bench.attribution "
    commands = [
        line.removeprefix(start) for line in accuracy.BENCHMARK.read_text().splitlines() if line.startswith(start)
    ]
    complete = [command for command in commands if "FILE" not in command]

    assert len(complete) >= 6
    for command in complete:
        words = [
            name for word in command.split() for name in (sorted(map(str, ROOT.glob(word))) if "*" in word else [word])
        ]
        assert attribution.main(["--json", *words]) == 0, command
        found = json.loads(capsys.readouterr().out)
        assert found["left_out"] == [], command
        assert found["count"] >= 8, command


def test_published_errors_match_the_real_ones() -> None:
    """Different processes: the published error is about a tenth. Alike ones: it says that they cannot be separated."""
    books = Books()
    told: dict[str, list[float]] = {}
    for number, name in enumerate(["solo-big", "solo-copy", "p-big-copy", "p-big-big30"]):
        recording = h200.load(h200.FOLDER / f"{name}.json.gz")
        for tick in h200.ticks(recording, later_s=1000.0 * number - recording["start"] + 10**9):
            errors = [use.energy_share_error for use in books.book(tick).processes]
            told.setdefault(name, []).extend(error for error in errors if error is not None)

    assert "solo-copy" not in {name for name, errors in told.items() if errors}
    assert 0.01 < sorted(told["p-big-copy"])[len(told["p-big-copy"]) // 2] < 0.12
    assert sorted(told["p-big-big30"])[len(told["p-big-big30"]) // 2] > 0.12
