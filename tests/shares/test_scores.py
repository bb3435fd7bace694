"""Scores of energy shares, on made-up books and on recordings of natural programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import attribution
from bench.replay import Booked, Setup, Step
from bench.scores import Score, blocks, covered, score_joules, standard_error, standard_errors, summary, windows
from bench.truth import logs as logs_of

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from tests import h200

NATURAL = h200.FOLDER / "natural"
TIMELINES = [h200.load(path) for path in sorted(NATURAL.glob("nat-*.gz"))]
SOLO = [h200.load(path) for path in sorted(NATURAL.glob("solo-*.gz"))]


def step(time_s: float, ours: dict[int, float], errors: dict[int, float] | None = None) -> Step:
    """Books with these millijoules so far."""
    return Step(time_s, {"ours": ours}, errors or {})


def recording(**logs: list[list[float]]) -> Any:
    """A recording with logs of processes, in joules."""
    truth = [{"kind": name, "pid": pid, "log": log} for pid, (name, log) in enumerate(logs.items(), 1)]
    return {"name": "made-up", "unit": "joule", "truth": truth, "rows": []}


def test_a_window_counts_while_two_processes_are_present() -> None:
    """Also while one rests and while a third one arrives; not while there is only one."""
    made = recording(
        first=[[0, 0], [40, 4000]], second=[[5, 0], [30, 0]], third=[[12, 0], [17, 100]], loads=[[90, 0], [91, 1]]
    )
    steps = [step(t, {1: 100.0 * t, 2: 0.0, 3: 0.0, 4: 0.0}) for t in range(46)]

    score = score_joules(made, steps, 5.0)

    # from 5 to 30 s; in two of the five windows the third process used 60 and 40 of 560 and 540 J
    assert score.errors["ours"] == pytest.approx([0, 60 / 560, 40 / 540, 0, 0])


def test_energy_of_a_process_that_does_no_work_is_an_error() -> None:
    """A process that loads while two others work gets a fifth of the energy in the books."""
    made = recording(first=[[0, 0], [10, 100]], second=[[0, 0], [10, 100]], loads=[[10, 0], [20, 100]])
    steps = [step(t, {1: 4.0 * t, 2: 4.0 * t, 3: 2.0 * t}) for t in range(21)]

    assert score_joules(made, steps, 5.0).errors["ours"] == pytest.approx([0.2, 0.2])


def test_windows_of_joules_have_one_length() -> None:
    """A remainder is left out; elsewhere it is a window of its own or extends the last one."""
    steps = [step(t, {}) for t in range(14)]

    assert [len(window) - 1 for window in windows(steps, 5.0, remainder=False)] == [5, 5]
    assert [len(window) - 1 for window in windows(steps, 5.0)] == [5, 5, 3]
    assert [len(window) - 1 for window in windows(steps[:13], 5.0)] == [5, 7]
    assert windows(steps, 20.0, remainder=False) == []


def test_bias_is_of_all_windows_together() -> None:
    """Errors of opposite signs cancel; the larger window counts more."""
    score = Score("made-up", 5.0)
    score.add([step(0, {1: 0, 2: 0}), step(5, {1: 60, 2: 40})], {1: 50, 2: 50})
    score.add([step(5, {1: 60, 2: 40}), step(10, {1: 100, 2: 100})], {1: 50, 2: 50})
    assert score.errors["ours"] == pytest.approx([0.1, 0.1])
    assert score.bias("ours") == pytest.approx(0)

    score.add([step(10, {1: 100, 2: 100}), step(15, {1: 400, 2: 100})], {1: 150, 2: 150})
    assert score.bias("ours") == pytest.approx(0.3)


def test_summaries_have_the_largest_bias_of_a_recording() -> None:
    """And figures of the estimators that were replayed, for the asked length of windows."""
    first, second, longer = Score("first", 5.0), Score("second", 5.0), Score("second", 15.0)
    first.add([step(0, {1: 0, 2: 0}), step(5, {1: 60, 2: 40})], {1: 50, 2: 50})
    second.add([step(0, {1: 0, 2: 0}), step(5, {1: 30, 2: 70}, {1: 0.3, 2: 0.1})], {1: 50, 2: 50})
    longer.add([step(0, {1: 0, 2: 0}), step(15, {1: 1, 2: 0})], {1: 50, 2: 50})
    scores = [first, second, longer]

    assert summary(scores, 5.0) == {"ours": pytest.approx({"mean": 0.15, "p95": 0.2, "worst": 0.2, "bias": 0.2})}
    assert covered(scores, 5.0) == 0.5
    assert covered(scores, 15.0) is None


def test_standard_errors_are_clustered() -> None:
    """Repeating every value in its cluster adds no information; one cluster has none at all."""
    once = standard_error([[0.1], [0.2], [0.4]])

    assert once == pytest.approx(0.0882, abs=0.0001)  # sd / sqrt(3)
    assert standard_error([[0.1] * 9, [0.2] * 9, [0.4] * 9]) == pytest.approx(once)
    assert standard_error([[0.1, 0.2, 0.4]]) is None
    assert blocks([1, 2, 3, 4, 5]) == [[1, 2], [3, 4], [5]]


def test_a_few_recordings_are_cut_into_blocks() -> None:
    """Two equal means of recordings that vary within would have a standard error of 0."""
    scores = [Score(name, 5.0, errors={"ours": [0.1, 0.1, 0.3, 0.3]}) for name in ("first", "second")]

    found = standard_errors(scores, 5.0)["ours"]

    assert found == pytest.approx(standard_error([[0.1, 0.1], [0.3, 0.3]] * 2))
    assert found is not None
    assert found > 0.05


def test_energy_while_alone_counts_above_parked_power() -> None:
    """Exclusive energy less parked power x time, and nothing is lost when the row of the process is dropped."""
    timeline = TIMELINES[1]
    (first, *_) = [work["pid"] for work in timeline["truth"]]
    books, booked = Books(), Booked([first], 1000 * timeline["parked_w"])
    before_ns, sums = 0, []
    for tick in h200.ticks(timeline):
        seconds = (tick.time_ns - before_ns) / 1e9 if before_ns else 0.0
        before_ns = tick.time_ns
        sums.append((tick.time_ns / 1e9 - timeline["start"], booked.add(books.book(tick), seconds)[first] / 1000))
    (log,) = [work["log"] for work in timeline["truth"] if work["pid"] == first]
    at_20 = max(joules for time_s, joules in log if time_s <= timeline["start"] + 19)
    alone = {round(time_s): joules for time_s, joules in sums}

    assert alone[19] - alone[0] == pytest.approx(at_20, rel=0.1)


def test_shares_of_natural_programs_by_sm_time() -> None:
    """SM time is off by 0.114 in windows of 5 s, by itself and as the method of the books under test."""
    setup = Setup(books=lambda: Books(policy=Policy(method="sm_time")))
    scores, left_out = attribution.evaluate_timelines([], TIMELINES, [5.0, 15.0, 60.0], setup=setup)
    found = attribution.results(scores, 5.0)

    assert not left_out
    assert set(found) == {"nat-lora-serve-notebook", "nat-two-trainings", ""}
    assert found[""]["windows"] == 56
    assert found[""]["sm_time"]["mean"] == pytest.approx(0.114, abs=0.001)
    assert found[""]["sm_time"]["p95"] == pytest.approx(0.286, abs=0.001)
    assert found[""]["ours"] == found[""]["sm_time"]
    assert summary(scores, 60.0)["sm_time"]["mean"] < found[""]["sm_time"]["mean"]


def test_programs_that_were_alone_before_are_known() -> None:
    """The shares change, those by SM time hardly."""
    fresh, known = (
        attribution.results(attribution.evaluate_timelines(SOLO, TIMELINES, [5.0], known=known)[0], 5.0)[""]
        for known in (False, True)
    )

    assert known["ours"]["mean"] < fresh["ours"]["mean"]
    assert known["sm_time"]["mean"] == pytest.approx(fresh["sm_time"]["mean"], abs=0.002)


def test_without_the_other_estimators() -> None:
    """The same errors in half of the time."""
    with_others, alone = (
        attribution.evaluate_timelines([], TIMELINES, [5.0], setup=Setup(others=others))[0] for others in (True, False)
    )

    assert [score.errors["ours"] for score in alone] == [score.errors["ours"] for score in with_others]
    assert {name for score in alone for name in score.errors} == {"ours"}
    assert set(summary(alone, 5.0)) == {"ours"}


def test_the_command_scores_natural_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option changes what is replayed, and bias and standard errors are reported."""
    timeline, solo = str(NATURAL / "nat-two-trainings.json.gz"), str(NATURAL / "solo-b.json.gz")
    found = []
    for options in ([], ["--known"], ["--without-gpm"]):
        words = ["--json", "--window", "15", *options, "--solo", solo, "--timeline", timeline]
        assert attribution.main(words) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert attribution.main(["--solo", solo, "--timeline", timeline]) == 0
    assert "\nall: bias " in capsys.readouterr().out

    for document in found:
        assert document["window_s"] == 15
        assert document["count"] == document["recordings"]["nat-two-trainings"]["windows"] == 8
        assert document["bias"] == document["summary"]["ours"]["bias"] > 0
        assert document["standard_error"]["ours"] > 0
    assert len({document["summary"]["ours"]["mean"] for document in found}) == 3


def test_another_exporter_is_scored_by_its_energies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The truth itself has no error; the same energy for everybody that of an equal split of all processes."""
    (timeline,) = (recording for recording in TIMELINES if recording["name"] == "nat-two-trainings")
    path, words = tmp_path / "booked.json", ["--json", "--window", "5", "--timeline"]
    words += [str(NATURAL / "nat-two-trainings.json.gz"), "--booked", str(path)]
    logs = logs_of(timeline)
    times = [row["t"] for row in timeline["rows"]]
    true = [
        [t, {pid: sum(log.at(t) for log in of) for pid, of in logs.items()}, dict.fromkeys(logs, 0.1)] for t in times
    ]
    path.write_text(json.dumps({"nat-two-trainings": true}))
    assert attribution.main(words) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["summary"]["ours"]["worst"] < 0.005
    assert found["covered"] == 1
    assert found["summary"]["sm_time"]["mean"] == pytest.approx(0.105, abs=0.001)

    path.write_text(json.dumps({"nat-two-trainings": [[t, dict.fromkeys(logs, t - times[0])] for t in times]}))
    assert attribution.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["ours"]["mean"] > 0.2
    assert found["covered"] is None


def test_energies_that_cannot_be_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another format, and no energies of a recording."""
    path = tmp_path / "booked.json"
    words = ["--window", "5", "--timeline", str(NATURAL / "nat-two-trainings.json.gz"), "--booked", str(path)]
    for text in ("[]", "{", '{"nat-two-trainings": [[1, {"pid": 2}]]}', '{"nat-two-trainings": [3]}'):
        path.write_text(text)
        assert attribution.main(words) == 1
        assert "has no booked energies" in capsys.readouterr().err
    path.write_text("{}")
    assert attribution.main(words) == 1
    assert "skipped: nat-two-trainings: no booked energies" in capsys.readouterr().err
