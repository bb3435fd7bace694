"""The recording format: what goes in comes out, and whatever is damaged is refused."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import RecordingError, UsageError
from gpuledger.loop import Loop
from gpuledger.model import (
    Activity,
    Allocation,
    Device,
    Driver,
    Facts,
    Owner,
    Owners,
    Reading,
    Resident,
    Sample,
    Slot,
    Tick,
)
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.recording import recording as module
from gpuledger.recording.recording import Decoder, Encoder, check_header, header, load, read_packed, recording
from gpuledger.recording.replay import Replay
from tests.recording.random_ticks import recordings
from tests.waiting import wait_until

HERE = Path("x.gz")
TICKS = [
    Tick(
        10**18 + second * 10**9,
        Driver(up=True, driver_version="580"),
        (
            Reading(
                Device(0, "GPU-a", "H200"),
                energy_mj=1000 * second,
                residents=(Resident(7, "compute", 5),),
                samples=(Sample(7, 10**15 + second * 10**6, 40, 10),),
                temperatures_c=(("gpu", 45),),
            ),
        ),
        facts={7: Facts(7, 70, 700, "python3", 1000, "0::/a\n")},
    )
    for second in range(5)
]


def pack(*lines: str | dict[str, Any], head: str | dict[str, Any] | None = None) -> bytes:
    """A recording of these lines."""
    every = [header() if head is None else head, *lines]
    return gzip.compress("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in every).encode(), mtime=0)


def packed(ticks: list[Tick]) -> bytes:
    """A recording of these ticks."""
    encoder = Encoder()
    return pack(*[encoder.line(tick) for tick in ticks])


def refusal(data: bytes) -> str:
    """Why these bytes are refused."""
    with pytest.raises(RecordingError) as caught:
        list(load(data, HERE))
    message = str(caught.value)
    assert message.startswith("cannot replay x.gz: ")
    assert "\n" not in message
    return message.removeprefix("cannot replay x.gz: ")


@settings(max_examples=20)
@given(recordings())
def test_what_is_written_is_read_again(ticks: list[Tick]) -> None:
    """Decoder after Encoder is the identity, for any ticks: every field, devices and processes that come and go."""
    encoder, decoder = Encoder(), Decoder()

    assert [decoder.tick(encoder.line(tick)) for tick in ticks] == ticks
    assert list(load(packed(ticks), HERE)) == ticks


def test_slots_are_recorded() -> None:
    """The activity within a tick is in a recording; a recording without it has no slots."""
    reading = replace(
        TICKS[0].readings[0],
        activity=Activity(sm_pct=30.0, pcie_receive_bytes_per_s=7),
        slots=(Slot(Activity(sm_pct=20.5), 1980), Slot(Activity()), Slot(Activity(pcie_receive_bytes_per_s=14))),
    )
    tick = replace(TICKS[0], readings=(reading,))

    assert list(load(packed([tick]), HERE)) == [tick]
    row = json.loads(Encoder().line(tick))
    assert row["readings"][0].pop("slots") == [
        {"activity": {"sm_pct": 20.5}, "sm_clock_mhz": 1980},
        {"activity": {}},
        {"activity": {"pcie_receive_bytes_per_s": 14}},
    ]
    assert next(load(pack(row), HERE)).readings == (replace(reading, slots=()),)


def test_slots_without_gpm_are_recorded() -> None:
    """With power and utilization in place of activity; a utilization that is unknown does not become 0."""
    slots = (
        Slot(Activity(), power_mw=290_000, ended_ms=250, utilization_pct=60, memory_utilization_pct=10),
        Slot(Activity(), power_mw=80_500, ended_ms=50, utilization_pct=0),
    )
    tick = replace(TICKS[0], readings=(replace(TICKS[0].readings[0], slots=slots),))

    assert [read.readings[0].slots for read in load(packed([tick]), HERE)] == [slots]
    assert json.loads(Encoder().line(tick))["readings"][0]["slots"] == [
        {"activity": {}, "power_mw": 290_000, "ended_ms": 250, "utilization_pct": 60, "memory_utilization_pct": 10},
        {"activity": {}, "power_mw": 80_500, "ended_ms": 50, "utilization_pct": 0},
    ]


def test_a_device_twice_in_one_tick_does_not_shift_the_others() -> None:
    """Numbers stay right whatever a driver lists."""
    a, b = Device(0, "GPU-a"), Device(1, "GPU-b")
    ticks = [Tick(1, Driver(up=True), (Reading(a), Reading(a))), Tick(2, Driver(up=True), (Reading(b), Reading(a)))]

    assert list(load(packed(ticks), HERE)) == ticks


def test_nothing_is_kept_that_could_be_a_secret() -> None:
    """Of a process: command name, uid, user, start and cgroup. A new field of Facts must be thought about here.

    The program is a hash: the estimate of shares needs it, and a command line can contain passwords.
    """
    assert [field.name for field in fields(Facts)] == [
        "pid", "start_ticks", "start_time_ms", "name", "uid", "cgroup", "user", "inner_pid", "mps_server", "program",
    ]  # fmt: skip
    row = json.loads(Encoder().line(TICKS[0]))
    assert set(row) == {"t", "driver", "devices", "facts", "alive", "readings"}


def test_a_command_line_is_not_recorded() -> None:
    """Only its hash, which a replay gets back."""
    words = [sys.executable, "-c", "input()", "--password", "hunter2-hunter2"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"", 20)  # empty while exec runs
        facts = Procfs().look(process.pid, timeout_s=20)
        process.kill()
    assert facts is not None
    tick = replace(TICKS[0], facts={7: replace(facts, pid=7)})

    line = Encoder().line(tick)

    assert re.fullmatch("[0-9a-f]{8}", facts.program)
    assert facts.program in line
    assert not any(word in line for word in ("input", "--password", "hunter2"))
    assert next(load(packed([tick]), HERE)).facts[7].program == facts.program


def test_owners_are_kept_as_they_were_known() -> None:
    """Played elsewhere it shows the names of its own host; one whose owners and processes differ is refused."""
    owner = Owner(container="web", container_id="4be1" * 16, labels=(("app", "web"),))
    tick = replace(TICKS[0], owners=Owners(by_pid={7: owner}))

    assert next(load(packed([tick]), HERE)).owners.by_pid == {7: owner}
    broken = json.loads(Encoder().line(tick)) | {"owned": [0, 0]}
    assert "owned is not as long as alive" in refusal(pack(broken))


def test_allocations_of_docker_and_of_jobs_have_an_idle_ledger(tmp_path: Path) -> None:
    """Replayed on another host, without a daemon and a prolog."""
    device = TICKS[0].readings[0].device
    owners = Owners(
        allocations=(
            Allocation(device, Owner(container="triton", container_id="d1")),
            Allocation(device, Owner(job="211", account="phys")),
        ),
        job_uids={"211": "1001"},
        running=frozenset({"d1"}),
    )
    path = tmp_path / "x.gz"
    path.write_bytes(packed([replace(tick, owners=owners) for tick in TICKS]))
    loop = Loop(Replay(path, paced=False), None, interval_s=1.0)

    ticks = [loop.once() for _ in TICKS]

    assert [(use.owner.container, use.owner.job, use.allocated_ns) for use in ticks[-1].allocations] == [
        ("triton", "", 4 * 10**9),
        ("", "211", 4 * 10**9),
    ]
    assert (ticks[-1].owners.job_uids, ticks[-1].owners.running) == (owners.job_uids, owners.running)


def test_devices_and_facts_are_written_once() -> None:
    """A device and a process's facts stand in the first line that has them; the lines after it only count."""
    encoder = Encoder()
    encoder.line(TICKS[0])

    row = json.loads(encoder.line(TICKS[1]))

    assert set(row) == {"t", "alive", "readings"}
    assert row["alive"] == [0]
    assert row["readings"][0]["device"] == 0


def test_the_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """Header and ticks are in it; before the end there is no such file."""
    path = tmp_path / "x.jsonl.gz"
    with recording(path, 0.5) as recorder:
        for tick in TICKS:
            recorder.write(tick)
        assert not path.exists()

    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert json.loads(lines[0])["interval_s"] == 0.5
    assert list(load(read_packed(path), path)) == TICKS
    assert recorder.ticks == len(TICKS)
    assert list(tmp_path.iterdir()) == [path]


def test_a_tick_that_is_not_later_is_not_recorded(tmp_path: Path) -> None:
    """A clock that was set back makes no recording that cannot be played."""
    path = tmp_path / "x.gz"
    with recording(path, 1) as recorder:
        for tick in (TICKS[1], TICKS[1], TICKS[0], TICKS[2]):
            recorder.write(tick)

    assert list(load(read_packed(path), path)) == TICKS[1:3]


def test_a_recording_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    """And an older one of that name is still there."""
    path = tmp_path / "x.gz"
    path.write_text("old")

    with pytest.raises(UsageError, match="stop"), recording(path, 1):
        raise UsageError("stop")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.gz", "No such file or directory; name a file that `gpuledger record` wrote"),
        (".", "not a regular file; name a file that `gpuledger record` wrote"),
        ("/dev/zero", "not a regular file; name a file that `gpuledger record` wrote"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(path: str, reason: str, tmp_path: Path) -> None:
    """Missing, a folder, a device without end."""
    with pytest.raises(RecordingError) as caught:
        read_packed(tmp_path / path)

    assert str(caught.value) == f"cannot replay {tmp_path / path}: {reason}"


ROW = json.loads(Encoder().line(TICKS[0]))
DEEP = json.loads('{"outer":' * 400 + "{}" + "}" * 400)
NO_RECORDING = "not a gpuledger recording; make one with `gpuledger record FILE`"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", NO_RECORDING),
        (gzip.compress(b"", mtime=0), NO_RECORDING),
        (gzip.compress(b"\n", mtime=0), NO_RECORDING),
        (pack(head="[]"), NO_RECORDING),
        (pack(head="{}"), NO_RECORDING),
        (pack(head="[" * 100_000), NO_RECORDING),
        (b"gpu_up 1\n",
         "damaged or not a recording: Not a gzipped file (b'gp'); name a file that `gpuledger record` wrote"),
        (gzip.compress(b"\xff\xfe\n", mtime=0), "not UTF-8 text; record it again"),
        (pack(), "no readings; record it again"),
        (
            pack(head={**header(), "version": 2}),
            "format version 2, but this gpuledger reads 1 and older; install a newer gpuledger",
        ),
        (pack(head={**header(), "version": "1"}), "format version '1' is not a number from 1 to 1; record it again"),
        (pack(head={**header(), "version": 0}), "format version 0 is not a number from 1 to 1; record it again"),
        (pack(head={"gpuledger": "recording"}), "format version None is not a number from 1 to 1; record it again"),
        (pack("{"), "line 2: not JSON; record it again"),
        (pack("[]"), "line 2: the line is not an object; record it again"),
        (pack("[" * 100_000), "line 2: nested too deeply; record it again"),
        (pack({**ROW, "owners": [DEEP]}), "line 2: nested too deeply; record it again"),
        (pack(ROW, ROW), "line 3: not later than the line before; record it again"),
        (pack({**ROW, "t": -5}), "line 2: not later than the line before; record it again"),
        (pack({**ROW, "t": "now"}), "line 2: t is not of type int; record it again"),
        (pack({**ROW, "t": True}), "line 2: t is not of type int; record it again"),
        (pack({**ROW, "t": 10**30}), "line 2: t is larger than any counter; record it again"),
        (pack({**ROW, "alive": [9]}),
         "line 2: reference to an unknown device or process; record it again"),
        (pack({**ROW, "alive": [-1]}), "line 2: a reference is negative; record it again"),
        (pack({"t": 1, "alive": [], "readings": []}), "line 2: driver is missing; record it again"),
        (pack({k: v for k, v in ROW.items() if k != "readings"}), "line 2: readings is missing; record it again"),
        (pack({**ROW, "driver": {}}), "line 2: Driver lacks 'up'; record it again"),
        (pack({**ROW, "driver": {"up": 1}}), "line 2: up is not of type bool; record it again"),
        (pack({**ROW, "devices": [{"index": 0}]}), "line 2: Device lacks 'uuid'; record it again"),
        (pack({**ROW, "devices": 5}), "line 2: devices is not a list; record it again"),
        (pack({**ROW, "readings": [{"device": 0, "wattage": 1}]}),
         "line 2: Reading has no field 'wattage'; record it again"),
        (pack({**ROW, "readings": [{"device": 0, "energy_mj": 1.5}]}),
         "line 2: energy_mj is not of type int; record it again"),
        (pack({**ROW, "readings": [{}]}), "line 2: device is missing; record it again"),
        (
            pack(json.dumps({**ROW, "readings": [{"device": 0, "activity": {"sm_pct": float("nan")}}]})),
            "line 2: NaN is not a number; record it again",
        ),
        (
            pack(json.dumps({**ROW, "readings": [{"device": 0, "activity": {"sm_pct": 9}}]}).replace("9", "1e999")),
            "line 2: sm_pct is larger than any counter; record it again",
        ),
        (
            pack({**ROW, "readings": [{"device": 0, "reason": "\ud800"}]}),
            "line 2: reason is not text; record it again",
        ),
        (gzip.compress(json.dumps(header()).encode() + b"\n{", mtime=0),
         "the last line is incomplete or too long; record it again"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_named(data: bytes, reason: str) -> None:
    """No recording, a newer one, a line that is no tick, a field of the wrong type: one line each."""
    assert refusal(data) == reason


def test_a_recording_cut_at_any_byte_is_refused() -> None:
    """There is no length at which a part of a recording passes for a whole one."""
    data = packed(TICKS)

    for length in range(len(data)):
        refusal(data[:length])
    assert refusal(data[:-1]) == "truncated; record it again"
    assert list(load(data, HERE)) == TICKS


@given(st.data())
def test_damage_gives_a_recording_error_or_the_same_ticks(data: st.DataObject) -> None:
    """Flipped, cut or inserted bytes in the file: never another exception, never other numbers."""
    whole = packed(TICKS)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :],
                whole[:at] + data.draw(st.binary(max_size=20)) + whole[at:],
                whole[:at] + whole[at + data.draw(st.integers(1, 50)) :],
            ]
        )
    )

    try:
        ticks = list(load(damaged, HERE))
    except RecordingError:
        return
    assert ticks == TICKS


@given(st.data())
def test_damaged_text_gives_a_recording_error_or_ticks(data: st.DataObject) -> None:
    """The same one layer further in, where no checksum helps: a line is understood or refused, nothing else."""
    text = "\n".join([Encoder().line(TICKS[0])])
    at = data.draw(st.integers(0, len(text) - 1))
    with_noise = text[:at] + data.draw(st.text('0123456789{}[]",:.-eEntrufalsNI\\', max_size=8)) + text[at + 1 :]

    try:
        tick = Decoder().tick(with_noise)
    except RecordingError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
    else:
        Encoder().line(tick).encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["t", "driver", "devices", "facts", "alive", "readings", "device", "up", "x"]), inner
            )
        ),
    )
)
def test_any_json_at_all_is_a_tick_or_a_recording_error(value: object) -> None:
    """Also JSON that is perfectly well-formed and means nothing."""
    for parse in (Decoder().tick, check_header):
        try:
            parse(json.dumps(value))
        except RecordingError:
            continue


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of many lines nor one that is a single line: the limit holds before the memory is used."""
    monkeypatch.setattr(module, "LARGEST_BYTES", 3 << 20)
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 1 << 20)
    encoder = Encoder()
    lines = [encoder.line(Tick(t, TICKS[0].driver, TICKS[0].readings)) for t in range(1, 20_000)]

    assert refusal(pack(*lines)) == "unpacks to more than 3 MiB; record it again"
    packer = zlib.compressobj(9, wbits=31)
    one_line = (
        packer.compress(json.dumps(header()).encode() + b"\n") + packer.compress(b" " * (64 << 20)) + packer.flush()
    )
    assert len(one_line) < 100_000
    assert refusal(one_line) == "the last line is incomplete or too long; record it again"
