"""A recording played as if it were the driver."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import RecordingError
from gpuledger.model import Device, Driver, Facts, Reading, Sample, Tick
from gpuledger.recording.recording import Encoder, header
from gpuledger.recording.replay import Replay

S = 10**9
RECORDED_NS = 1_600_000_000 * S
NOW_NS = 1_700_000_000 * S
GPU = Device(0, "GPU-a")


def made(second: float, *, energy_mj: int | None = None, up: bool = True) -> Tick:
    """The tick of that second of the recording: 100 W, a sample, an XID counter and a process."""
    at_ns = RECORDED_NS + int(second * S)
    reading = Reading(
        GPU,
        up=up,
        energy_mj=int(50_000 + second * 100_000) if energy_mj is None else energy_mj,
        xids=(("79", int(second)),) if second else (),
        samples=(Sample(7, at_ns // 1000, int(second), 0),),
    )
    facts = {7: Facts(7, 100, 1000, "python3")}
    return Tick(at_ns, Driver(up=True), (reading if up else Reading(GPU, up=False),), facts=facts)


def saved(folder: Path, ticks: list[Tick]) -> Path:
    """A recording of these ticks."""
    encoder = Encoder()
    path = folder / "x.gz"
    lines = [json.dumps(header()), *[encoder.line(tick) for tick in ticks]]
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), 1))
    return path


class Player:
    """A replay on a clock that only we move."""

    def __init__(self, path: Path, *, looped: bool = False, paced: bool = True) -> None:
        self.s = 500.0
        self.replay = Replay(path, looped=looped, paced=paced, monotonic=lambda: self.s, now_ns=lambda: NOW_NS)

    def at(self, second: float) -> Tick:
        """What is read that long after the start."""
        self.s = 500.0 + second
        return self.replay.read()


def second_of(tick: Tick) -> float:
    """The second since the start that a tick is from."""
    return (tick.time_ns - NOW_NS) / S


def energy(tick: Tick) -> int:
    """The counter of the only GPU."""
    value = tick.readings[0].energy_mj
    assert value is not None
    return value


TEN = [made(second) for second in range(10)]


def test_unpaced_gives_every_tick_as_it_was_and_ends(tmp_path: Path) -> None:
    """One tick for each read; afterwards the last one without its samples."""
    player = Player(saved(tmp_path, TEN), paced=False)

    read = []
    while not player.replay.ended:
        read.append(player.replay.read())

    assert read == [replace(tick, source="replay") for tick in TEN]
    again = player.replay.read()
    assert again.time_ns == TEN[-1].time_ns
    assert again.readings[0].samples == ()


def test_paced_gives_the_tick_whose_time_has_come(tmp_path: Path) -> None:
    """Moved to the present; the one before stays until the next is due."""
    player = Player(saved(tmp_path, TEN))

    assert [second_of(player.at(s)) for s in (0, 0.5, 1.0, 1.9, 2.1, 8.99)] == [0, 0, 1, 1, 2, 8]
    assert not player.replay.ended
    assert second_of(player.at(100)) == 9
    assert player.replay.ended


def test_a_tick_that_is_repeated_brings_no_samples_again(tmp_path: Path) -> None:
    """A row is given once, as the driver does."""
    player = Player(saved(tmp_path, TEN))

    rows = [[row.sm_pct for row in player.at(s).readings[0].samples or ()] for s in (0, 0.5, 1, 1.5)]

    assert rows == [[0], [], [1], []]


def test_ticks_that_are_skipped_leave_their_samples(tmp_path: Path) -> None:
    """A read every 3 s has the rows of all three seconds, moved to the present: no utilization is lost."""
    player = Player(saved(tmp_path, TEN))
    player.at(0)

    samples = player.at(3.5).readings[0].samples

    assert samples is not None
    assert [(row.sm_pct, row.timestamp_us) for row in samples] == [(n, NOW_NS // 1000 + n * 10**6) for n in (1, 2, 3)]


def test_what_is_unsupported_stays_unsupported(tmp_path: Path) -> None:
    """None is not made into an empty list."""
    player = Player(saved(tmp_path, [Tick(1, Driver(up=True), (Reading(GPU),))]))

    assert player.at(0).readings[0].samples is None
    assert player.at(0).readings[0].samples is None


def test_a_process_keeps_its_age(tmp_path: Path) -> None:
    """Its start is moved with the rest."""
    facts = Player(saved(tmp_path, TEN)).at(0).facts[7]

    assert facts.start_time_ms == 1000 + (NOW_NS - RECORDED_NS) // 10**6


def test_over_the_seam_time_and_energy_go_on_at_the_same_rate(tmp_path: Path) -> None:
    """A recording of a steady 100 W is a steady 100 W for as long as it is played."""
    player = Player(saved(tmp_path, TEN), looped=True)

    ticks = [player.at(second) for second in range(45)]

    assert [second_of(tick) for tick in ticks] == list(range(45))
    assert [energy(tick) - energy(ticks[0]) for tick in ticks] == [second * 100_000 for second in range(45)]
    assert not player.replay.ended


def test_over_the_seam_no_counter_falls(tmp_path: Path) -> None:
    """Named ones as well, those that began within the recording included."""
    player = Player(saved(tmp_path, TEN), looped=True)

    counts = [dict(player.at(second).readings[0].xids).get("79") for second in range(35)]

    seen = [count for count in counts if count is not None]
    assert seen == sorted(seen)
    assert seen[-1] > 30


@pytest.mark.parametrize("name", ["sram_errors", "sram_volatile_errors", "sram_uncorrected", "c2c_errors"])
def test_error_counters_do_not_fall_at_the_seam(name: str, tmp_path: Path) -> None:
    """Errors of the on-chip memory and of the link to the CPU, which the driver counts since it was loaded."""
    readings = [Reading(GPU, **{name: (("crc", second),)}) for second in range(5)]  # type: ignore[arg-type]
    ticks = [Tick(RECORDED_NS + n * S, Driver(up=True), (reading,)) for n, reading in enumerate(readings)]
    player = Player(saved(tmp_path, ticks), looped=True)

    counts = [dict(getattr(player.at(second).readings[0], name))["crc"] for second in range(15)]

    assert counts == list(range(15))


def test_over_the_seam_samples_and_processes_are_new(tmp_path: Path) -> None:
    """Rows carry the times of their lap; a process of the next lap has another pid and start time."""
    player = Player(saved(tmp_path, [*TEN[:-1], replace(TEN[-1], facts={})]), looped=True)

    first, later = player.at(3), player.at(13)

    samples = later.readings[0].samples
    assert samples
    assert samples[-1].timestamp_us == NOW_NS // 1000 + 13 * 10**6
    ((pid, facts),) = later.facts.items()
    assert pid == facts.pid == samples[-1].pid != 7
    assert facts.start_time_ms - first.facts[7].start_time_ms == 10_000
    assert facts.start_ticks - first.facts[7].start_ticks == 1000


def test_a_process_that_is_there_at_both_ends_continues(tmp_path: Path) -> None:
    """Otherwise it would share the interval of the seam with itself."""
    player = Player(saved(tmp_path, TEN), looped=True)

    first, later = player.at(3), player.at(13)

    assert later.facts == first.facts
    assert [sample.pid for sample in later.readings[0].samples or ()] == [7] * 10


@pytest.mark.parametrize("down", [0, 9])
def test_a_gpu_that_was_down_at_the_seam_does_not_fall_back(down: int, tmp_path: Path) -> None:
    """Its counters are measured from the first to the last tick in which it was up."""
    ticks = list(TEN)
    ticks[down] = made(down, up=False)
    player = Player(saved(tmp_path, ticks), looped=True)

    read = [player.at(second).readings[0].energy_mj for second in range(30)]

    known = [value for value in read if value is not None]
    assert known == sorted(set(known))


def test_a_single_tick_can_be_looped(tmp_path: Path) -> None:
    """It is a second long."""
    player = Player(saved(tmp_path, TEN[:1]), looped=True)

    assert [second_of(player.at(s)) for s in (0, 0.5, 1, 2, 3.5)] == [0, 0, 1, 2, 3]


def test_a_long_pause_skips_laps_instead_of_playing_them(tmp_path: Path) -> None:
    """After a year without a read, the right tick is returned at once, with the energy of a year."""
    player = Player(saved(tmp_path, TEN), looped=True)
    player.at(0)

    year_s = 365 * 86400 + 4
    tick = player.at(year_s)

    assert second_of(tick) == year_s
    assert energy(tick) == 50_000 + year_s * 100_000


def test_ticks_a_nanosecond_apart_do_not_hang_a_loop(tmp_path: Path) -> None:
    """A second is then a billion laps."""
    ticks = [replace(TEN[0], time_ns=n) for n in (5, 6)]

    assert second_of(Player(saved(tmp_path, ticks), looped=True).at(3600)) == pytest.approx(3600)


def test_the_file_may_go_while_it_is_played(tmp_path: Path) -> None:
    """The replay continues if the file is deleted."""
    path = saved(tmp_path, TEN)
    player = Player(path, looped=True)

    path.unlink()

    assert second_of(player.at(25)) == 25


def test_a_recording_with_damage_at_its_end_is_refused_at_once(tmp_path: Path) -> None:
    """Not after an hour of play."""
    path = saved(tmp_path, TEN)
    path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(RecordingError, match="truncated; record it again"):
        Replay(path)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 5 * S), st.integers(0, 10**6)), min_size=1, max_size=6),
    st.lists(st.floats(0, 20), max_size=30),
)
def test_a_loop_never_goes_back(
    tmp_path_factory: pytest.TempPathFactory, recorded: list[tuple[int, int]], pauses_s: list[float]
) -> None:
    """For any recording and any times of reads: time and energy never fall."""
    time_ns, energy_mj, ticks = RECORDED_NS, 0, []
    for step_ns, rise_mj in recorded:
        time_ns, energy_mj = time_ns + step_ns, energy_mj + rise_mj
        ticks.append(Tick(time_ns, Driver(up=True), (Reading(GPU, energy_mj=energy_mj),)))
    player = Player(saved(tmp_path_factory.getbasetemp(), ticks), looped=True)
    now, last = 0.0, player.at(0)

    for pause_s in pauses_s:
        now += pause_s
        tick = player.at(now)
        assert tick.time_ns >= last.time_ns
        assert energy(tick) >= energy(last)
        assert tick.time_ns - NOW_NS <= now * S + 1000
        last = tick
