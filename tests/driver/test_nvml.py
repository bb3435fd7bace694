"""The table of calls returns what NVIDIA's own binding returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import fakedriver
from tests.fakedriver import Gpu, Mig, Process, Scenario

COMPARE = r"""
import ctypes, pathlib, sys, time
import pynvml as binding
from tests.fakedriver import load
load(pathlib.Path(sys.argv[1]))
from gpuledger.driver import nvml
from gpuledger.driver.nvml import NvmlError

binding.nvmlInit()
nvml.initialize()

def theirs(call, *arguments):
    try:
        return call(*arguments)
    except binding.NVMLError as error:
        return ("error", error.value, str(error))

def ours(call, *arguments):
    try:
        return call(*arguments)
    except NvmlError as error:
        return ("error", error.code, str(error))

def plain(value):
    if isinstance(value, ctypes.Structure):
        fields = {name: plain(getattr(value, name)) for name, *_ in value._fields_ if name != "version"}
        return tuple(field for field in fields.values() if not isinstance(field, tuple))
    if isinstance(value, ctypes.Array):
        return tuple(plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value

def same(what, left, right):
    assert left == right, f"{what}: ours {left!r}, theirs {right!r}"
    compared.append(what)

compared = []
same("count", nvml.COUNT(), binding.nvmlDeviceGetCount())
same("cuda", nvml.CUDA_VERSION(), binding.nvmlSystemGetCudaDriverVersion_v2())
same("driver", nvml.DRIVER_VERSION(), binding.nvmlSystemGetDriverVersion())
same("library", nvml.NVML_VERSION(), binding.nvmlSystemGetNVMLVersion())
same("out of range", ours(nvml.HANDLE_BY_INDEX, 99)[1], theirs(binding.nvmlDeviceGetHandleByIndex, 99)[1])

SIMPLE = [name for name, call in vars(nvml).items() if type(call) in (nvml.Number, nvml.Numbers, nvml.Text)]
WITHOUT_HANDLE = {"COUNT", "CUDA_VERSION", "DRIVER_VERSION", "NVML_VERSION"}
ARGUMENTS = {
    "TEMPERATURE": [(0,)], "CLOCK": [(kind,) for kind in range(5)], "MAX_CLOCK": [(kind,) for kind in range(5)],
    "TEMPERATURE_THRESHOLD": [(kind,) for kind in range(5)], "PCIE_THROUGHPUT": [(0,), (1,)],
    "FAN_SPEED": [(0,), (1,)], "ECC_ERRORS": [(kind, scope) for kind in (0, 1) for scope in (0, 1)],
    "NVLINK_STATE": [(link,) for link in range(nvml.MAX_LINKS)],
    "NVLINK_ERRORS": [(link, kind) for link in (0, 17) for kind in range(4)],
}
for index in range(nvml.COUNT()):
    handle, their_handle = nvml.HANDLE_BY_INDEX(index), binding.nvmlDeviceGetHandleByIndex(index)
    for name in sorted(set(SIMPLE) - WITHOUT_HANDLE):
        call = getattr(nvml, name)
        for arguments in ARGUMENTS.get(name, [()]):
            left = ours(call, handle, *arguments)
            right = theirs(getattr(binding, call.__name__), their_handle, *arguments)
            if name == "ENERGY" and isinstance(left, int):  # it moves
                assert 0 <= right - left < 10_000
                right = left
            same(f"{name} {arguments} {index}", left, plain(right))
    memory = binding.nvmlDeviceGetMemoryInfo
    same("MEMORY", ours(nvml.MEMORY, handle), plain(theirs(memory, their_handle, binding.nvmlMemory_v2)))
    same("MEMORY_V1", ours(nvml.MEMORY_V1, handle), plain(theirs(memory, their_handle)))
    right = theirs(binding.nvmlDeviceGetUtilizationRates, their_handle)
    same("UTILIZATION", ours(nvml.UTILIZATION, handle), plain(right))
    for policy in range(6):
        left, right = nvml.VIOLATION(handle, policy), binding.nvmlDeviceGetViolationStatus(their_handle, policy)
        same("VIOLATION", left[1], right.violationTime)
    pci = binding.nvmlDeviceGetPciInfo(their_handle)
    same("PCI_INFO", nvml.PCI_INFO(handle)[-1].split(b"\0")[0].decode(), plain(pci.busId))
    fields = (1, 3, 4, 5, 6, 74, 75, 82, 94, 142, 170, 185, (185, 2), (186, 1), 230, 251, 9999)
    right_values = binding.nvmlDeviceGetFieldValues(their_handle, list(fields))
    for field, left, right in zip(fields, nvml.FIELD_VALUES(handle, fields), right_values):
        same(f"field {field}", left, (right.valueType, right.nvmlReturn, bytes(right.value)))
    left, right = ours(nvml.LICENSES, handle), theirs(binding.nvmlDeviceGetGridLicensableFeatures_v4, their_handle)
    if not isinstance(right, tuple):
        features = right.gridLicensableFeatures[:right.licensableFeaturesCount]
        right = bool(right.isGridLicenseSupported), [bool(feature.featureState) for feature in features]
    same("LICENSES", left, right)
    right = theirs(binding.nvmlDeviceGetAccountingPids, their_handle)
    same("ACCOUNTING_PIDS", ours(nvml.ACCOUNTING_PIDS, handle), right)
    for pid in (100, 101, 999):
        right = theirs(binding.nvmlDeviceGetAccountingStats, their_handle, pid)
        same("ACCOUNTING_STATS", ours(nvml.ACCOUNTING_STATS, handle, pid), plain(right))
    right = theirs(binding.nvmlGpmQueryDeviceSupport, their_handle)
    same("GPM_SUPPORT", ours(nvml.GPM_SUPPORT, handle), plain(right))
    for number in range(2):
        left = ours(nvml.MIG_HANDLE, handle, number)
        right = theirs(binding.nvmlDeviceGetMigDeviceHandleByIndex, their_handle, number)
        if isinstance(left, tuple):
            same("MIG_HANDLE", left, right)
            continue
        for name in ("UUID", "NAME", "GPU_INSTANCE_ID", "COMPUTE_INSTANCE_ID"):
            call = getattr(nvml, name)
            same(f"MIG {name}", call(left), getattr(binding, call.__name__)(right))
        same("ATTRIBUTES", nvml.ATTRIBUTES(left), plain(binding.nvmlDeviceGetAttributes_v2(right)))

for record, call in (
    (binding.c_nvmlMemory_v2_t, nvml.MEMORY), (binding.c_nvmlUtilization_t, nvml.UTILIZATION),
    (binding.nvmlPciInfo_t, nvml.PCI_INFO), (binding.c_nvmlViolationTime_t, nvml.VIOLATION),
    (binding.c_nvmlAccountingStats_t, nvml.ACCOUNTING_STATS), (binding.c_nvmlDeviceAttributes, nvml.ATTRIBUTES),
    (binding.c_nvmlEventData_t, nvml.EVENT_WAIT), (binding.c_nvmlGpmSupport_t, nvml.GPM_SUPPORT),
    (binding.c_nvmlGpuFabricInfo_v2_t, nvml.FABRIC), (binding.c_nvmlEccSramErrorStatus_v1_t, nvml.SRAM_ERRORS),
):
    same(f"size of {record.__name__}", call._layout.size, ctypes.sizeof(record))
licenses = nvml.Licenses.HEAD.size + nvml.Licenses.MOST * nvml.Licenses.FEATURE.size
same("size of licenses", licenses, ctypes.sizeof(binding.c_nvmlGridLicensableFeatures_v4_t))
same("size of a field", nvml.FieldValues.RECORD.size, ctypes.sizeof(binding.c_nvmlFieldValue_t))
from gpuledger.driver import gpm, processes
same("size of a metric", gpm.METRIC.size, ctypes.sizeof(binding.c_nvmlGpmMetric_t))
same("head of metrics", gpm.REQUEST.size, binding.c_nvmlGpmMetricsGet_t.metrics.offset)
assert gpm.REQUEST.size + gpm.MOST_METRICS * gpm.METRIC.size >= ctypes.sizeof(binding.c_nvmlGpmMetricsGet_t)
same("size of a request", processes.SAMPLE_REQUEST.size, ctypes.sizeof(binding.c_nvmlProcessesUtilizationInfo_v1_t))
same("version of a request", 1 << 24 | processes.SAMPLE_REQUEST.size, binding.ProcessesUtilizationInfo_v1)
same("size of a new sample", processes.SAMPLE_NEW.size, ctypes.sizeof(binding.c_nvmlProcessUtilizationInfo_v1_t))
same("size of an old sample", processes.SAMPLE_OLD.size, ctypes.sizeof(binding.c_nvmlProcessUtilizationSample_t))
same("size of a process", processes.PROCESS_V3.size, ctypes.sizeof(binding.c_nvmlProcessInfo_v3_t))
for name, number in vars(nvml).items():
    if isinstance(number, int) and hasattr(binding, f"NVML_ERROR_{name}"):
        same(name, number, getattr(binding, f"NVML_ERROR_{name}"))
        if name != "RESET_REQUIRED":  # the library says "reset", the binding "restart"
            same(f"{name} in words", str(NvmlError(number)), str(binding.NVMLError(number)))
same("links", nvml.MAX_LINKS, binding.NVML_NVLINK_MAX_LINKS)
same("XID events", nvml.XID_CRITICAL_ERROR, binding.nvmlEventTypeXidCriticalError)
print(len(compared))
"""


def test_every_call_returns_what_the_binding_of_nvidia_returns(tmp_path: Path) -> None:
    """Values, errors and their texts, on GPUs with and without MIG, ECC, fans and licenses; and the size of records."""
    scenario = Scenario(
        gpus=[
            Gpu(index=0, watts=300, temperature=50, extra={"accounting": 1, "violation_power_ns": 7_000_000_000}),
            Gpu(index=1, watts=80, extra={"ecc": "none", "fan": 40, "fans": 2, "vgpu_license": 1, "gpm": 0}),
            Gpu(index=2, extra={"mig": 1}),
        ],
        migs=[Mig(gpu=2, gi=1, ci=0), Mig(gpu=2, gi=2, ci=0)],
        processes=[Process(gpu=0, pid=100, memory=1 << 30, sm=40)],
        extra=["accounting 0 pid=101 gpu=30 mem=5 max_memory=1000 time_ms=5000 running=0"],
    )
    path = scenario.write(tmp_path / "scenario")

    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(path)], capture_output=True, text=True, check=False, cwd=Path.cwd(),
        env=fakedriver.environment(path) | {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 250
