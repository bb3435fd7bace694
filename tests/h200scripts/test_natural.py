"""`tools/h200/natural_programs.py`, `record_natural.py` and the natural part of `truth.py`, without a GPU."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench import joules
from bench.truth import Counter

from tests.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "tools" / "h200"
SECONDS = {"prefill": 0.02, "decode": 0.01, "micro": 0.03, "optimizer": 0.01, "evaluate": 0.01, "save": 0.5,
           "batch": 0.03, "detect": 0.02, "act": 0.002, "update": 0.004, "load": 0.05, "sort": 0.04, "join": 0.06,
           "group": 0.03}  # fmt: skip
"""How long the made-up GPU takes for a piece of work."""
KINDS = ("batching", "finetune", "video", "rl", "frames")
LENGTH_S = 120.0


@dataclass
class Gpu:
    """A made-up GPU and its clock: work and sleep let time pass."""

    now: float = 1000.0
    event_s: float = 0.0
    pieces: list[tuple[str, int]] = field(default_factory=list)
    slept_s: float = 0.0

    def time(self) -> float:
        """Unix time."""
        return self.now

    def sleep(self, seconds: float, /) -> None:
        """Do nothing."""
        assert seconds > 0
        self.now += seconds
        self.slept_s += seconds

    def do(self, unit: str, size: int) -> None:
        """Work."""
        self.pieces.append((unit, size))
        self.event_s += SECONDS[unit]
        self.now += SECONDS[unit]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The programs as modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("natural_programs", "record_natural", "truth", "live"):
        sys.modules.pop(name, None)


@pytest.fixture
def programs() -> ModuleType:
    """The programs."""
    import natural_programs

    return natural_programs


@pytest.fixture
def recorder() -> ModuleType:
    """The program that records them."""
    import record_natural

    return record_natural


def ran(programs: ModuleType, kind: str, *, steady: bool = False, seed: int = 1) -> tuple[Any, Gpu]:
    """A program that has run on the made-up GPU."""
    gpu = Gpu()
    program = programs.KINDS[kind](gpu, gpu, random.Random(seed), gpu.now + LENGTH_S, steady=steady)
    program.run()
    return program, gpu


@pytest.mark.parametrize("kind", KINDS)
def test_programs_work_until_their_end(programs: ModuleType, kind: str) -> None:
    """The log counts every piece of work, never falls, and ends with the program."""
    program, gpu = ran(programs, kind)
    entries = program.log.entries
    total = entries[-1][1]

    assert 1000 + LENGTH_S <= gpu.now < 1000 + LENGTH_S + 1
    assert entries[0][0] == 1000
    assert entries[-1][0] == gpu.now
    for (before_s, before), (after_s, after) in pairwise(entries):
        assert before_s <= after_s
        assert all(before[unit] <= after[unit] for unit in before)
    assert total["event_s"] == pytest.approx(gpu.event_s)
    units = [unit for unit, _ in gpu.pieces]
    assert total == pytest.approx(
        {"event_s": gpu.event_s} | (
            {"prefill_tokens": sum(size for unit, size in gpu.pieces if unit == "prefill"),
             "decode_steps": units.count("decode"),
             "decode_rows": sum(size for unit, size in gpu.pieces if unit == "decode")}
            if kind == "batching"
            else {unit: units.count(unit) for unit in program.UNITS}
        )
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_programs_rest_unless_they_are_steady(programs: ModuleType, kind: str) -> None:
    """Natural programs leave the GPU alone now and then; only simulation goes on in steady ones."""
    _, natural = ran(programs, kind)
    program, steady = ran(programs, kind, steady=True)

    assert natural.slept_s > 2
    assert steady.slept_s == 0 or kind == "rl"
    assert all(program.log.counts[unit] > 0 for unit in program.UNITS), "a short run alone has all units"


@pytest.mark.parametrize("kind", KINDS)
def test_programs_differ_by_their_seeds_only(programs: ModuleType, kind: str) -> None:
    """The same seed gives the same work."""
    assert ran(programs, kind)[1].pieces == ran(programs, kind)[1].pieces
    assert ran(programs, kind)[1].pieces != ran(programs, kind, seed=2)[1].pieces


def test_requests_are_decoded_together(programs: ModuleType) -> None:
    """Batches have the sizes of CUDA graphs, prompts are cut into chunks, and every request gets all its tokens."""
    gpu = Gpu()
    server = programs.Batching(gpu, gpu, random.Random(1), gpu.now + LENGTH_S)
    received = [programs.Request(5000, 3), programs.Request(10, 1), programs.Request(20, 2)]
    server.waiting, server._next_s = received, 1e9

    for _ in range(6):
        server.step()

    assert gpu.pieces == [
        ("prefill", 2048),
        ("prefill", 2048),
        ("prefill", 904), ("prefill", 10), ("prefill", 20), ("decode", 4),
        ("decode", 2),
        ("decode", 1),
    ]  # fmt: skip
    assert not server.waiting
    assert not server.running


def test_a_batch_has_a_largest_size(programs: ModuleType) -> None:
    """More requests than rows wait in the queue."""
    gpu = Gpu()
    server = programs.Batching(gpu, gpu, random.Random(1), gpu.now + LENGTH_S)
    server.waiting, server._next_s = [programs.Request(1, 5) for _ in range(70)], 1e9

    server.step()

    assert gpu.pieces[-1] == ("decode", 64)
    assert len(server.waiting) == 6


ENERGY = {"prefill_tokens": 0.2, "decode_steps": 3.0, "decode_rows": 0.1, "micro": 15.0, "optimizer": 2.0,
          "evaluate": 4.0, "save": 30.0}  # fmt: skip
"""Joules of the units of the made-up GPU."""


def a_recording(programs: ModuleType, name: str, kinds: Sequence[str], *, steady: bool = False) -> dict[str, Any]:
    """Programs on one GPU that draws 120 W at rest; each unit adds its energy, whatever else runs."""
    truth = []
    for pid, kind in enumerate(kinds, 1):
        program, _ = ran(programs, kind, steady=steady, seed=pid)
        truth.append({"kind": kind, "pid": pid, "log": [list(entry) for entry in program.log.entries]})
    counters = [(unit, counter) for work in truth for unit, counter in joules.units(work).items()]
    rows = []
    for number in range(int(10 * (LENGTH_S + 10))):
        time_s = 995 + number / 10
        energy_j = 120 * time_s + sum(ENERGY[unit] * counter.at(time_s) for unit, counter in counters)
        row: dict[str, Any] = {"t": time_s, "energy_mj": 1000 * energy_j, "procs": [[work["pid"], 1] for work in truth]}
        rows.append(row | ({"gpm": {"1": 50.0}} if number % 2 else {}))
    return {"name": name, "start": 1000.0, "dur": LENGTH_S, "truth": truth, "rows": rows, "parked_w": 120.0}


def test_the_energy_of_units_is_found_alone(programs: ModuleType) -> None:
    """By regression over seconds with different mixtures of units; those that always come together are less certain."""
    solo = [a_recording(programs, f"solo-{kind}", [kind], steady=True) for kind in ("batching", "finetune")]
    found = joules.rates(solo)

    for units in found.values():
        for unit, rate in units.items():
            assert rate.joules == pytest.approx(ENERGY[unit], rel=0.05, abs=0.3 if unit == "optimizer" else 0), unit
    assert sum(rate.engine_s for rate in found["finetune"].values()) > 0


def test_logs_become_joules(programs: ModuleType) -> None:
    """Next to others the joules of each process add up to the energy of the GPU; the counts are kept."""
    solo = [a_recording(programs, f"solo-{kind}", [kind], steady=True) for kind in ("batching", "finetune")]
    shared = a_recording(programs, "nat-both", ["batching", "finetune"])
    converted = joules.in_joules(shared, joules.rates(solo))

    assert converted["unit"] == "joule"
    assert joules.explained(converted) == pytest.approx(1, abs=0.03)
    for work, before in zip(converted["truth"], shared["truth"], strict=True):
        assert work["units"] == before["log"]
        used = sum(ENERGY[unit] * counter.at(2000) for unit, counter in joules.units(before).items())
        assert work["log"][-1][1] == pytest.approx(used, rel=0.05)
        assert Counter(work["engine_s"]).at(2000) > 0


def test_units_that_were_never_alone_have_no_energy(programs: ModuleType) -> None:
    """A kind without a recording, and a recording that is too short."""
    shared = a_recording(programs, "nat-both", ["batching", "finetune"])
    with pytest.raises(ValueError, match="nat-both: no recording of batching, finetune alone"):
        joules.in_joules(shared, {})

    short = a_recording(programs, "solo-finetune", ["finetune"])
    short["truth"][0]["log"] = short["truth"][0]["log"][:5]
    with pytest.raises(ValueError, match="too short to measure units: finetune"):
        joules.rates([short])


def test_least_squares_is_never_negative() -> None:
    """A unit that seems to save energy needs none."""
    rows = [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]

    assert joules.least_squares(rows, [1.0, 3.0, 5.0]) == pytest.approx([1, 2])
    assert joules.least_squares(rows, [2.0, 1.0, 0.0]) == pytest.approx([1, 0])
    assert joules.least_squares([[0.0, 1.0]], [2.0]) == pytest.approx([0, 2])


def test_a_folder_is_converted(programs: ModuleType, recorder: ModuleType, tmp_path: Path) -> None:
    """Again with the same result; without a program alone, its timelines remain as they are and the result is 1."""
    made = [a_recording(programs, "solo-batching", ["batching"], steady=True)]
    made.append(a_recording(programs, "nat-two", ["batching", "batching"]))
    for recording in made:
        recorder.write(tmp_path / f"{recording['name']}.json.gz", recording)

    assert recorder.main([str(tmp_path), "--convert"]) == 0
    once = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert recorder.main([str(tmp_path), "--convert"]) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == once
    assert json.loads(gzip.decompress(once["nat-two.json.gz"]))["unit"] == "joule"

    recorder.write(tmp_path / "nat-other.json.gz", a_recording(programs, "nat-other", ["finetune"]))
    assert recorder.main([str(tmp_path), "--convert"]) == 1


def test_timelines_are_long_and_shared(programs: ModuleType, recorder: ModuleType) -> None:
    """3 to 5 minutes of known kinds, with two equal programs, programs that begin together, and five at once."""
    for name, plays in recorder.TIMELINES.items():
        assert name.startswith("nat-")
        assert 180 <= max(play.end for play in plays) <= 300
        assert {play.kind for play in plays} <= set(programs.KINDS)
        assert any(a is not b and a.begin < b.end and b.begin < a.end for a in plays for b in plays)
    assert [name for name in recorder.scenarios() if name.startswith("solo-")] == [f"solo-{kind}" for kind in (
        "batching", "finetune", "video", "rl", "frames")]  # fmt: skip


def test_programs_are_started_in_time(recorder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that are due, with their options; the log is read when a program has ended."""
    script = tmp_path / "program.py"
    script.write_text("import json, sys; json.dump({'words': sys.argv[1:]}, open(sys.argv[4], 'w'))")
    monkeypatch.setattr(recorder, "PROGRAM", script)
    started = recorder.Programs([recorder.Play("rl", 50, 60), recorder.Play("video", 0, 10)], steady=True)
    monkeypatch.setattr(recorder.time, "time", lambda: 1000.0)
    try:
        started.start(1000.0)
        assert len(started.pids()) == 1
        assert not started.finished()
        started.start(1000.0 - 40)
        assert len(started.pids()) == 2
        logs: list[Any] = []

        def ended() -> bool:
            logs.extend(started.logs())
            return bool(started.finished())

        wait_until(ended)
    finally:
        started.kill()

    words = sorted((log["words"] for log in logs), key=lambda words: str(words[0]))
    assert [log[:3] for log in words] == [["rl", "1010.0", "10"], ["video", "1000.0", "10"]]
    assert [log[4:] for log in words] == [["--seed=1", "--steady"], ["--seed=2", "--steady"]]


def test_a_program_that_fails_is_reported(
    recorder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its kind and exit status."""
    script = tmp_path / "program.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(recorder, "PROGRAM", script)
    started = recorder.Programs([recorder.Play("rl", 0, 10)])

    def logs() -> bool:
        return bool(list(started.logs()))

    try:
        started.start(0.0)
        with pytest.raises(RuntimeError, match="rl failed with 3"):
            wait_until(logs)
    finally:
        started.kill()


class Played:
    """Stands for the programs of a recording: their log comes after their end."""

    def __init__(self, clock: Gpu, log: dict[str, Any] | None, end_s: float) -> None:
        self.clock, self.log, self.end_s, self.killed = clock, log, end_s, False

    def start(self, time_0: float) -> None:
        """They run already."""

    def logs(self) -> list[dict[str, Any]]:
        """Once."""
        if self.log is None or self.clock.now < self.end_s:
            return []
        log, self.log = self.log, None
        return [log]

    def pids(self) -> set[int]:
        """The only one."""
        return {7}

    def finished(self) -> bool:
        """After its log."""
        return self.log is None and self.clock.now >= self.end_s

    def kill(self) -> None:
        """At the end."""
        self.killed = True


def played(
    recorder: ModuleType, monkeypatch: pytest.MonkeyPatch, ends: float
) -> tuple[Callable[[], dict[str, Any]], Played]:
    """A program that ends at a time, and readings of 200 W before 1025 s and 500 W after."""
    clock = Gpu()
    log = {"kind": "rl", "pid": 7, "due": 1024.0, "log": [[1025.0, {"act": 0}], [1035.0, {"act": 9}]]}
    programs = Played(clock, log, ends)
    monkeypatch.setattr(recorder, "time", clock)
    monkeypatch.setattr(recorder, "Programs", lambda *_, **__: programs)

    def row() -> dict[str, Any]:
        clock.now += 0.01
        energy_mj = 200_000 * (clock.now - 1000) + 300_000 * max(0.0, clock.now - 1025)
        return {"t": clock.now, "energy_mj": energy_mj, "procs": [[7, 1]]}

    return row, programs


def test_a_timeline_is_recorded(
    recorder: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten rows a second until the last log, with the parked power before the work; a late program is reported."""
    row, programs = played(recorder, monkeypatch, ends=1035.5)
    recording = recorder.record(row, "nat-made-up", [recorder.Play("rl", 0, 10)])

    assert programs.killed
    assert "rl began 1.0 s late" in capsys.readouterr().out
    assert recording["start"] == 1025
    assert recording["parked_w"] == pytest.approx(200)
    assert [line["pid"] for line in recording["truth"]] == [7]
    times = [row["t"] for row in recording["rows"]]
    assert len(times) == pytest.approx(10 * (recorder.EARLY_S + 10 + recorder.TAIL_S), abs=2)
    assert times[-1] - times[0] == pytest.approx(len(times) / 10, abs=0.2)


def test_a_program_that_does_not_end_is_killed(recorder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a minute."""
    row, programs = played(recorder, monkeypatch, ends=1e9)

    with pytest.raises(RuntimeError, match=r"programs \[7\] did not end"):
        recorder.record(row, "nat-made-up", [recorder.Play("rl", 0, 10)])
    assert programs.killed


def a_run(error: float) -> Any:
    """A live run of two programs with 100 and 300 W, in books that move a part of the energy to the first."""
    import live

    work = [
        {"kind": kind, "pid": pid, "log": [[1000.0, 0.0], [1100.0, 100.0 * watts]]}
        for kind, pid, watts in (("rl", 1, 100), ("video", 2, 300))
    ]
    run = live.Run(name="nat-made-up", start=1000.0, work=work)
    for second in range(-5, 106):
        busy_s = min(100, max(0, second))
        mj = {1: round(1000 * (100 + 400 * error) * busy_s), 2: round(1000 * (300 - 400 * error) * busy_s)}
        run.scrapes.append(live.Scrape(
            time_s=1000.0 + second, tick_s=1000.0 + second, device_mj=sum(mj.values()), booked_mj=sum(mj.values()),
            parked_w=120.0, active=[1, 2], energy_mj={pid: {"fingerprint": of} for pid, of in mj.items()},
            share_errors={1: 0.05, 2: 0.05}, busy_s={1: 0.5 * busy_s, 2: 0.5 * busy_s}, tick_duration_s=0.01,
            driver_s=0.005, cpu_s=0.0, resident_bytes=0.0, missed_ticks=0.0,
        ))  # fmt: skip
    return run


def test_a_live_run_of_natural_programs_is_scored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It passes if the error is small and the books balance; also when read again."""
    import live
    import truth

    assert truth.evaluate(a_run(error=0.04))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["windows", "of", "5", "s", "20", "0.040", "0.040", "0.040", "0.250", "0.250", "1.00"]
    assert "natural: within 0.090" in lines

    a_run(error=0.1).write(tmp_path / "run.json")
    assert not truth.evaluate(live.Run.read(tmp_path / "run.json"))
    assert "natural: EXCEEDS 0.090" in capsys.readouterr().out


def test_a_live_run_needs_the_programs_alone(tmp_path: Path) -> None:
    """It says which recordings are missing."""
    import live
    import truth

    with pytest.raises(
        RuntimeError, match=r"has no solo-batching.json.gz, solo-finetune.json.gz; run record_natural.py"
    ):
        truth.natural(live.Run(name="nat-batching-finetune"), tmp_path)


@pytest.mark.parametrize("name", ["natural_programs.py", "record_natural.py", "truth.py"])
def test_help_needs_no_gpu(name: str) -> None:
    """Nor PyTorch."""
    done = subprocess.run([sys.executable, FOLDER / name, "--help"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"usage: {name}")
