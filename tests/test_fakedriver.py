"""The fake driver says through the real pynvml what the scenario says."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakedriver import Gpu, Mig, Process, Scenario, environment, h200_node

T0 = 1_700_000_000.0
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 1, 2, 3, 6, 7
DRIVER_NOT_LOADED, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST = 9, 10, 13, 15

# pynvml loads one library for the life of a process, so it runs in a child that evaluates one
# expression a line; an NVML error comes back as {"error": code}.
CHILD = """
import ctypes, json, sys, threading, time
import pynvml as n
def h(i=0): return n.nvmlDeviceGetHandleByIndex(i)
def mig(i=0): return n.nvmlDeviceGetMigDeviceHandleByIndex(h(), i)
def pids(rows): return [p.pid for p in rows]
def gpm(device, get, *ids):
    first, second = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
    get(device, first), get(device, second)
    ask = n.c_nvmlGpmMetricsGet_t(n.NVML_GPM_METRICS_GET_VERSION, len(ids), first, second)
    for i, metric in enumerate(ids): ask.metrics[i].metricId = metric
    n.nvmlGpmMetricsGet(ask)
    return [[ask.metrics[i].nvmlReturn, ask.metrics[i].value] for i in range(len(ids))]
events = None
def watch(i=0):
    global events
    events = n.nvmlEventSetCreate()
    n.nvmlDeviceRegisterEvents(h(i), n.nvmlEventTypeXidCriticalError, events)
def wait(ms):
    event = n.nvmlEventSetWait_v2(events, ms)
    return [event.eventType, event.eventData, n.nvmlDeviceGetIndex(event.device)]
def timed(call):
    began = time.monotonic(); call(); return time.monotonic() - began
for line in sys.stdin:
    try: answer = eval(line)
    except n.NVMLError as error: answer = {"error": error.value}
    print(json.dumps(answer), flush=True)
"""


class Client:
    """A child process that talks to the fake driver through pynvml."""

    def __init__(self, scenario: Path, calls: Path) -> None:
        env = os.environ | environment(scenario, calls)
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, expression: str) -> None:
        """Ask without waiting for the answer."""
        assert self.child.stdin is not None
        self.child.stdin.write(expression + "\n")
        self.child.stdin.flush()

    def answered(self, within_s: float) -> bool:
        """Whether an answer came in time."""
        assert self.child.stdout is not None
        return bool(select.select([self.child.stdout], [], [], within_s)[0])

    def receive(self) -> Any:
        """The answer to what was sent."""
        assert self.child.stdout is not None
        assert self.answered(10), "no answer from the child"
        return json.loads(self.child.stdout.readline())

    def __call__(self, expression: str) -> Any:
        """Ask and wait for the answer."""
        self.send(expression)
        return self.receive()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the scenario is written."""
    return tmp_path / "scenario"


@pytest.fixture
def ask(path: Path, tmp_path: Path) -> Iterator[Client]:
    """A client of the fake driver that reads the scenario at `path`."""
    client = Client(path, tmp_path / "calls")
    yield client
    client.child.kill()
    client.child.communicate()


def test_values_come_through(path: Path, ask: Client) -> None:
    """What a scenario says of a GPU and its processes is what pynvml returns; defaults are an H200's."""
    gpu = Gpu(
        index=0,
        uuid="GPU-a",
        name="NVIDIA H200 NVL",
        watts=290.5,
        temperature=45,
        throttle="0x4",
        extra={"memory_temperature": 50},
    )
    Scenario(gpus=[gpu, Gpu(index=1)], processes=[Process(gpu=0, pid=7, memory=5, sm=40, mem=10)]).write(path)
    ask("n.nvmlInit()")
    assert ask("n.nvmlDeviceGetCount()") == 2
    assert ask("[n.nvmlDeviceGetUUID(h()), n.nvmlDeviceGetName(h()), n.nvmlDeviceGetName(h(1))]") == [
        "GPU-a",
        "NVIDIA H200 NVL",
        "NVIDIA H200",
    ]
    assert ask(
        "[n.nvmlDeviceGetPowerUsage(h()), n.nvmlDeviceGetTemperature(h(), 0), n.nvmlDeviceGetTemperatureV(h(), 0)]"
    ) == [290500, 45, 45]
    assert ask("n.nvmlDeviceGetCurrentClocksEventReasons(h())") == 4
    assert ask("[n.nvmlDeviceGetUtilizationRates(h()).gpu, n.nvmlDeviceGetUtilizationRates(h()).memory]") == [40, 10]
    assert ask(
        "[[p.pid, p.usedGpuMemory, p.gpuInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses_v3(h())]"
    ) == [[7, 5, 0xFFFFFFFF]]
    assert ask("n.nvmlDeviceGetGraphicsRunningProcesses_v3(h())") == []
    assert ask("[[v.nvmlReturn, v.value.uiVal] for v in n.nvmlDeviceGetFieldValues(h(), [82, 186, 9999])]") == [
        [0, 50],
        [0, 290500],
        [NOT_SUPPORTED, 0],
    ]
    assert ask("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID('GPU-a'))") == 0
    assert ask("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(h(1)).busId))") == 1
    assert ask("h(2)") == {"error": INVALID_ARGUMENT}
    assert ask("n.nvmlDeviceGetFanSpeed(h())") == {"error": NOT_SUPPORTED}


def test_every_pynvml_symbol_exists(ask: Client) -> None:
    """No wrapper of pynvml fails for want of a symbol: what is not modelled says NOT_SUPPORTED."""
    names = """set(__import__("re").findall(r'_nvmlGetFunctionPointer\\("(\\w+)"', open(n.__file__).read()))"""
    missing = f"[name for name in {names} if not hasattr(ctypes.CDLL('libnvidia-ml.so.1'), name)]"
    assert ask(missing) == []


def test_live_change(path: Path, ask: Client) -> None:
    """A rewritten scenario is seen by the next call, on handles taken before."""
    scenario = Scenario(gpus=[Gpu(index=0, util=10)])
    scenario.write(path)
    ask("n.nvmlInit()")
    assert ask("[globals().update(kept=h()), n.nvmlDeviceGetUtilizationRates(kept).gpu][1]") == 10
    scenario.gpus[0].util = 90
    scenario.processes.append(Process(gpu=0, pid=5))
    scenario.write(path)
    assert ask("[n.nvmlDeviceGetUtilizationRates(kept).gpu, pids(n.nvmlDeviceGetComputeRunningProcesses(kept))]") == [
        90,
        [5],
    ]


def test_energy_rises_and_survives_rewriting(path: Path, ask: Client) -> None:
    """The counter grows at the watts in 100 ms steps, and a change of the watts makes it neither jump nor fall."""
    scenario = Scenario(gpus=[Gpu(index=0, watts=300, energy_mj=1000)], clock=T0)
    scenario.write(path)
    ask("n.nvmlInit()")
    energy = "n.nvmlDeviceGetTotalEnergyConsumption(h())"
    assert ask(energy) == 1000
    scenario.clock = T0 + 10.17
    scenario.write(path)
    assert ask(energy) == 1000 + 10_100 * 300
    scenario.set_watts(0, 100)
    scenario.write(path)
    assert ask(energy) == 1000 + 10_170 * 300
    scenario.clock = T0 + 20.17
    scenario.write(path)
    assert ask(energy) == 1000 + 10_170 * 300 + 9_930 * 100
    assert ask("n.nvmlDeviceGetFieldValues(h(), [83])[0].value.ullVal") == ask(energy)


def test_both_memory_calls(path: Path, ask: Client) -> None:
    """The old call counts reserved memory as used, the new one tells it apart; an unknown process memory is 2^64-1."""
    Scenario(
        gpus=[Gpu(index=0, memory_total=1000, memory_reserved=50)],
        processes=[Process(gpu=0, pid=1, memory=200), Process(gpu=0, pid=2, memory="na")],
    ).write(path)
    ask("n.nvmlInit()")
    assert ask("[(m := n.nvmlDeviceGetMemoryInfo(h())).total, m.used, m.free]") == [1000, 250, 750]
    assert ask("[(m := n.nvmlDeviceGetMemoryInfo(h(), n.nvmlMemory_v2)).total, m.reserved, m.used, m.free]") == [
        1000,
        50,
        200,
        750,
    ]
    assert ask("[p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h())]") == [200, None]


def test_errors_and_counts(path: Path, ask: Client) -> None:
    """An error rule hits one GPU or all, always or so many times, and `missing` looks like an old library."""
    scenario = Scenario(gpus=[Gpu(index=0), Gpu(index=1)])
    scenario.extra = [
        "error nvmlDeviceGetPowerUsage gpu=1 code=15",
        "error nvmlDeviceGetSerial code=999 count=2",
        "missing nvmlDeviceGetMemoryInfo_v2",
    ]
    scenario.write(path)
    ask("n.nvmlInit()")
    assert ask("n.nvmlDeviceGetPowerUsage(h(0))") == 80000
    assert [ask("n.nvmlDeviceGetPowerUsage(h(1))") for _ in range(2)] == [{"error": GPU_IS_LOST}] * 2
    assert [ask("len(n.nvmlDeviceGetSerial(h()))") for _ in range(3)] == [{"error": 999}, {"error": 999}, 13]
    assert ask("n.nvmlDeviceGetMemoryInfo(h(), n.nvmlMemory_v2)") == {"error": FUNCTION_NOT_FOUND}
    scenario.extra = ["error nvmlDeviceGet* gpu=0 code=4", "lost 1"]
    scenario.write(path)
    assert ask("n.nvmlDeviceGetHandleByIndex(1)") == {"error": GPU_IS_LOST}
    assert ask("n.nvmlDeviceGetHandleByIndex(0)") == {"error": 4}
    assert ask("n.nvmlDeviceGetCount()") == 2


def test_latency(path: Path, ask: Client) -> None:
    """A slow call takes at least its time, others do not, and slow calls of two threads overlap."""
    Scenario(gpus=[Gpu(index=0), Gpu(index=1)], extra=["latency nvmlDeviceGetName us=50000 gpu=0"]).write(path)
    ask("n.nvmlInit()")
    assert ask("timed(lambda: n.nvmlDeviceGetName(h(0)))") >= 0.05
    assert ask("timed(lambda: n.nvmlDeviceGetName(h(1)))") < 0.05
    crowd = "[threading.Thread(target=n.nvmlDeviceGetName, args=(h(0),)) for _ in range(20)]"
    assert ask(f"timed(lambda: [t.join() for t in [t for t in {crowd} if not t.start()]])") < 20 * 0.05


def test_h200_profile(path: Path, ask: Client) -> None:
    """The H200 profile makes the energy call slow, and only the first power reading of a 100 ms period."""
    h200_node(1, 1, latency=True).write(path)
    ask("n.nvmlInit()")
    assert ask("timed(lambda: n.nvmlDeviceGetTotalEnergyConsumption(h()))") >= 0.0048
    assert ask("min(timed(lambda: n.nvmlDeviceGetPowerUsage(h())) for _ in range(5))") < 0.0036


def test_hang_and_release(path: Path, ask: Client) -> None:
    """A hanging call answers nothing until its line goes away, and does not block other GPUs meanwhile."""
    scenario = Scenario(gpus=[Gpu(index=0), Gpu(index=1)], extra=["hang nvmlDeviceGetPowerUsage gpu=0"])
    scenario.write(path)
    ask("n.nvmlInit()")
    ask("globals().update(done=[])")
    ask("threading.Thread(target=lambda: done.append(n.nvmlDeviceGetPowerUsage(h(0)))).start()")
    assert ask("n.nvmlDeviceGetPowerUsage(h(1))") == 80000
    assert ask("done") == []
    ask.send("n.nvmlDeviceGetPowerUsage(h(0))")
    assert not ask.answered(0.1)
    scenario.extra.clear()
    scenario.write(path)
    assert ask.receive() == 80000


def test_unloaded(path: Path, ask: Client) -> None:
    """No file, an `unloaded` line and a broken file are a driver that is not there; sessions end with the driver."""
    assert ask("n.nvmlInit()") == {"error": DRIVER_NOT_LOADED}
    Scenario(gpus=[Gpu(index=0)]).write(path)
    assert ask("n.nvmlInit()") is None
    Scenario(extra=["unloaded"]).write(path)
    assert ask("n.nvmlDeviceGetCount()") == {"error": UNINITIALIZED}
    assert ask("n.nvmlInit()") == {"error": DRIVER_NOT_LOADED}
    Scenario(gpus=[Gpu(index=0, extra={"colour": 1})]).write(path)
    assert ask("n.nvmlInit()") == {"error": DRIVER_NOT_LOADED}
    Scenario(gpus=[Gpu(index=0)]).write(path)
    assert ask("n.nvmlDeviceGetCount()") == {"error": UNINITIALIZED}
    assert ask("n.nvmlInit() or n.nvmlDeviceGetCount()") == 1


def test_process_utilization(path: Path, ask: Client) -> None:
    """Rows carry the newest 200 ms mark, appear once for a lastSeen, and are the same from both calls."""
    processes = [
        Process(gpu=0, pid=1, sm=40, mem=10),
        Process(gpu=0, pid=2),
        Process(gpu=0, pid=1, kind="graphics", sm=40),
    ]
    scenario = Scenario(gpus=[Gpu(index=0)], processes=processes, clock=T0 + 0.5)
    scenario.write(path)
    ask("n.nvmlInit()")
    stamp = int(T0 * 1_000_000) + 400_000
    rows = "[[u.pid, u.timeStamp, u.smUtil, u.memUtil] for u in n.{}(h(), {})]"
    for call in ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"):
        assert ask(rows.format(call, stamp - 1)) == [[1, stamp, 40, 10]]
        assert ask(rows.format(call, stamp)) == {"error": NOT_FOUND}
    scenario.extra = [f"sample 0 pid=9 ts={stamp + 7} sm=4294967295 mem=1", f"sample 0 pid=8 ts={stamp - 7} always=1"]
    scenario.write(path)
    assert ask(rows.format("nvmlDeviceGetProcessUtilization", stamp)) == [
        [9, stamp + 7, 4294967295, 1],
        [8, stamp - 7, 0, 0],
    ]


def test_buffered_samples(path: Path, ask: Client) -> None:
    """Power every 20 ms and utilization every 200 ms, each once for a lastSeen, in buffers of limited size."""
    scenario = Scenario(gpus=[Gpu(index=0, watts=290, util=60, memutil="none")], clock=T0 + 0.5)
    scenario.write(path)
    ask("n.nvmlInit()")
    start = int(T0 * 1_000_000)
    rows = "(lambda r: [r[0], [[s.timeStamp, s.sampleValue.uiVal] for s in r[1]]])(n.nvmlDeviceGetSamples(h(), {}, {}))"
    assert ask(rows.format(0, start + 450_000)) == [1, [[start + at, 290_000] for at in (460_000, 480_000, 500_000)]]
    assert ask(rows.format(1, start)) == [1, [[start + 200_000, 60], [start + 400_000, 60]]]
    assert ask(rows.format(1, start + 400_000)) == {"error": NOT_FOUND}
    assert [len(ask(rows.format(kind, 0))[1]) for kind in (0, 1)] == [119, 71]
    assert ask(rows.format(2, 0)) == {"error": NOT_SUPPORTED}
    scenario.gpus[0].mig = 1
    scenario.write(path)
    assert ask(rows.format(1, 0)) == {"error": NOT_SUPPORTED}


def test_first_reading_lies(path: Path, ask: Client) -> None:
    """With `firstlie` the first utilization of each session is 100, then the truth."""
    Scenario(gpus=[Gpu(index=0, util=5)], processes=[Process(gpu=0, pid=1, sm=5)], extra=["firstlie 0"]).write(path)
    ask("n.nvmlInit()")
    assert ask("[n.nvmlDeviceGetUtilizationRates(h()).gpu for _ in range(2)]") == [100, 5]
    assert ask("[n.nvmlDeviceGetProcessUtilization(h(), 0)[0].smUtil for _ in range(2)]") == [100, 5]
    ask("n.nvmlShutdown() or n.nvmlInit()")
    assert ask("n.nvmlDeviceGetUtilizationRates(h()).gpu") == 100


def test_insufficient_size_race(path: Path, ask: Client) -> None:
    """A list that grows between the sizing and the filling call fails as often as asked, then comes."""
    extra = [
        "insufficient nvmlDeviceGetProcessUtilization gpu=0 count=2",
        "insufficient nvmlDeviceGetComputeRunningProcesses_v3 count=1",
    ]
    Scenario(gpus=[Gpu(index=0)], processes=[Process(gpu=0, pid=1, sm=5)], extra=extra).write(path)
    ask("n.nvmlInit()")
    failed = {"error": INSUFFICIENT_SIZE}
    assert [ask("pids(n.nvmlDeviceGetProcessUtilization(h(), 0))") for _ in range(3)] == [failed, failed, [1]]
    assert [ask("pids(n.nvmlDeviceGetComputeRunningProcesses_v3(h()))") for _ in range(2)] == [failed, [1]]


def test_mig(path: Path, ask: Client) -> None:
    """With MIG on the parent lists all processes and loses utilization; each instance has its own memory, pids, GPM."""
    Scenario(
        gpus=[Gpu(index=0, mig=1, accounting=1)],
        migs=[
            Mig(gpu=0, gi=1, uuid="MIG-a", memory_total=500, extra={"gpm.sm": 11}),
            Mig(gpu=0, gi=2, profile="3g.71gb", extra={"gpm.sm": 22}),
        ],
        processes=[Process(gpu=0, pid=1, gi=1, ci=0, memory=100), Process(gpu=0, pid=2, gi=2, ci=0)],
    ).write(path)
    ask("n.nvmlInit()")
    assert ask("n.nvmlDeviceGetMigMode(h())") == [1, 1]
    for call in (
        "n.nvmlDeviceGetUtilizationRates(h())",
        "n.nvmlDeviceGetProcessUtilization(h(), 0)",
        "n.nvmlDeviceGetAccountingMode(h())",
    ):
        assert ask(call) == {"error": NOT_SUPPORTED}
    assert ask("[pids(n.nvmlDeviceGetComputeRunningProcesses(d)) for d in (h(), mig(0), mig(1))]") == [[1, 2], [1], [2]]
    assert ask("[(m := n.nvmlDeviceGetMemoryInfo(mig(0))).total, m.used]") == [500, 100]
    assert ask("[n.nvmlDeviceGetUUID(mig(0)), n.nvmlDeviceGetName(mig(1))]") == ["MIG-a", "NVIDIA H200 MIG 3g.71gb"]
    assert ask("[n.nvmlDeviceGetGpuInstanceId(mig(1)), n.nvmlDeviceGetAttributes(mig(1)).gpuInstanceSliceCount]") == [
        2,
        3,
    ]
    assert ask("n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig(1)))") == 0
    assert ask("gpm(h(), lambda d, s: n.nvmlGpmMigSampleGet(d, 2, s), 2)") == [[0, 22]]
    assert ask("mig(2)") == {"error": NOT_FOUND}
    assert ask("n.nvmlDeviceGetPowerUsage(mig(0))") == {"error": NOT_SUPPORTED}


def test_gpm(path: Path, ask: Client) -> None:
    """Two samples give the metrics of the scenario; what is `none` or unknown fails by itself."""
    scenario = Scenario(gpus=[Gpu(index=0, extra={"gpm.sm": 41.5, "gpm.dram": 7.25, "gpm.fp16": "none"})])
    scenario.write(path)
    ask("n.nvmlInit()")
    assert ask("n.nvmlGpmQueryDeviceSupport(h()).isSupportedDevice") == 1
    assert ask("gpm(h(), n.nvmlGpmSampleGet, 2, 10, 13, 5, 300)") == [
        [0, 41.5],
        [0, 7.25],
        [NOT_SUPPORTED, 0],
        [0, 0],
        [NOT_SUPPORTED, 0],
    ]
    scenario.gpus[0].extra["gpm"] = 0
    scenario.write(path)
    assert ask("gpm(h(), n.nvmlGpmSampleGet, 2)") == {"error": NOT_SUPPORTED}


@pytest.mark.parametrize("misuse", ["n.nvmlGpmSampleFree(freed)", "n.nvmlGpmSampleGet(h(), freed)"])
def test_sample_that_was_freed(path: Path, ask: Client, misuse: str) -> None:
    """The program ends, so that no test passes by luck."""
    Scenario(gpus=[Gpu(index=0)]).write(path)
    ask("n.nvmlInit()")
    ask("globals().update(freed=n.nvmlGpmSampleAlloc()) or n.nvmlGpmSampleFree(freed) and None")

    ask.send(misuse)

    assert ask.child.wait(10) == -signal.SIGABRT


def test_xid_delivered_once(path: Path, ask: Client) -> None:
    """Each sequence number of an XID reaches a waiting event set once; waiting for nothing times out."""
    scenario = Scenario(gpus=[Gpu(index=0), Gpu(index=1)])
    scenario.write(path)
    ask("n.nvmlInit() or watch(1)")
    assert ask("wait(1)") == {"error": TIMEOUT}
    ask.send("wait(5000)")
    scenario.extra = ["xid 0 code=13 seq=1", "xid 1 code=79 seq=1"]
    scenario.write(path)
    assert ask.receive() == [8, 79, 1]
    assert ask("wait(1)") == {"error": TIMEOUT}
    scenario.extra += ["xid 1 code=48 seq=2"]
    scenario.write(path)
    assert ask("wait(1)") == [8, 48, 1]


def test_accounting(path: Path, ask: Client) -> None:
    """Accounting is off unless asked for; its second version exists from driver 610 on."""
    scenario = Scenario(
        gpus=[Gpu(index=0)], extra=["accounting 0 pid=7 gpu=30 mem=10 max_memory=5 time_ms=9 samples=3 running=1"]
    )
    scenario.write(path)
    ask("n.nvmlInit()")
    assert ask("n.nvmlDeviceGetAccountingStats(h(), 7)") == {"error": NOT_FOUND}
    scenario.gpus[0].accounting = 1
    scenario.write(path)
    assert ask("n.nvmlDeviceGetAccountingPids(h())") == [7]
    assert ask("[(a := n.nvmlDeviceGetAccountingStats(h(), 7)).gpuUtilization, a.maxMemoryUsage, a.isRunning]") == [
        30,
        5,
        1,
    ]
    assert ask("n.nvmlDeviceGetAccountingStats_v2(h(), 7)") == {"error": FUNCTION_NOT_FOUND}
    scenario.driver = "610.10"
    scenario.write(path)
    assert ask("[(a := n.nvmlDeviceGetAccountingStats_v2(h(), 7)).sampleCount, a.sumGpuUtil]") == [3, 9000]


def test_frozen_clock_is_deterministic(path: Path, ask: Client) -> None:
    """With a frozen clock two rounds of reading are equal to the byte, whenever they are made."""
    scenario = h200_node(2, 2)
    scenario.clock = T0 + 123.4
    for gpu in scenario.gpus:
        gpu.energy_at = T0
    scenario.write(path)
    ask("n.nvmlInit()")
    energy = "n.nvmlDeviceGetTotalEnergyConsumption(h(1))"
    rows = "str(n.nvmlDeviceGetProcessUtilization(h(1), 0)[1])"
    stamp = "n.nvmlDeviceGetFieldValues(h(1), [186])[0].timestamp"
    everything = f"[{energy}, {rows}, {stamp}]"
    first = ask(everything)
    assert first == ask(everything)
    assert first[0] == 123_400 * 300


def test_a_call_never_sees_half_a_scenario(path: Path, ask: Client) -> None:
    """Readers on many threads see the old or the new scenario while it is replaced again and again."""
    scenario = Scenario(gpus=[Gpu(index=0, memory_total=1 << 40)])
    scenario.write(path)
    ask("n.nvmlInit()")
    ask("globals().update(seen=set(), stop=[])")
    sizes = "{p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h())}"
    read = f"while not stop: seen.add(tuple({sizes}))"
    ask(f"[threading.Thread(target=exec, args=({read!r}, globals()), daemon=True).start() for _ in range(8)] and 0")
    for generation in range(1, 60):
        scenario.processes = [Process(gpu=0, pid=p, memory=generation) for p in range(1, 5)]
        scenario.write(path)
    mixed = ask("[stop.append(1), time.sleep(0.05), [s for s in seen if len(s) > 1], len(seen)]")
    assert mixed[2] == []
    assert mixed[3] > 1


def test_calls_are_counted(path: Path, ask: Client, tmp_path: Path) -> None:
    """At shutdown the calls file holds how often each function was called and how long it took."""
    Scenario(gpus=[Gpu(index=0)], extra=["latency nvmlDeviceGetName us=3000"]).write(path)
    ask("n.nvmlInit()")
    ask("[n.nvmlDeviceGetName(h()) for _ in range(5)] and n.nvmlShutdown()")
    counted = {
        name: (int(calls), int(ns))
        for name, calls, ns in (line.split() for line in (tmp_path / "calls").read_text().splitlines())
    }
    assert counted["nvmlDeviceGetName"][0] == 5
    assert counted["nvmlDeviceGetName"][1] >= 5 * 3_000_000


@pytest.mark.needs("cc")
def test_command_line(tmp_path: Path) -> None:
    """`python -m tests.fakedriver` writes a scenario and prints what a shell needs to use it."""
    path = tmp_path / "node"
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakedriver", str(path), "--gpus", "3"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"export FAKE_NVML_SCENARIO={path}" in done.stdout
    assert path.read_text().count("\ngpu ") == 3


@pytest.mark.needs("cc")
def test_load_in_process(path: Path) -> None:
    """After `load`, pynvml in the same process finds the fake driver without LD_LIBRARY_PATH."""
    Scenario(gpus=[Gpu(index=0), Gpu(index=1)]).write(path)
    code = (
        "import pynvml, pathlib, sys; from tests.fakedriver import load; load(pathlib.Path(sys.argv[1]));"
        "pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code, path], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
