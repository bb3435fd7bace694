"""One whole scrape of a node with eight GPUs of every kind, compared line by line, and judged by three parsers.

After a wanted change: `GOLDEN=write python -m pytest tests/test_golden.py`, then read the diff.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.catalog import CATALOG, Family
from gpuledger.catalog.dialects import DIALECTS, Choices, dcgm, families_of
from gpuledger.catalog.dialects.counters import Counter
from gpuledger.catalog.dialects.dcgmnames import BY_NEW, BY_OLD, RENAMES, SAME
from gpuledger.driver.source import NvmlSource
from gpuledger.loop import Loop
from gpuledger.model import (
    DcgmHealth,
    DcgmStats,
    Owner,
    PhaseEnergy,
    ProviderHealth,
    Tick,
    TokenCounts,
    TokenRates,
    TokenServer,
)
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.owners.names import Container, KubeletAllocation, Names, Pod
from gpuledger.owners.resolver import Resolver
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer
from tests import fakedriver
from tests.components import program
from tests.fakedriver import Gpu, Mig, Process, h200_node

GOLDEN = Path(__file__).parent / "golden"
FILES = {Format.TEXT: GOLDEN / "node.prom", Format.OPENMETRICS: GOLDEN / "node.om"}
NOW_S = 1_700_000_000

SERVER = TokenServer(
    "ml/vllm-0",
    up=True,
    owner=Owner(namespace="ml", pod="vllm-0", pod_uid="1f2e", container="main", container_id="c0ffee"),
    counts=(TokenCounts("vllm", 'meta/"llama"', 1200, 340),),
    work_mj=250_000,
    parked_mj=60_000,
    rates=TokenRates(60.0, 600.0, 120.0, 90.0, 30.0),
    phases=PhaseEnergy(0.05, 0.005, 0.5, 0.02, 12),
)

# What differs from run to run: times, versions of this machine, and how much the exporter itself uses.
VARIABLE = re.compile(
    r"^(gpuledger_(?:tick_duration|stage_duration|driver)_seconds(?:_total)?|process_(?:cpu|start_time)_seconds(?:_total)?"
    r"|(?:process_resident_memory_bytes|process_open_fds|gpuledger_threads))(\{.*\})? .*$",
    re.MULTILINE,
)
PYTHON = re.compile(r'python_version="[^"]*"')


def node() -> fakedriver.Scenario:
    """Busy H200s, an old board with a fan, one fallen off the bus, one cut by MIG, one with accounting."""
    scenario = h200_node(gpus=8, processes=2)
    scenario.clock = NOW_S
    scenario.gpus[4] = Gpu(
        index=4, name='Tesla "P100"', watts=110, energy_mj="none",
        extra={"gpm": "none", "nvlinks": "none", "fan": 33, "architecture": "pascal", "compute_capability": "6.0"},
    )  # fmt: skip
    scenario.gpus[6].accounting = 1
    scenario.gpus[6].util = 70
    scenario.gpus[7].mig = 1
    scenario.processes = [p for p in scenario.processes if p.gpu != 7]
    scenario.processes += [
        Process(gpu=0, pid=1000, kind="graphics", memory=1 << 32),
        Process(gpu=1, pid=2000, memory="na"),
        Process(gpu=7, pid=3000, memory=1 << 30, gi=1, ci=0),
    ]
    scenario.migs = [
        Mig(gpu=7, gi=1, uuid="MIG-7-1", memory_used=1 << 30, extra={"gpm.sm": 20.0}),
        Mig(gpu=7, gi=2, uuid="MIG-7-2", profile="2g.35gb", sms=32),
    ]
    scenario.extra = [
        "lost 5",
        "accounting 6 pid=1012 gpu=30 mem=10 max_memory=4294967296 time_ms=0 start_us=1 running=1",
        *(f"sample {g} pid={1000 + 2 * g} ts={NOW_S * 10**6 + 9} sm=40 mem=7 enc=1 dec=2" for g in (0, 1, 2, 3, 4, 6)),
        f"sample 6 pid=1013 ts={NOW_S * 10**6 + 9} sm=20 mem=3",
    ]
    return scenario


CONTAINER, IN_POD = "c0de" * 16, "f00d" * 16
POD_UID = "7f2c1a9e-3b64-4d0f-9a51-c8e20d7b4f13"
TRAIN_UID, SERVE_UID = "a" + POD_UID[1:], "b" + POD_UID[1:]
CGROUPS = {
    1000: f"0::/system.slice/docker-{CONTAINER}.scope\n",
    1001: f"0::/system.slice/docker-{CONTAINER}.scope\n",
    1002: f"0::/kubepods/burstable/pod{POD_UID}/{IN_POD}\n",
    1004: f"0::/system.slice/docker-{'abcd' * 16}.scope\n",
    1012: f"0::/kubepods/pod{TRAIN_UID}/{'1a' * 32}\n",
    1013: f"0::/kubepods/pod{SERVE_UID}/{'2b' * 32}\n",
    3000: f"0::/kubepods/pod{SERVE_UID}/{'3c' * 32}\n",
    1006: "0::/system.slice/slurmstepd.scope/job_211/step_0/user/task_1\n",
}


class Known:
    """A provider with a container, a pod and an allocation."""

    health = ProviderHealth("docker", up=True, problem=None, since_ns=5, last_success_ns=7, fetches=9, failures=1)
    names = Names(
        containers={
            CONTAINER: Container(CONTAINER, "ollama", "ollama:1", labels=(("com.docker.compose.project", "home"),)),
            "1a" * 32: Container("1a" * 32, "main", "train:1"),
        },
        pods={
            POD_UID: Pod(POD_UID, "ml", "llama-0", "StatefulSet", "llama"),
            TRAIN_UID: Pod(TRAIN_UID, "ml", "train", "Job", "train"),
            SERVE_UID: Pod(SERVE_UID, "web", "serve", "Deployment", "serve"),
        },
        allocations=(
            KubeletAllocation("ml", "llama-0", "main", "nvidia.com/gpu", "GPU-00000002-0000-4000-8000-000000000002::1"),
        ),
    )

    def nudge(self) -> None:
        """Nothing more to know."""

    def stop(self) -> None:
        """Nothing runs."""


class Beside:
    """DCGM, which reports the same for every process on a GPU, and nothing for MIG instances."""

    name = "dcgm"

    def attach(self, tick: Tick) -> Tick:
        """Numbers for the processes of GPU 6, where accounting is on."""
        told = DcgmStats(250_000, 97, 30, 4 << 30, 1, NOW_S * 10**6)
        uses = tuple(replace(use, dcgm=told) if use.device.index == 6 else use for use in tick.processes)
        return replace(
            tick,
            processes=uses,
            dcgm=DcgmHealth(True, None, "4.2.3", "libdcgm.so.4", "embedded"),
            servers=(SERVER, TokenServer("pid:4711", up=False, failures=(("timeout", 2),))),
        )

    def answered(self) -> bool:
        """At once."""
        return True

    def close(self) -> None:
        """Nothing runs."""


def proc(root: Path, pid: int, name: str) -> None:
    """A process in a made-up /proc."""
    folder = root / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S " + " ".join(["0"] * 18) + " 12345 0\n")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t0\t0\t0\t0\n")
    (folder / "cgroup").write_text(CGROUPS.get(pid, "0::/system.slice/ollama.service\n"))


def second_tick(folder: Path, procfs: Procfs, pause_s: float) -> Tick:
    """The second tick, this long after the first one."""
    scenario = node()
    scenario.clock = NOW_S - 2
    samples = [line for line in scenario.extra if line.startswith("sample")]
    scenario.extra = [line for line in scenario.extra if line not in samples]
    scenario.write(folder / "scenario")
    source = NvmlSource(now_ns=lambda: int(scenario.clock or 0) * 10**9, monotonic=lambda: scenario.clock or 0.0)
    loop = Loop(
        source,
        lambda tick: procfs.facts(tick.resident_pids()),
        interval_s=1.0,
        owners=Resolver([Known()]),
        collectors=[Beside()],
    )
    loop.once()
    time.sleep(pause_s)
    scenario.extra += samples
    scenario.clock = NOW_S
    scenario.write(folder / "scenario")
    tick = loop.once()
    loop.stop()
    return tick


@pytest.fixture(scope="module")
def tick(tmp_path_factory: pytest.TempPathFactory) -> Tick:
    """The second tick, which has everything: also activity of all MIG instances, whose samples take some time."""
    folder = tmp_path_factory.mktemp("node")
    node().write(folder / "scenario")
    fakedriver.load(folder / "scenario")
    root = folder / "proc"
    (root / "1").mkdir(parents=True)
    (root / "stat").write_text("cpu 0\nbtime 1690000000\n")
    for pid in (*range(1000, 1016), 3000):
        proc(root, pid, "python3" if pid % 2 else 'bad "name"\\')
    procfs = Procfs(root)
    procfs.look(1000, timeout_s=10)  # the name of root
    ticks = (second_tick(folder, procfs, 0.1 * pause) for pause in range(20))
    return next(
        tick for tick in ticks if all(reading.activity for reading in tick.readings if reading.device.parent_uuid)
    )


def body(tick: Tick, fmt: Format) -> str:
    """The scrape."""
    return b"".join(Renderer().chunks(tick, fmt)).decode()


@pytest.mark.parametrize("fmt", Format)
def test_golden_scrape(tick: Tick, fmt: Format) -> None:
    """Any change of what users see is a change of this file, seen in review."""
    masked = PYTHON.sub('python_version="X"', VARIABLE.sub(r"\1\2 X", body(tick, fmt)))
    if os.environ.get("GOLDEN") == "write":
        FILES[fmt].parent.mkdir(exist_ok=True)
        FILES[fmt].write_text(masked)

    assert masked == FILES[fmt].read_text()


@pytest.mark.needs("promtool")
def test_promtool_has_no_complaint(tick: Tick) -> None:
    """Prometheus's own linter finds nothing."""
    promtool = program("promtool")

    done = subprocess.run(
        [promtool, "check", "metrics"], input=body(tick, Format.TEXT), capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("fmt", Format)
def test_series_are_unique_and_in_the_catalog(tick: Tick, fmt: Format) -> None:
    """No parser checks it: each series once, one set of labels a family, every family declared."""
    declared = {family.name: (*family.of.labels, *family.labels) for family in CATALOG}
    parse = parse_text if fmt is Format.TEXT else parse_openmetrics
    seen = set()
    for family in parse(body(tick, fmt)):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen
            seen.add(key)
            assert tuple(sample.labels) == tuple(n for n in declared[sample.name] if n != "outer_container")
            assert sample.timestamp is None
    assert len(seen) > 700


def test_sums_count_nothing_twice(tick: Tick) -> None:
    """MIG instances and processes in two lists do not add to what GPUs and processes hold."""
    gpus = [r for r in tick.readings if not r.device.parent_uuid]
    pids = [(use.resident.pid, use.device.uuid) for use in tick.processes]

    assert len(gpus) == 8
    assert len(set(pids)) == len(pids)
    assert [use.device.uuid for use in tick.processes if use.resident.pid == 3000] == ["MIG-7-1"]


# -- the same tick in the names of others

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
OTHERS = [name for name in DIALECTS if name != "native"]
CHOICES = Choices(hostname="node1", prefix="my_gpu_process")
NO_TOTAL, TYPE = 'counter metrics should have "_total" suffix', "metric name should not include type 'counter'"
CAMELS = "label names should be written in 'snake_case' not 'camelCase'"
BY_NAME: dict[str, set[str]] = {
    "dcgm": {NO_TOTAL, TYPE, CAMELS},
    "dcgm1": {NO_TOTAL, TYPE, 'non-counter metrics should not have "_total" suffix'},
    "inference": set(),
    "jobstats": {"metric names should be written in 'snake_case' not 'camelCase'"},
    "process": {NO_TOTAL, 'non-histogram and non-summary metrics should not have "_count" suffix'},
}
"""What Prometheus's linter has to say about the names of each; we did not choose them."""


def said(tick: Tick, *dialects: str, choices: Choices = CHOICES) -> str:
    """The scrape of some dialects."""
    return b"".join(Renderer(families_of(dialects, choices)).chunks(tick, Format.TEXT)).decode()


def series(body: str) -> Values:
    """All series of a scrape; a second one with the same labels fails. No parser: theirs adds _total to counters."""
    found: Values = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", body, re.MULTILINE):
        key = (name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)))
        assert key not in found
        found[key] = float(value)
    return found


@pytest.mark.parametrize("file", [*OTHERS, "dcgm-divide", "dcgm-copy"])
def test_golden_scrape_of_a_dialect(tick: Tick, file: str) -> None:
    """A shared GPU with two pods, one cut by MIG, and all the others, in each dialect."""
    dialect, _, shared = file.partition("-")
    body, path = said(tick, dialect, choices=replace(CHOICES, shared=shared or "device")), GOLDEN / f"{file}.prom"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(body)

    assert body == path.read_text()
    assert series(body)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("dialect", OTHERS)
def test_promtool_complains_only_of_their_names(tick: Tick, dialect: str) -> None:
    """It can be read; what the linter dislikes is what the other exporter called its metrics."""
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=said(tick, dialect),
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = {line.split(" ", 1)[1] for line in done.stderr.splitlines()}

    assert (complaints, done.returncode) == (BY_NAME[dialect], 3 if complaints else 0)


# How many of ours one of theirs is.
UNITS = {
    "gpu_clock_hertz": 1e6, "gpu_energy_joules_total": 1e-3, "gpu_utilization_ratio": 0.01,
    "gpu_memory_utilization_ratio": 0.01, "gpu_encoder_utilization_ratio": 0.01, "gpu_decoder_utilization_ratio": 0.01,
    "gpu_clock_event_seconds_total": 1e-9, "gpu_memory_free_bytes": 1 << 20, "gpu_memory_used_bytes": 1 << 20,
    "gpu_memory_reserved_bytes": 1 << 20, "gpu_memory_total_bytes": 1 << 20, "gpu_fan_speed_ratio": 0.01,
}  # fmt: skip


SHARED = {
    "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED",
}  # fmt: skip
"""Of a cut GPU the instances have parts of these; all others are an instance's own, or the GPU's."""

NOT_OURS = {"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gpu_sharing_info"}
"""A last value, and a rate; we count both. And one series for each pod."""


def native(family: Family, values: Values, uuid: str) -> float:
    """What we say of a GPU, or of an instance, in the metric that a family of another dialect is made of."""
    name, _, selector = family.origin.partition("{")
    wanted = {("uuid", uuid), *re.findall(r'(\w+)="(\w+)"', selector)}
    if uuid.startswith("MIG"):
        name = name.replace("gpu_", "gpu_mig_", 1)
    found = [value for (known, labels), value in values.items() if known == name and wanted <= labels]
    if name == "gpu_graphics_active_ratio" and not found:  # without GPM it is the utilization
        found = [v for (known, labels), v in values.items() if known == "gpu_utilization_ratio" and wanted <= labels]
    (value,) = found
    return value


@pytest.mark.parametrize("names", ["old", "new"])
@pytest.mark.parametrize("shared", ["device", "divide"])
def test_dcgm_turned_back_is_native(tick: Tick, shared: str, names: str) -> None:
    """Each number of each GPU and MIG instance, added up over its series, in our units: so the sum is the device."""
    choices = replace(ALL_COUNTERS, shared=shared, names=names)
    ours, theirs = series(said(tick, "native")), series(said(tick, "dcgm", choices=choices))
    sums: dict[str, dict[str, float]] = {}
    for (name, labels), value in theirs.items():
        told = dict(labels)
        of_gpu = old_name(name) in SHARED
        uuid = f"MIG-7-{told['GPU_I_ID']}" if "GPU_I_ID" in told and not of_gpu else told["UUID"]
        found = sums.setdefault(name, {})
        found[uuid] = found.get(uuid, 0) + value
    for family in families_of(["dcgm"], choices):
        if old_name(family.name) in NOT_OURS:
            continue
        is_old = family.name == old_name(family.name) or BY_NEW[family.name].unit is SAME
        factor = UNITS.get(family.origin.partition("{")[0], 1) if is_old else 1
        expected = {uuid: native(family, ours, uuid) for uuid in sums[family.name]}
        turned_back = {uuid: value * factor for uuid, value in sums[family.name].items()}
        assert turned_back == pytest.approx(expected, rel=1e-9, abs=factor if factor == 1 << 20 else 1e-9), family.name
        assert "GPU-00000006-0000-4000-8000-000000000006" in turned_back or "FAN_SPEED" in family.name


def old_name(name: str) -> str:
    """The name of dcgm-exporter 4.8."""
    return BY_NEW[name].old if name in BY_NEW else name


def test_new_names_are_the_old_ones_times_the_factor_of_the_table(tick: Tick) -> None:
    """For each series of 4.8 there is one of 4.9, to the precision of the old unit."""
    body = series(said(tick, "dcgm"))
    version = "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"
    assert all({name for name, _ in labels} >= set(version) for name, labels in body if name != "gpu_sharing_info")
    compared = set()
    for (name, labels), value in body.items():
        rename = BY_OLD.get(name)
        if rename is not None:
            unit = rename.unit
            new = body[rename.new, labels]
            assert new * unit.per / unit.times == pytest.approx(value, rel=1e-9, abs=1), name
            compared.add(name)
    assert {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE"} < compared


def test_each_name_set_alone(tick: Tick) -> None:
    """`old` has no name and label of 4.9, `new` no renamed name and label of 4.8."""
    old, new = (said(tick, "dcgm", choices=replace(CHOICES, names=names)) for names in ("old", "new"))

    assert not [rename.new for rename in RENAMES if f" {rename.new} " in old]
    assert not [rename.old for rename in RENAMES if f" {rename.old} " in new]
    assert "DCGM_FI_SYSTEM_DRIVER_VERSION" not in old
    assert "DCGM_FI_DRIVER_VERSION" not in new


ALL_COUNTERS = replace(
    CHOICES,
    counters=tuple(
        Counter(family.name, family.type.value, "")
        for family in (
            *dcgm.default_families(dcgm.kinds_of(CHOICES, ())),
            *dcgm.optional_families(dcgm.kinds_of(CHOICES, ())),
        )
    ),
)


def test_dialects_together_have_each_family_once(tick: Tick) -> None:
    """Of two families with one name the first is written."""
    body = said(tick, *DIALECTS)
    headers = re.findall(r"^# TYPE (\S+)", body, re.MULTILINE)

    assert len(set(headers)) == len(headers)
    assert "DCGM_FI_DEV_GPU_TEMP" in headers
    assert 'container_gpu_memory_bytes{container="ollama"' in body
    assert "container_gpu_detected" in headers
