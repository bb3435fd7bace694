"""What real drivers do, and how the source reads it. Facts: quirks seen on real GPUs and in other tools' issues."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuledger.driver.values import system_memory
from gpuledger.model import Reading
from tests.driver.conftest import Bench, process
from tests.fakedriver import Gpu, Mig


def test_every_reading_of_a_gpu(bench: Bench) -> None:
    """A healthy H200 fills every field but those it has no hardware for, and those that are the books'."""
    bench.scenario.gpus[0].watts = 290
    bench.scenario.processes = [process(41, sm=40, mem=10)]
    bench.write()
    bench.read()
    bench.write(f"sample 0 pid=41 ts={_stamp()} sm=40 mem=10")

    reading = bench.reading()

    hollow = {name for name in Reading.__slots__ if getattr(reading, name) in (None, ())}
    without = {"fans_pct", "accounting", "xids", "last_xid", "pcie_transmit_bytes_per_s", "pcie_receive_bytes_per_s"}
    without |= {name for name in Reading.__slots__ if name.startswith(("c2c_", "fabric_"))} - {"fabric_cluster"}
    without |= {"power_module_mw", "power_smoothing_enabled"}
    without |= {"system_memory_total_bytes", "system_memory_used_bytes"}
    assert hollow == {
        *without,
        "problem",
        "nvlink_bytes_per_s",
        "slots",
    }  # a rate, known from the eleventh tick on


@pytest.mark.parametrize(("total", "reserved"), [("none", None), (0, 0)])
def test_gpu_without_memory_of_its_own(bench: Bench, total: int | str, reserved: int | None) -> None:
    """A GPU that shares the memory of the system, like a GB10, has that memory, marked as the system's."""
    gpu = bench.scenario.gpus[0]
    gpu.memory_total, gpu.memory_reserved, gpu.memory_used = total, reserved, 0 if reserved == 0 else None
    bench.scenario.processes = [process(7, memory="na")]
    bench.write()

    reading = bench.reading(ticks=2)

    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert reading.system_memory_total_bytes == total_kib << 10
    assert 0 < (reading.system_memory_used_bytes or 0) < reading.system_memory_total_bytes
    assert (reading.memory_total_bytes, reading.memory_used_bytes, reading.memory_free_bytes) == (None, None, None)
    assert [resident.memory_bytes for resident in reading.residents or ()] == [None]


@pytest.mark.parametrize("code", [4, 999])
def test_memory_that_cannot_be_read(bench: Bench, code: int) -> None:
    """Without the permission to read the memory of a GPU, and after an error, there is no system memory instead."""
    bench.write(f"error nvmlDeviceGetMemoryInfo_v2 code={code}", f"error nvmlDeviceGetMemoryInfo code={code}")

    assert bench.reading().system_memory_total_bytes is None


def test_memory_of_the_system_that_cannot_be_read(tmp_path: Path) -> None:
    """Without the file, or with one that lacks a number, the values are absent."""
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemFree: 5 kB\n")

    assert system_memory(f"{tmp_path}/meminfo") == system_memory(f"{tmp_path}/none") == {}


def test_memory_falls_back_to_v1(bench: Bench) -> None:
    """Without the v2 call, used holds the reserved part too, and reserved is absent, not 0."""
    bench.scenario.gpus[0].memory_used = 1000
    bench.scenario.gpus[0].memory_reserved = 500
    bench.write("missing nvmlDeviceGetMemoryInfo_v2")

    reading = bench.reading()

    assert reading.memory_used_bytes == 1500
    assert reading.memory_reserved_bytes is None


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("energy_mj", "energy_mj"),
        ("util", "utilization_pct"),
        ("enc", "encoder_pct"),
        ("temperature", "temperatures_c"),
        ("pstate", "performance_state"),
        ("throttle", "clock_events"),
        ("pcie_replay", "pcie_replays"),
        ("ecc", "ecc_enabled"),
        ("gpm", "activity"),
        ("nvlinks", "nvlinks"),
    ],
)
def test_unsupported_is_absent(bench: Bench, key: str, field: str) -> None:
    """What a GPU does not support is not there, and never 0."""
    bench.scenario.gpus[0].extra = {key: "none", "memory_temperature": "none"}
    setattr(bench.scenario.gpus[0], key, "none") if hasattr(bench.scenario.gpus[0], key) else None
    bench.write()

    assert not getattr(bench.reading(ticks=2), field)


def test_unsupported_is_asked_once(bench: Bench) -> None:
    """A question the GPU does not support is not asked in every tick: a later answer is not seen until it reopens."""
    bench.write("error nvmlDeviceGetTotalEnergyConsumption code=3")
    assert bench.reading().energy_mj is None

    bench.write()

    assert bench.reading().energy_mj is None


def test_passing_error_is_absent_and_counted(bench: Bench) -> None:
    """A call that fails once costs its number in that tick, is counted, and is repeated in the next tick."""
    bench.read()
    bench.write("error nvmlDeviceGetTotalEnergyConsumption code=999 count=1")

    assert bench.reading().energy_mj is None
    assert bench.source.errors() == {("nvmlDeviceGetTotalEnergyConsumption", "Unknown Error"): 1}
    assert bench.reading().energy_mj is not None


def test_power_without_fields(bench: Bench) -> None:
    """GPUs before the power fields still tell power through the old call."""
    bench.scenario.gpus[0].watts = 123
    bench.write("missing nvmlDeviceGetFieldValues")

    reading = bench.reading()

    assert reading.power_mw == 123_000
    assert reading.power_average_mw is None


def test_lists_are_merged_without_doubles(bench: Bench) -> None:
    """A process in the compute, graphics and MPS lists is one resident, with its memory once."""
    bench.scenario.processes = [
        process(7, memory=100),
        process(7, kind="graphics", memory=100),
        process(8, kind="mps", memory=50),
    ]
    bench.write()

    residents = {(r.pid, r.kind, r.memory_bytes) for r in bench.reading().residents or ()}

    assert residents == {(7, "compute+graphics", 100), (8, "mps", 50)}


def test_memory_not_available(bench: Bench) -> None:
    """2^64-1 means the driver does not tell; it is not 16 exabytes."""
    bench.scenario.processes = [process(7, memory="na")]
    bench.write()

    (resident,) = bench.reading().residents or ()

    assert resident.memory_bytes is None


@pytest.mark.parametrize("missing", [("_v3",), ("_v3", "_v2")])
def test_older_process_lists(bench: Bench, missing: tuple[str, ...]) -> None:
    """Drivers without the v3 or v2 lists are read through the older ones."""
    bench.scenario.processes = [process(7, memory=100)]
    bench.write(*(f"missing nvmlDeviceGetComputeRunningProcesses{form}" for form in missing))

    (resident,) = bench.reading().residents or ()

    assert (resident.pid, resident.memory_bytes) == (7, 100)


def test_list_that_grows_between_two_calls(bench: Bench) -> None:
    """INSUFFICIENT_SIZE again and again is retried with more room, not failed."""
    bench.scenario.processes = [process(pid, memory=1) for pid in range(1000, 1100)]
    bench.write("insufficient nvmlDeviceGetComputeRunningProcesses_v3 count=3")

    assert len(bench.reading().residents or ()) == 100


def test_failed_list_is_not_an_empty_one(bench: Bench) -> None:
    """When the compute list fails, the residents are unknown: no process counts as gone."""
    bench.scenario.processes = [process(7, memory=100)]
    bench.write("error nvmlDeviceGetComputeRunningProcesses_v3 code=999 count=1")

    assert bench.reading().residents is None
    assert len(bench.reading().residents or ()) == 1


def _stamp() -> int:
    return int(time.time() * 1e6)


def test_samples_not_found_is_idle(bench: Bench) -> None:
    """NOT_FOUND means nothing ran: an empty answer, not an unsupported one."""
    bench.write()

    assert bench.reading(ticks=2).samples == ()


def test_first_samples_are_dropped(bench: Bench) -> None:
    """The first answer covers the past or says 100 whatever happened; it only sets the starting point."""
    stamp = _stamp()
    bench.write("firstlie 0", f"sample 0 pid=7 ts={stamp} sm=40 mem=10")
    first = bench.reading()
    bench.write(f"sample 0 pid=7 ts={stamp + 1} sm=30 mem=10")
    second = bench.reading()

    assert first.samples is None
    assert first.utilization_pct is None
    assert [(s.pid, s.sm_pct) for s in second.samples or ()] == [(7, 30)]


def test_each_sample_is_used_once(bench: Bench) -> None:
    """Rows of different processes have different times; asking from the latest of them repeats none."""
    bench.reading()
    stamp = _stamp() - 500_000
    rows = (f"sample 0 pid=7 ts={stamp} sm=40 mem=1", f"sample 0 pid=8 ts={stamp + 100_000} sm=20 mem=1")
    bench.write(*rows)

    first, second = bench.reading().samples or (), bench.reading().samples

    assert [(s.pid, s.timestamp_us) for s in first] == [(7, stamp), (8, stamp + 100_000)]
    assert second == ()


def test_garbage_rows_are_dropped(bench: Bench) -> None:
    """Rows over 100 %, stale rows, rows of pid 0 and rows from the future are the driver's inventions."""
    bench.reading()
    stamp = _stamp()
    bench.write(
        f"sample 0 pid=7 ts={stamp} sm=4294967295 mem=0",
        f"sample 0 pid=8 ts={stamp} sm=10 mem=4000000000",
        "sample 0 pid=9 ts=1 sm=10 mem=1 always=1",
        f"sample 0 pid=10 ts={stamp + 3_600_000_000} sm=10 mem=1",
        f"sample 0 pid=0 ts={stamp} sm=10 mem=1",
        f"sample 0 pid=11 ts={stamp} sm=12 mem=1",
    )

    assert [(s.pid, s.sm_pct) for s in bench.reading().samples or ()] == [(11, 12)]


def test_row_from_the_future_does_not_block_later_ones(bench: Bench) -> None:
    """An invented time must not become the start of the next request."""
    bench.reading()
    bench.write(f"sample 0 pid=10 ts={_stamp() + 3_600_000_000} sm=10 mem=1")
    bench.reading()
    bench.write(f"sample 0 pid=11 ts={_stamp()} sm=12 mem=1")

    assert [s.pid for s in bench.reading().samples or ()] == [11]


def test_newest_row_of_a_process_wins(bench: Bench) -> None:
    """Two rows of one process in an answer: the newer one counts."""
    bench.reading()
    stamp = _stamp()
    bench.write(f"sample 0 pid=7 ts={stamp} sm=40 mem=1", f"sample 0 pid=7 ts={stamp - 9} sm=99 mem=1")

    assert [(s.pid, s.sm_pct) for s in bench.reading().samples or ()] == [(7, 40)]


@pytest.mark.parametrize("new_call", ["missing nvmlDeviceGetProcessesUtilizationInfo", ""])
def test_both_utilization_calls(bench: Bench, new_call: str) -> None:
    """The newer call is used where it is, the older one where it is missing, with the same result."""
    extra = [new_call] if new_call else ["missing nvmlDeviceGetProcessUtilization"]
    bench.write(*extra)
    bench.reading()
    bench.write(*extra, f"sample 0 pid=7 ts={_stamp()} sm=40 mem=10 enc=3 dec=4")

    (sample,) = bench.reading().samples or ()

    assert (sample.sm_pct, sample.memory_pct, sample.encoder_pct, sample.decoder_pct) == (40, 10, 3, 4)


def test_samples_insufficient_size(bench: Bench) -> None:
    """More rows than there was room for are fetched with more room."""
    bench.reading()
    stamp = _stamp()
    rows = [f"sample 0 pid={pid} ts={stamp} sm=1 mem=0" for pid in range(1000, 1080)]
    bench.write("insufficient nvmlDeviceGetProcessesUtilizationInfo count=2", *rows)

    assert len(bench.reading().samples or ()) == 80


def test_impossible_percentages_are_absent(bench: Bench) -> None:
    """Utilization over 100 % and unknown performance states are no numbers."""
    bench.scenario.gpus[0].extra = {"enc": 255, "pstate": 32}
    bench.scenario.gpus[0].util = 101
    bench.write()

    reading = bench.reading(ticks=2)

    assert (reading.utilization_pct, reading.encoder_pct, reading.performance_state) == (None, None, None)


def test_graphics_activity_without_samples(bench: Bench) -> None:
    """GPM measures graphics activity if the GPU works and no sample has arrived; else it is that of the samples."""
    bench.scenario.gpus[0] = Gpu(index=0, util=90, extra={"gpm.graphics": 80.0})
    bench.scenario.processes = [process(1)]
    bench.write()
    activity = bench.reading(3).activity
    assert activity is not None
    assert activity.graphics_pct == 80.0

    bench.scenario.processes = [process(1, sm=60)]
    bench.write()
    bench.until(lambda tick: getattr(tick.readings[0].activity, "graphics_pct", None) == 60.0)


def test_gpm_needs_two_readings(bench: Bench) -> None:
    """Activity is measured between two readings: none after the first, a value after the second."""
    bench.scenario.gpus[0].extra = {"gpm.tensor": 43.5, "gpm.dram": 12.25}
    bench.write()

    first, second = bench.reading(), bench.reading()

    assert first.activity is None
    assert second.activity is not None
    assert (second.activity.tensor_pct, second.activity.dram_pct) == (43.5, 12.25)


def test_accounting_where_it_is_on(bench: Bench) -> None:
    """Accounts are read for residents when accounting mode is on, and not asked for when it is off."""
    bench.scenario.gpus[0].accounting = 1
    bench.scenario.processes = [process(7), process(8)]
    bench.write("accounting 0 pid=7 gpu=30 mem=10 max_memory=5000 time_ms=0 start_us=5 running=1")

    (account,) = bench.reading().accounting

    assert (account.pid, account.gpu_pct, account.memory_pct, account.peak_memory_bytes) == (7, 30, 10, 5000)


def test_accounting_of_those_that_came_and_went(bench: Bench) -> None:
    """Each process that ended since the last reading is reported once; earlier ones are ignored."""
    bench.scenario.gpus[0].accounting = 1
    bench.scenario.processes = [process(7)]
    ended = [f"accounting 0 pid={pid} gpu=60 mem=10 max_memory=5 time_ms=500 start_us=5 running=0" for pid in (8, 9)]
    running = "accounting 0 pid=7 gpu=30 mem=10 max_memory=5000 time_ms=0 start_us=5 running=1"

    def read(*lines: str) -> list[tuple[int, bool]]:
        bench.write(running, *lines)
        return [(account.pid, account.running) for account in bench.reading().accounting]

    assert read(ended[0]) == [(7, True)]
    assert read(*ended) == [(7, True), (9, False)]
    assert read(*ended, "error nvmlDeviceGetAccountingPids code=999") == [(7, True)]
    assert read(*ended) == [(7, True)]
    late = "accounting 0 pid=10 gpu=60 mem=10 max_memory=5 time_ms=500 start_us=5 running={}"
    assert read(*ended, late.format(1)) == [(7, True), (10, True)]
    assert read(*ended, late.format(0)) == [(7, True), (10, False)]


def test_mig_instances_are_devices_with_a_parent(bench: Bench) -> None:
    """Instances have memory, activity and residents of their own; what MIG forbids on the GPU is absent there."""
    bench.scenario.gpus[0].mig = 1
    bench.scenario.migs = [
        Mig(gpu=0, gi=1, uuid="MIG-1", memory_total=1000, memory_used=300, extra={"gpm.sm": 20.0}),
        Mig(gpu=0, gi=2, uuid="MIG-2", memory_total=1000, memory_used=0, sms=32),
    ]
    bench.scenario.processes = [process(7, memory=300, gi=1, ci=0)]
    bench.write()
    for _ in range(100):  # instances are sampled between ticks, one after the other
        gpu, first, second = bench.read().readings
        if first.activity is not None and second.activity is not None:
            break
        time.sleep(0.02)

    assert (gpu.mig_enabled, gpu.utilization_pct, gpu.samples) == (True, None, None)
    assert first.device.parent_uuid == gpu.device.uuid
    assert (first.device.uuid, first.device.gpu_instance_id, first.device.mig_profile) == ("MIG-1", 1, "1g.18gb")
    assert (first.memory_used_bytes, [r.pid for r in first.residents or ()]) == (300, [7])
    assert first.activity is not None
    assert first.activity.sm_pct == 20.0
    assert (second.device.multiprocessors, second.residents) == (32, ())


def test_mig_switched_on_while_running(bench: Bench) -> None:
    """Instances appear, and what the GPU supports is found out anew, within ten ticks."""
    bench.reading()
    bench.scenario.gpus[0].mig = 1
    bench.scenario.migs = [Mig(gpu=0, gi=1, uuid="MIG-1")]
    bench.write()

    tick = bench.until(lambda t: len(t.readings) == 2, tries=12)

    assert tick.readings[1].device.uuid == "MIG-1"
    bench.scenario.gpus[0].mig = 0
    bench.scenario.migs = []
    bench.write()
    bench.until(lambda t: len(t.readings) == 1 and t.readings[0].utilization_pct is not None, tries=13)


def test_mig_instance_that_goes_takes_nothing_along(bench: Bench) -> None:
    """Until its handle is looked for again it fails, and only for itself: the GPU and the others keep their memory."""
    bench.scenario.gpus[0].mig = 1
    bench.scenario.migs = [Mig(gpu=0, gi=1, uuid="MIG-1"), Mig(gpu=0, gi=2, uuid="MIG-2")]
    bench.write()
    bench.read()
    bench.scenario.migs.pop(0)
    bench.write()

    for _ in range(12):
        tick = bench.read()

    assert [r.device.uuid for r in tick.readings[1:]] == ["MIG-2"]
    assert all(r.memory_used_bytes is not None for r in tick.readings)


def test_what_worked_once_is_not_given_up(bench: Bench) -> None:
    """A call that worked and then says it is unsupported failed this time; another call is no substitute for it."""
    bench.scenario.gpus[0].memory_used = 1000
    bench.write()
    bench.read()
    bench.write("error nvmlDeviceGetMemoryInfo_v2 code=2 count=1")

    failed, again = bench.reading(), bench.reading()

    assert (failed.memory_used_bytes, again.memory_used_bytes) == (None, 1000)


@pytest.mark.parametrize(
    ("told", "licensed"),
    [(0, False), (1, False), (2, True), ("none", False)],
    ids=["bare metal", "not licensed", "one of two features", "a GPU that knows of none"],
)
def test_vgpu_license(bench: Bench, told: int | str, licensed: bool) -> None:
    """Whether any feature is licensed; False without support for licenses."""
    bench.scenario.gpus[0].extra = {"vgpu_license": told}
    bench.write()

    assert bench.reading().vgpu_licensed is licensed


def test_vgpu_license_of_a_driver_without_the_call(bench: Bench) -> None:
    """It knows of no licenses, so there is none."""
    bench.write("missing nvmlDeviceGetGridLicensableFeatures_v4")
    assert bench.reading().vgpu_licensed is False


def test_vgpu_license_that_is_not_told(bench: Bench) -> None:
    """A call that fails this time is no answer."""
    bench.write("error nvmlDeviceGetGridLicensableFeatures_v4 code=999")
    assert bench.reading().vgpu_licensed is None


def test_pcie_throughput_only_when_asked(bench: Bench) -> None:
    """The call blocks 21 ms, so it is not made by default."""
    bench.write("latency nvmlDeviceGetPcieThroughput us=1")

    assert bench.reading().pcie_transmit_bytes_per_s is None


def test_nvlink_traffic_between_two_readings(bench: Bench) -> None:
    """Both ways together; nothing before there are two readings, nor when the counters fell."""
    gpu = bench.scenario.gpus[0]
    rates = []
    for kib in (0, 1 << 30, 5):
        gpu.extra = {"nvlink_tx_kib": kib, "nvlink_rx_kib": kib}
        bench.write()
        rates.append(bench.reading(10).nvlink_bytes_per_s)

    assert rates[0] is None
    assert rates[1] is not None
    assert rates[1] > 1 << 30
    assert rates[2] is None


def test_xids_are_counted_by_code(bench: Bench) -> None:
    """Each XID event counts once under its code, and counts survive a reload of the driver."""
    bench.read()
    bench.write("xid 0 code=79 seq=1", "xid 0 code=79 seq=2", "xid 0 code=31 seq=3")
    tick = bench.until(lambda t: sum(n for _, n in t.readings[0].xids) >= 3)
    assert tick.readings[0].xids == (("31", 1), ("79", 2))
    assert tick.readings[0].last_xid == 31

    bench.write("unloaded")
    bench.until(lambda t: not t.driver.up)
    bench.write()

    assert bench.until(lambda t: t.driver.up).readings[0].xids == (("31", 1), ("79", 2))
