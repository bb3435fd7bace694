"""All dialects can be spoken; their names, types and labels are those of the exporters they come from."""

from __future__ import annotations

import re

import pytest

from gpuledger.catalog import CATALOG, Kind, Type
from gpuledger.catalog.dialects import DIALECTS, Choices, dcgm, families_of
from gpuledger.model import Allocation, ContainerUse, Device, Driver, Owner, Owners, Reading, Tick
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

# Of the memory book; declared with it.
DEFAULTS = """
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL XID_ERRORS FB_FREE FB_USED
FB_RESERVED VGPU_LICENSE_STATUS ROW_REMAP_FAILURE TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER
UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS NVLINK_BANDWIDTH_TOTAL
"""
PROFILING = "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"
COUNTERS = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "native"])
def test_families_are_well_declared(name: str) -> None:
    """Each once, with help, one source of values, and the native metric it is made of."""
    known = {family.name for family in CATALOG}
    families = families_of([name], Choices())

    assert len({family.name for family in families}) == len(families) > 5
    for family in families:
        assert isinstance(family.of, Kind)
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", family.name)
        assert family.type in (Type.GAUGE, Type.COUNTER)
        assert family.help.endswith(".")
        assert (family.value is None) != (family.series is None)
        assert family.origin.partition("{")[0] in known


def test_what_a_default_installation_of_dcgm_exporter_has() -> None:
    """All 25 of its default families, with its types."""
    families = {family.name: family.type for family in families_of(["dcgm"], Choices())}
    expected = {f"DCGM_FI_DEV_{name}" for name in DEFAULTS.split()} | {f"DCGM_FI_PROF_{n}" for n in PROFILING.split()}

    assert len(expected) == 25
    assert expected <= set(families)
    assert {name for name in expected if families[name] is Type.COUNTER} == COUNTERS


NEW_DEFAULTS = """
SM_CLOCK_HERTZ MEMORY_CLOCK_HERTZ MEMORY_TEMP_CELSIUS GPU_TEMP_CELSIUS BOARD_POWER_WATTS GPU_UTIL_RATIO
MEMORY_UTIL_RATIO ENC_UTIL_RATIO DEC_UTIL_RATIO XID_ERROR FB_FREE_BYTES FB_USED_BYTES FB_RESERVED_BYTES
FB_CAPACITY_BYTES VGPU_LICENSE_STATUS ROW_REMAP_FAILED GPU_ENERGY_JOULES_TOTAL PCIE_REPLAY_TOTAL
ROW_REMAP_UNCORRECTABLE_TOTAL ROW_REMAP_CORRECTABLE_TOTAL NVLINK_THROUGHPUT_BYTES_PER_SECOND
"""
NEW_PROFILING = "GR_ENGINE_UTIL_RATIO TENSOR_UTIL_RATIO DRAM_UTIL_RATIO PCIE_TX_BYTES PCIE_RX_BYTES"


def test_what_a_default_installation_of_dcgm_exporter_4_9_has() -> None:
    """The same families under their new names, and the capacity of the memory; units in HELP are the new ones."""
    families = {family.name: family for family in families_of(["dcgm"], Choices(names="new"))}
    expected = {f"DCGM_FI_DEV_{name}" for name in NEW_DEFAULTS.split()}
    expected |= {f"DCGM_FI_PROF_{name}" for name in NEW_PROFILING.split()}

    assert len(expected) == 26
    assert expected <= set(families)
    assert families["DCGM_FI_DEV_SM_CLOCK_HERTZ"].help == "SM clock in Hz."
    in_old_units = [name for name, f in families.items() if re.search("MHz|percent|mJ|MiB|in ns", f.help)]
    assert in_old_units == ["DCGM_FI_DEV_BOARD_LIMIT_VIOLATION"]  # its new name is not public


def test_labels_of_dcgm() -> None:
    """In its order; what has no value is left out."""
    gpu = Device(0, "GPU-1", "NVIDIA H200", "00000000:06:00.0", driver_version="580.1")
    instance = Device(0, "MIG-1", parent_uuid="GPU-1", gpu_instance_id=3, mig_profile="1g.18gb")
    readings = (Reading(gpu, temperatures_c=(("gpu", 40),)), Reading(instance, memory_free_bytes=1 << 30))
    owners = Owners(allocations=(Allocation(instance, Owner(namespace="ml", pod="train", container="main")),))

    body = render(Tick(1, Driver(up=True), readings, owners=owners), Choices(hostname="node1"))

    first = 'gpu="0",UUID="GPU-1",pci_bus_id="00000000:06:00.0",device="nvidia0",modelName="NVIDIA H200"'
    host = 'hostname="node1",Hostname="node1",DCGM_FI_DRIVER_VERSION="580.1",DCGM_FI_SYSTEM_DRIVER_VERSION="580.1"'
    assert f"DCGM_FI_DEV_GPU_TEMP{{{first},{host}}} 40\n" in body
    cut = 'GPU_I_PROFILE="1g.18gb",GPU_I_ID="3"'
    pod = 'container="main",namespace="ml",pod="train"'
    assert f"DCGM_FI_DEV_FB_FREE{{{first},{cut},{host},{pod}}} 1024\n" in body


def test_the_last_xid() -> None:
    """Its code, as value and label; 0 as long as there is none; also of a GPU that it took off the bus."""
    gpus = [Device(n, f"GPU-{n}") for n in range(3)]
    readings = (Reading(gpus[0]), Reading(gpus[1], up=False, last_xid=79), Reading(gpus[2], up=False))

    body = render(Tick(1, Driver(up=True), readings), Choices())

    found = re.findall(r'DCGM_FI_DEV_XID_ERRORS\{gpu="(\d)".*err_code="(\d+)"\} (\d+)', body)
    assert found == [("0", "0", "0"), ("1", "79", "79")]


SAMPLE = """\
# TYPE dcgm_gpu_temp gauge
dcgm_gpu_temp{container_name="pod1-ctr",gpu="0",pod_name="pod1",pod_namespace="default",uuid="GPU-2b39"} 33
dcgm_gpu_temp{container_name="pod1-ctr",gpu="1",pod_name="pod1",pod_namespace="default",uuid="GPU-9567"} 34
# TYPE dcgm_gpu_utilization gauge
dcgm_gpu_utilization{container_name="pod1-ctr",gpu="0",pod_name="pod1",pod_namespace="default",uuid="GPU-2b39"} 0
dcgm_gpu_utilization{container_name="pod1-ctr",gpu="1",pod_name="pod1",pod_namespace="default",uuid="GPU-9567"} 0
# TYPE dcgm_low_util_violation counter
dcgm_low_util_violation{container_name="pod1-ctr",gpu="0",pod_name="pod1",pod_namespace="default",uuid="GPU-2b39"} 0
dcgm_low_util_violation{container_name="pod1-ctr",gpu="1",pod_name="pod1",pod_namespace="default",uuid="GPU-9567"} 0
# TYPE dcgm_mem_copy_utilization gauge
dcgm_mem_copy_utilization{container_name="pod1-ctr",gpu="0",pod_name="pod1",pod_namespace="default",uuid="GPU-2b39"} 0
dcgm_mem_copy_utilization{container_name="pod1-ctr",gpu="1",pod_name="pod1",pod_namespace="default",uuid="GPU-9567"} 0
# TYPE dcgm_memory_clock gauge
dcgm_memory_clock{container_name="pod1-ctr",gpu="0",pod_name="pod1",pod_namespace="default",uuid="GPU-2b39"} 810
dcgm_memory_clock{container_name="pod1-ctr",gpu="1",pod_name="pod1",pod_namespace="default",uuid="GPU-9567"} 810
"""


def test_the_sample_of_the_older_exporter() -> None:
    """Two idle GPUs of one pod give what its README shows: names, types, labels in their order, values."""
    gpus = [Device(0, "GPU-2b39"), Device(1, "GPU-9567")]
    pod = Owner(namespace="default", pod="pod1", container="pod1-ctr")
    tick = Tick(
        1,
        Driver(up=True),
        tuple(
            Reading(gpu, utilization_pct=0, memory_utilization_pct=0, clocks_mhz=(("memory", 810),), residents=(),
                    temperatures_c=(("gpu", 33 + gpu.index),), clock_event_ns=(("low_utilization", 999),))
            for gpu in gpus
        ),
        owners=Owners(allocations=tuple(Allocation(gpu, pod) for gpu in gpus)),
    )  # fmt: skip

    body = render(tick, Choices(), "dcgm1")

    more = ("# HELP", "dcgm_xid", "# TYPE dcgm_xid", "dcgm_fi_prof_gr_engine", "# TYPE dcgm_fi_prof_gr_engine")
    shown = {line for line in body.splitlines() if not line.startswith(more)}
    assert shown == set(SAMPLE.splitlines())


def test_times_of_the_older_exporter_are_microseconds() -> None:
    """And those of the newer one nanoseconds."""
    reading = Reading(Device(0, "GPU-1"), clock_event_ns=(("power", 7_231_151_488),))
    tick = Tick(1, Driver(up=True), (reading,))

    assert 'dcgm_power_violation{gpu="0",uuid="GPU-1"} 7231151\n' in render(tick, Choices(), "dcgm1")
    assert re.search(r"DCGM_FI_DEV_POWER_VIOLATION\{.*\} 7231151488\n", render(tick, Choices()))


def test_pod_uid_is_a_choice() -> None:
    """Off by default, as there."""
    gpus = dcgm.families(Choices(pod_uid=True))[0].of

    assert gpus.labels[-4:] == ("container", "namespace", "pod", "pod_uid")


@pytest.mark.parametrize("dialect", ["dcgm", "dcgm1"])
@pytest.mark.parametrize(("shared", "series"), [("device", 1), ("divide", 3), ("copy", 2)])
def test_pods_of_a_shared_gpu(dialect: str, shared: str, series: int) -> None:
    """Two pods that wait: the GPU once, with a rest of its own, or for each pod; in one mode the pods have a series."""
    gpu = Device(0, "GPU-1")
    owners = Owners(
        allocations=(
            Allocation(gpu, Owner(namespace="ml", pod="a", container="main")),
            Allocation(gpu, Owner(namespace="ml", pod="b", container="main")),
        )
    )
    reading = Reading(gpu, utilization_pct=7, residents=(), samples=())

    body = render(Tick(1, Driver(up=True), (reading,), owners=owners), Choices(shared=shared), dialect)

    assert len(re.findall(r"^(?:DCGM_FI_DEV_GPU_UTIL|dcgm_gpu_utilization)\{", body, re.MULTILINE)) == series
    pods = re.findall(r'^gpu_sharing_info\{.*(?:pod|pod_name)="(\w)".*\} 1$', body, re.MULTILINE)
    assert pods == (["a", "b"] if shared == "device" else [])


def test_a_container_of_an_unknown_pod_is_not_counted_twice() -> None:
    """It belongs to one of the pods with an allocation, which are named."""
    gpu = Device(0, "GPU-1")
    unnamed = ContainerUse(gpu, Owner(container_id="c1", pod_uid="uid-1"), processes=1, memory_bytes=1, sm_pct=7)
    owners = Owners(
        allocations=(
            Allocation(gpu, Owner(namespace="ml", pod="a", container="main")),
            Allocation(gpu, Owner(namespace="ml", pod="b", container="main")),
        )
    )
    tick = Tick(1, Driver(up=True), (Reading(gpu, utilization_pct=7),), owners=owners, containers=(unnamed,))

    body = render(tick, Choices(shared="copy"))

    assert re.findall(r'^DCGM_FI_DEV_GPU_UTIL\{.*pod="(\w)".*\} 7$', body, re.MULTILINE) == ["a", "b"]
    assert len(re.findall(r"^DCGM_FI_DEV_GPU_UTIL\{", body, re.MULTILINE)) == len("ab")


def render(tick: Tick, choices: Choices, dialect: str = "dcgm") -> str:
    """The scrape."""
    return b"".join(Renderer(families_of([dialect], choices)).chunks(tick, Format.TEXT)).decode()
