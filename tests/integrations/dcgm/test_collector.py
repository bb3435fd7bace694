"""DCGM's numbers beside ours, and everything DCGM can do wrong: it costs its numbers, and nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.integrations.dcgm import library
from gpuledger.integrations.dcgm.collector import HANGS_S, SILENT_ROUNDS
from gpuledger.model import DcgmStats, Device, Facts, Reading
from tests import fakedcgm
from tests.integrations.dcgm.conftest import GPU, OTHER, Bench, tick, use

P42 = "pid 42 gpu=0 energy_mj=200000 sm=60 mem=20 max_memory=1073741824 others=1 start_us=1700000000000000"


def test_all_numbers(bench: Bench) -> None:
    """Each from its place, and none from a place beside it."""
    bench.write(P42)

    assert bench.stats(use(42)) == [
        DcgmStats(
            energy_mj=200_000,
            sm_pct=60,
            memory_pct=20,
            max_memory_bytes=1 << 30,
            other_processes=1,
            start_us=1_700_000_000_000_000,
        )
    ]


def test_processes_on_several_gpus(bench: Bench) -> None:
    """Found by uuid, because DCGM's number of a GPU may differ from the driver's; the uuid is read once."""
    bench.write("pid 42 gpu=1 energy_mj=7", "pid 42 gpu=0 energy_mj=5", "pid 43 gpu=1 energy_mj=9")

    for _ in range(2):
        found = bench.stats(use(42), use(42, OTHER), use(43, OTHER), use(43))

    assert [None if one is None else one.energy_mj for one in found] == [5, 7, 9, None]
    assert len(bench.calls("dcgmEntitiesGetLatestValues")) == 2


def test_a_gpu_without_uuid_is_left_out(bench: Bench) -> None:
    """Statistics of an unknown GPU are not shown; its uuid is read again."""
    bench.write("pid 42 gpu=9 energy_mj=7")
    late = Device(index=9, uuid="GPU-late")
    assert bench.stats(use(42), use(42, late)) == [None, None]

    bench.write("pid 42 gpu=9 energy_mj=7", "gpu 9 GPU-late")

    assert bench.stats(use(42), use(42, late)) == [None, DcgmStats(energy_mj=7, other_processes=0)]


def test_the_watch_is_set_once(bench: Bench) -> None:
    """With the configured period and an hour of samples, then one update, so that the first read has values."""
    bench.make(period_s=2.5)
    for _ in range(3):
        bench.ask(use(42))

    assert bench.calls("dcgmWatch") == ["dcgmWatchPidFields period_us=2500000 keep_s=3600 keep_samples=0"]
    assert bench.calls("dcgmUpdate") == ["dcgmUpdateAllFields wait=1"]
    assert bench.calls("dcgmStart") == ["dcgmStartEmbedded_v2 mode=1"]


def test_the_version_and_mode_are_reported(bench: Bench) -> None:
    """Version, library and mode."""
    bench.write("version 3.3.9")

    health = bench.health()

    assert (health.up, health.version, health.mode) == (True, "3.3.9", "embedded")
    assert health.library == str(fakedcgm.build(bench.major))


def test_a_missing_version_is_no_failure(bench: Bench) -> None:
    """It is only for show."""
    bench.write("error dcgmHostengineVersionInfo -3")

    assert (bench.health().up, bench.health().version) == (True, "")


@pytest.mark.parametrize(
    ("address", "seen"),
    [("10.0.0.1:5555", "10.0.0.1:5555"), ("node", "node"), ("unix:///tmp/engine", "unix:/tmp/engine")],
)
def test_an_nv_hostengine(bench: Bench, address: str, seen: str) -> None:
    """Connected over TCP or a Unix socket, and disconnected at the end."""
    bench.make(hostengine=address)
    bench.write(P42, f"engine {seen}")

    assert bench.health(use(42)).mode == "hostengine"
    assert bench.stats(use(42)) != [None]
    bench.collector.leave()
    assert bench.calls("dcgmConnect") == [f"dcgmConnect_v2 {seen}"]
    assert bench.calls()[-2:] == ["dcgmDisconnect", "dcgmShutdown"]


def test_an_nv_hostengine_that_is_not_there(bench: Bench) -> None:
    """The address is in the message; it is tried again, ever more rarely."""
    bench.make(hostengine="10.0.0.1")

    assert bench.health().reason.startswith(
        "dcgmConnect_v2 to 10.0.0.1: The connection to the host engine is not valid"
    )
    assert "start nv-hostengine there" in bench.health().reason
    assert len(bench.calls("dcgmConnect")) == 1
    bench.later(1)
    bench.ask()
    bench.later(1)
    bench.ask()
    assert len(bench.calls("dcgmConnect")) == 2
    bench.write("engine 10.0.0.1")
    bench.later()
    assert bench.health().up


def test_a_library_that_comes_later(bench: Bench, tmp_path: Path) -> None:
    """Installed while we run: no restart is needed."""
    path = tmp_path / "libdcgm.so"
    bench.make(library=str(path))
    assert "cannot load libdcgm" in bench.health().reason

    path.symlink_to(fakedcgm.build(bench.major))
    bench.later()

    assert bench.health().up


def test_a_lost_connection_is_made_anew(bench: Bench) -> None:
    """Its values are absent at once, with the reason, and return after a while."""
    bench.make(hostengine="node")
    bench.write(P42, "engine node", "lost_after 2")
    assert bench.stats(use(42)) != [None]
    assert bench.stats(use(42)) != [None]

    lost = bench.ask(use(42))

    assert lost.processes[0].dcgm is None
    assert lost.dcgm is not None
    assert (lost.dcgm.up, "dcgmGetPidInfo: The connection" in lost.dcgm.reason) == (False, True)
    bench.later(1)
    assert bench.stats(use(42)) != [None]
    assert len(bench.calls("dcgmConnect")) == len(bench.calls("dcgmWatch")) == 2
    for _ in range(2):
        bench.ask(use(42))
    bench.later(1)
    assert bench.stats(use(42)) != [None], "the wait is short again after it worked"


@pytest.mark.parametrize(("word", "call"), [(0x02004528, "dcgmGetPidInfo"), (0x01000048, "dcgmStartEmbedded_v2")])
def test_a_library_of_another_layout(bench: Bench, word: int, call: str) -> None:
    """The call is refused with a reason; no memory is read that the library did not write."""
    bench.write(P42, f"refuse {word:#x}")

    assert bench.stats(use(42)) == [None]
    assert bench.health().reason.startswith(f"{call}: Version Mismatch (-12); gpuledger supports")
    assert bench.calls()[-1] == "dcgmShutdown"


def test_without_the_right_to_turn_accounting_on(bench: Bench) -> None:
    """The engine stays, only the watch is retried; after `nvidia-smi -am 1` it works."""
    bench.write(P42, "error dcgmWatchPidFields -29")
    assert "`nvidia-smi -am 1` as root" in bench.health(use(42)).reason

    bench.write(P42)
    bench.later()

    assert bench.stats(use(42)) != [None]
    assert len(bench.calls("dcgmStartEmbedded")) == 1
    assert not bench.calls("dcgmStopEmbedded")


@pytest.mark.parametrize(
    ("gpu", "advice"),
    [
        (Reading(GPU, accounting_enabled=False), "accounting mode is off; turn accounting mode on with `nvidia-smi"),
        (
            Reading(GPU, accounting_enabled=False, mig_enabled=True),
            "with a GPU in MIG mode the driver has no accounting",
        ),
        (Reading(GPU, accounting_enabled=True), "the processes may have started before accounting mode was"),
    ],
    ids=["off", "mig", "on"],
)
def test_no_data_of_any_process(bench: Bench, gpu: Reading, advice: str, caplog: pytest.LogCaptureFixture) -> None:
    """DCGM is up and has no data: one line with the likely cause after a while, and one when it ends."""
    with caplog.at_level(logging.INFO):
        for number in range(SILENT_ROUNDS + 3):
            health = bench.ask(use(42), readings=(gpu,)).dcgm
            assert health is not None
            assert health.up
            if number == 0:
                assert "no data" not in caplog.text
        bench.write(P42)
        bench.ask(use(42))

    assert caplog.text.count(f"DCGM has no data (-14) of any of 1 processes: {advice}") == 1
    assert caplog.text.count("DCGM has data of processes") == 1


def test_a_process_without_data_beside_one_with(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It began before accounting did: absent, without a word."""
    bench.write(P42)

    for _ in range(SILENT_ROUNDS + 1):
        assert [one is None for one in bench.stats(use(41), use(42), use(43))] == [True, False, True]
    assert "no data" not in caplog.text


def test_blanks_are_absent(bench: Bench) -> None:
    """Of all kinds; the numbers beside them are there."""
    bench.write("pid 42 gpu=0 energy_mj=blank sm=blank+2 mem=3 max_memory=blank+3 others=blank+1 start_us=blank")

    assert bench.stats(use(42)) == [DcgmStats(memory_pct=3)]


def test_a_pid_that_is_anothers_now(bench: Bench) -> None:
    """What DCGM still says of the process before is not shown under the new one's name."""
    bench.write(P42)
    started = Facts(42, start_ticks=1, start_time_ms=1_700_000_000_000)

    assert bench.stats(replace(use(42), facts=started)) != [None]
    assert bench.stats(replace(use(42), facts=replace(started, start_time_ms=1_700_000_060_000))) == [None]


def test_exited_processes_are_not_read(bench: Bench) -> None:
    """Neither exited processes nor those the driver does not tell of; what was known of them is not shown."""
    bench.write(P42)
    bench.ask(use(42))
    gone = [replace(use(42), active=False), replace(use(42), active=None)]

    assert [one.dcgm for one in bench.collector.attach(tick(*gone)).processes] == [None, None]
    assert bench.stats(*gone) == [None, None]
    assert len(bench.calls("dcgmGetPidInfo")) == 1


def test_mig_instances_do_not_get_the_gpus_numbers(bench: Bench) -> None:
    """A process in an instance has a device of its own, of which DCGM says nothing."""
    bench.write(P42)

    assert bench.stats(use(42, Device(index=0, uuid="MIG-1", parent_uuid="GPU-a"))) == [None]


def test_a_failure_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """However long it lasts: one line when it begins, one when it ends."""
    bench.make(hostengine="node")
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            bench.ask()
            bench.later()
        bench.write("engine node", "version 4.6.0")
        for _ in range(3):
            bench.ask()

    assert caplog.text.count("DCGM statistics are missing: dcgmConnect_v2 to node") == 1
    assert caplog.text.count("DCGM 4.6.0 answers (hostengine") == 1


@pytest.mark.parametrize("call", ["dcgmInit", "dcgmStartEmbedded_v2", "dcgmWatchPidFields", "dcgmGetPidInfo"])
def test_a_call_that_does_not_return(bench: Bench, call: str, caplog: pytest.LogCaptureFixture) -> None:
    """A tick does not wait for the call, and reports it after a while; when the call returns, values are back."""
    bench.make(period_s=0.01)
    bench.write(P42, f"hang {call}")
    bench.collector.attach(tick(use(42)))
    bench.collector.start()
    _until(lambda: bool(bench.calls(call)))

    bench.later(HANGS_S + 1)
    hung = bench.collector.attach(tick(use(42)))
    bench.collector.attach(tick(use(42)))

    assert hung.dcgm is not None
    assert (hung.dcgm.up, hung.dcgm.problem and hung.dcgm.problem.what) == (False, f"{call} does not return")
    assert hung.processes[0].dcgm is None
    assert caplog.text.count(f"{call} does not return") == 1
    bench.write(P42)
    _until(lambda: bench.collector.attach(tick(use(42))).processes[0].dcgm is not None)


@pytest.mark.parametrize("later_s", [0, HANGS_S + 1], ids=["unnoticed", "known"])
def test_the_end_does_not_wait_for_it(bench: Bench, later_s: float) -> None:
    """Whether it is known by then that a call hangs, or not."""
    bench.make(period_s=0.01)
    bench.write(P42, "hang dcgmGetPidInfo")
    bench.collector.attach(tick(use(42)))
    bench.collector.start()
    _until(lambda: bool(bench.calls("dcgmGetPidInfo")))
    bench.later(later_s)

    before = time.monotonic()
    bench.collector.close()

    assert time.monotonic() - before < 2


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_thread_leaves_in_order(bench: Bench) -> None:
    """An engine in this process is stopped before the process ends."""
    bench.make(period_s=0.01)
    bench.collector.start()
    _until(lambda: bool(bench.calls("dcgmUpdateAllFields")))
    bench.collector.close()

    assert bench.calls()[-2:] == ["dcgmStopEmbedded", "dcgmShutdown"]


def test_a_bug_of_ours_does_not_end_the_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a reason like any other."""
    monkeypatch.setattr(library.Library, "call", lambda *_, **__: 1 / 0)
    assert bench.health().reason.startswith("ZeroDivisionError: division by zero; report it")

    monkeypatch.undo()
    monkeypatch.setenv("FAKE_DCGM_SCENARIO", str(bench.scenario))
    bench.later()
    assert bench.health().up


def test_answered_after_the_first_tick(bench: Bench) -> None:
    """Only after a tick has named the processes; also if DCGM cannot be read."""
    assert not bench.collector.answered()
    bench.collector.round()
    assert not bench.collector.answered()
    bench.ask(use(42))
    assert bench.collector.answered()

    bench.collector.leave()
    bench.make(library="/no/libdcgm.so.4").round()
    assert bench.collector.answered()
