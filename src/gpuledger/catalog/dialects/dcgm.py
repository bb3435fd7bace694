"""Names of dcgm-exporter. The `origin` of a family is the native metric it is derived from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from gpuledger.catalog.dialects import COPY, DEVICE, DIALECTS, DIVIDE, Choices
from gpuledger.catalog.dialects.counters import LABEL, Counter
from gpuledger.catalog.dialects.dcgmnames import BOTH, BY_NEW, BY_OLD, NEW, OLD, SAME, Unit
from gpuledger.catalog.dialects.dcgmnames import LABELS as RENAMED_LABELS
from gpuledger.catalog.dialects.division import ActivePart, Part, divide, divide_activity, undivided, whole_activity
from gpuledger.catalog.family import C, Family, G, Kind, Series, Thing, Type, Value, at, divided, flag, pcie
from gpuledger.model import Reading, Tick
from gpuledger.model.holders import NO_HOLDER, HolderLabels, Holding, holdings

MIB = 1 << 20

LABELS: dict[str, Callable[[Tick, Reading], str]] = {
    "DCGM_FI_DRIVER_VERSION": lambda tick, gpu: gpu.device.driver_version or tick.driver.driver_version,
    "DCGM_FI_NVML_VERSION": lambda tick, _: tick.driver.nvml_version,
    "DCGM_FI_DEV_SERIAL": lambda _, gpu: gpu.device.serial,
    "DCGM_FI_DEV_VBIOS_VERSION": lambda _, gpu: gpu.device.vbios_version,
    "DCGM_FI_DEV_BOARD_PART_NUMBER": lambda _, gpu: gpu.device.board_part_number,
}
"""Fields that become labels of all other fields, by their old names."""
EXACT: dict[str, Callable[[Any], Value | None]] = {
    "DCGM_FI_DEV_FB_FREE": at("memory_free_bytes"),
    "DCGM_FI_DEV_FB_USED": at("memory_bytes"),
    "DCGM_FI_DEV_FB_RESERVED": at("memory_reserved_bytes"),
    "DCGM_FI_DEV_FB_TOTAL": at("memory_total_bytes"),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": at("nvlink_bytes_per_s"),
}
"""Values in the new unit that the old value does not contain, by old name."""
HOSTNAMES = ("hostname", "Hostname")
"""dcgm-exporter spells the label in the first way since May 2026; many of its readers know only the second."""
BY_OWNER = "; on a shared GPU, the part of each owner."
USUAL_LABELS = ("DCGM_FI_DRIVER_VERSION",)


LabelValues = Callable[[Tick, Holding, HolderLabels], tuple[str, ...]]


class Kinds:
    """The kinds of things that the families of a dialect describe, with the labels of that dialect."""

    def __init__(
        self, labels: tuple[str, ...], values: LabelValues, *, pod_uid: bool = False, shared: str = DEVICE
    ) -> None:
        self._values = values
        self._pod_uid = pod_uid
        self.shared = shared
        self._last: tuple[Tick, list[list[Holding]]] | None = None
        self.gpus = Kind(labels, self._gpus, sparse=True)
        """Whole GPUs."""
        self.devices = Kind(labels, self._devices, sparse=True)
        """MIG instances of a GPU that has some, else the GPU."""
        self.parts = Kind(labels, self._parts, sparse=True)
        """Values that can be divided: the part of each holder in a device, or the device."""
        self.active = Kind(labels, self._active, sparse=True)
        """Activity and video: the part of each holder in a device, or the device if `shared` copies it."""
        self.sharers = Kind(labels, self._sharers, sparse=True)
        """The holders of a device whose series do not name them."""

    def _by_gpu(self, tick: Tick) -> list[list[Holding]]:
        """Each GPU with its instances, computed once for all kinds."""
        if self._last is None or self._last[0] is not tick:
            groups: dict[str, list[Holding]] = {}
            for holding in holdings(tick, pod_uid=self._pod_uid):
                groups.setdefault(holding.gpu.device.uuid, []).append(holding)
            self._last = tick, list(groups.values())
        return self._last[1]

    def _gpus(self, tick: Tick) -> list[Thing]:
        return [thing for group in self._by_gpu(tick) for thing in self._things(tick, group[0])]

    def _devices(self, tick: Tick) -> list[Thing]:
        devices = [holding for group in self._by_gpu(tick) for holding in group[1:] or group]
        return [thing for holding in devices for thing in self._things(tick, holding)]

    def _things(self, tick: Tick, holding: Holding) -> list[Thing]:
        return [(self._values(tick, holding, labels), holding.reading) for labels in self._labels(holding)]

    def _labels(self, holding: Holding) -> list[HolderLabels]:
        """The labels of the series with the value of the whole device, one for each series."""
        if self.shared == COPY and not holding.has_instances:
            return holding.holders or [NO_HOLDER]
        return [holding.holder]

    def _parts(self, tick: Tick) -> list[Thing]:
        parts: list[tuple[HolderLabels, Part]] = []
        for gpu, *instances in self._by_gpu(tick):
            if self.shared == DIVIDE:
                parts += [(part.labels, part) for part in divide(gpu, instances, pod_uid=self._pod_uid)]
            else:
                whole = undivided(gpu, instances)
                parts += [(labels, part) for part in whole for labels in self._labels(part.holding)]
        return [(self._values(tick, part.holding, labels), part) for labels, part in parts]

    def _active(self, tick: Tick) -> list[Thing]:
        parts: list[ActivePart] = []
        for holding in (holding for group in self._by_gpu(tick) for holding in group):
            if self.shared == COPY:
                parts += [whole_activity(holding, labels) for labels in self._labels(holding)]
            else:
                parts += divide_activity(holding)
        return [(self._values(tick, part.holding, part.labels), part) for part in parts]

    def _sharers(self, tick: Tick) -> list[Thing]:
        return [
            (self._values(tick, holding, labels), 1)
            for group in self._by_gpu(tick)
            for holding in group
            for labels in holding.holders
            if labels != holding.holder
        ]


def of(path: str, name: str) -> Callable[[Any], Value | None]:
    """The value under this name in the labelled values at `path`."""

    def read(reading: Any) -> Value | None:
        for label, value in getattr(reading, path):
            if label == name:
                return int(value)
        return None

    return read


def mib(path: str) -> Callable[[Reading], Value | None]:
    """Whole mebibytes."""
    read = at(path)
    return lambda reading: None if (v := read(reading)) is None else int(v) // MIB


def last_xid(reading: Reading) -> Value | None:
    """The last XID, or 0. A GPU that fell off the bus keeps its last XID."""
    return reading.last_xid if reading.last_xid is not None else 0 if reading.up else None


def _coded_xid(reading: Reading) -> Series:
    code = last_xid(reading)
    return () if code is None else (((str(code),), code),)


def default_families(kinds: Kinds) -> tuple[Family, ...]:
    """The families of a default installation, and those commented out in its list of counters."""
    gpu, device, part, active = kinds.gpus, kinds.devices, kinds.parts, kinds.active
    divided, by_owner = (BY_OWNER if kinds.shared in modes else "." for modes in ((DIVIDE,), (DIVIDE, DEVICE)))
    violations = {
        "POWER": "power", "THERMAL": "thermal", "SYNC_BOOST": "sync_boost", "BOARD_LIMIT": "board_limit",
        "LOW_UTIL": "low_utilization", "RELIABILITY": "reliability",
    }  # fmt: skip
    return (
        Family("DCGM_FI_DEV_SM_CLOCK", G, gpu, "SM clock in MHz.", 'gpu_clock_hertz{clock="sm"}',
               of("clocks_mhz", "sm")),
        Family("DCGM_FI_DEV_MEM_CLOCK", G, gpu, "Memory clock in MHz.", 'gpu_clock_hertz{clock="memory"}',
               of("clocks_mhz", "memory")),
        Family("DCGM_FI_DEV_MEMORY_TEMP", G, gpu, "Temperature of the memory in degrees Celsius.",
               'gpu_temperature_celsius{sensor="memory"}', of("temperatures_c", "memory")),
        Family("DCGM_FI_DEV_GPU_TEMP", G, gpu, "Temperature of the GPU in degrees Celsius.",
               'gpu_temperature_celsius{sensor="gpu"}', of("temperatures_c", "gpu")),
        Family("DCGM_FI_DEV_POWER_USAGE", G, part, f"Power in W{divided}",
               "gpu_power_watts", at("power_mw", 1000)),
        Family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", C, part,
               "Energy in mJ by owner; without an owner, energy owned by no container." if kinds.shared == DIVIDE
               else "Energy in mJ.",
               "gpu_energy_joules_total", at("energy_mj")),
        Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", C, gpu, "PCIe replays.", "gpu_pcie_replays_total",
               at("pcie_replays")),
        Family("DCGM_FI_DEV_GPU_UTIL", G, part, f"Utilization in percent{divided}",
               "gpu_utilization_ratio", at("utilization_pct")),
        Family("DCGM_FI_DEV_MEM_COPY_UTIL", G, gpu, "Memory activity in percent.", "gpu_memory_utilization_ratio",
               at("memory_utilization_pct")),
        Family("DCGM_FI_DEV_ENC_UTIL", G, active, f"Encoder utilization in percent{by_owner}",
               "gpu_encoder_utilization_ratio", at("encoder_pct")),
        Family("DCGM_FI_DEV_DEC_UTIL", G, active, f"Decoder utilization in percent{by_owner}",
               "gpu_decoder_utilization_ratio", at("decoder_pct")),
        Family("DCGM_FI_DEV_XID_ERRORS", G, gpu, "Last XID since the exporter started; 0 if there was none.",
               "gpu_xid_errors_total", series=_coded_xid, labels=("err_code",)),
        *(Family(f"DCGM_FI_DEV_{theirs}_VIOLATION", C, gpu, "Time in ns in which the clocks were throttled.",
                 f'gpu_clock_event_seconds_total{{policy="{ours}"}}', of("clock_event_ns", ours))
          for theirs, ours in violations.items()),
        Family("DCGM_FI_DEV_FB_FREE", G, device, "Free memory in MiB.", "gpu_memory_free_bytes",
               mib("memory_free_bytes")),
        Family("DCGM_FI_DEV_FB_USED", G, part, f"Used memory in MiB{divided}",
               "gpu_memory_used_bytes", at("memory_mib")),
        Family("DCGM_FI_DEV_FB_RESERVED", G, device, "Memory in MiB reserved by driver and firmware.",
               "gpu_memory_reserved_bytes", mib("memory_reserved_bytes")),
        Family("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", C, gpu, "Corrected memory errors since the driver was loaded.",
               'gpu_ecc_volatile_errors_total{error="corrected"}', of("ecc_volatile_errors", "corrected")),
        Family("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", C, gpu, "Uncorrected memory errors since the driver was loaded.",
               'gpu_ecc_volatile_errors_total{error="uncorrected"}', of("ecc_volatile_errors", "uncorrected")),
        Family("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", C, gpu, "Corrected memory errors over the lifetime of the board.",
               'gpu_ecc_errors_total{error="corrected"}', of("ecc_errors", "corrected")),
        Family("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", C, gpu, "Uncorrected memory errors over the lifetime of the board.",
               'gpu_ecc_errors_total{error="uncorrected"}', of("ecc_errors", "uncorrected")),
        *(Family(f"DCGM_FI_DEV_NVLINK_{theirs}_ERROR_COUNT_TOTAL", C, gpu, "NVLink errors of this kind, all links.",
                 f'gpu_nvlink_errors_total{{error="{ours}"}}', of("nvlink_errors", ours))
          for theirs, ours in (("CRC_FLIT", "crc_flit"), ("CRC_DATA", "crc_data"), ("REPLAY", "replay"),
                               ("RECOVERY", "recovery"))),
        Family("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", G, gpu,
               "NVLink traffic in both directions in units of 1000 KiB per second, as in DCGM; read every tenth tick.",
               "gpu_nvlink_transmit_bytes_total", at("nvlink_bytes_per_s", 1_024_000)),
        Family("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", C, gpu, "Memory rows replaced after uncorrectable errors.",
               'gpu_remapped_rows_total{cause="uncorrectable"}', of("remapped_rows", "uncorrectable")),
        Family("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", C, gpu, "Memory rows replaced after correctable errors.",
               'gpu_remapped_rows_total{cause="correctable"}', of("remapped_rows", "correctable")),
        Family("DCGM_FI_DEV_ROW_REMAP_FAILURE", G, gpu, "1 if a memory row could not be replaced.",
               "gpu_row_remap_failed", flag("row_remap_failed")),
        Family("DCGM_FI_DEV_VGPU_LICENSE_STATUS", G, gpu, "1 if the vGPU is licensed; 0 on bare metal.",
               "gpu_vgpu_license_active", flag("vgpu_licensed")),
        *_activities(active, by_owner),
        Family("DCGM_FI_PROF_PCIE_TX_BYTES", G, gpu, "PCIe traffic from the GPU in bytes per second.",
               "gpu_pcie_transmit_bytes_per_second", pcie("transmit")),
        Family("DCGM_FI_PROF_PCIE_RX_BYTES", G, gpu, "PCIe traffic to the GPU in bytes per second.",
               "gpu_pcie_receive_bytes_per_second", pcie("receive")),
    )  # fmt: skip


def _active(field: str) -> Callable[[ActivePart], Value | None]:
    read = divided(field)
    return lambda part: read(part.activity)


def _activities(active: Kind, by_owner: str) -> Iterable[Family]:
    for theirs, part, ours in (
        ("GR_ENGINE_ACTIVE", "graphics_pct", "graphics_active"),
        ("SM_ACTIVE", "sm_pct", "sm_active"),
        ("SM_OCCUPANCY", "occupancy_pct", "sm_occupancy"),
        ("PIPE_TENSOR_ACTIVE", "tensor_pct", "tensor_active"),
        ("DRAM_ACTIVE", "dram_pct", "dram_active"),
        ("PIPE_FP64_ACTIVE", "fp64_pct", "fp64_active"),
        ("PIPE_FP32_ACTIVE", "fp32_pct", "fp32_active"),
        ("PIPE_FP16_ACTIVE", "fp16_pct", "fp16_active"),
    ):
        without_gpm = ". Utilization on GPUs without GPM" if part == "graphics_pct" else ""
        yield Family(
            f"DCGM_FI_PROF_{theirs}", G, active,
            f"Activity of this part of the chip, from 0 to 1{without_gpm}{by_owner}", f"gpu_{ours}_ratio",
            _active(part),
        )  # fmt: skip


def optional_families(kinds: Kinds) -> tuple[Family, ...]:
    """Families that no default list contains; exposed if selected."""
    gpu, device = kinds.gpus, kinds.devices
    return (
        Family("DCGM_FI_DEV_FB_TOTAL", G, device, "Total memory of the device in MiB.", "gpu_memory_total_bytes",
               mib("memory_total_bytes")),
        Family("DCGM_FI_DEV_POWER_USAGE_INSTANT", G, gpu, "Power of the whole GPU in W.", "gpu_power_watts",
               at("power_mw", 1000)),
        Family("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", G, gpu, "Enforced power limit in W.", "gpu_power_limit_watts",
               at("power_limit_mw", 1000)),
        Family("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", G, gpu, "Default power limit in W.",
               "gpu_power_default_limit_watts", at("power_default_limit_mw", 1000)),
        Family("DCGM_FI_DEV_PSTATE", G, gpu, "Performance state; 0 is the fastest.", "gpu_performance_state",
               at("performance_state")),
        Family("DCGM_FI_DEV_FAN_SPEED", G, gpu, "Speed of the first fan in percent.", 'gpu_fan_speed_ratio{fan="0"}',
               of("fans_pct", "0")),
        Family("DCGM_FI_DEV_VIDEO_CLOCK", G, gpu, "Video clock in MHz.", 'gpu_clock_hertz{clock="video"}',
               of("clocks_mhz", "video")),
        Family("DCGM_FI_DEV_ROW_REMAP_PENDING", G, gpu, "1 if memory rows will be replaced at the next reset.",
               "gpu_row_remap_pending", flag("row_remap_pending")),
        Family("DCGM_FI_DEV_PCIE_LINK_GEN", G, gpu, "Current PCIe generation.", "gpu_pcie_link_generation",
               at("pcie_generation")),
        Family("DCGM_FI_DEV_PCIE_LINK_WIDTH", G, gpu, "PCIe lanes in use.", "gpu_pcie_link_width", at("pcie_width")),
        Family("DCGM_FI_DEV_MIG_MODE", G, gpu, "1 if MIG mode is enabled.", "gpu_mig_enabled",
               flag("mig_enabled")),
        Family("DCGM_FI_PROF_PIPE_INT_ACTIVE", G, kinds.active, "Activity of the integer pipe, from 0 to 1.",
               "gpu_integer_active_ratio", _active("integer_pct")),
    )  # fmt: skip


def sharing_families(kinds: Kinds) -> tuple[Family, ...]:
    """The family that names the pods of a shared device, if its series do not."""
    if kinds.shared != DEVICE:
        return ()
    return (
        Family("gpu_sharing_info", G, kinds.sharers, "1 for each container that shares this device with others.",
               "container_gpu_detected", value=lambda one: one),
    )  # fmt: skip


def families(choices: Choices) -> tuple[Family, ...]:
    """The families of a default installation, or the selected ones, under the chosen names."""
    chosen, names = choices.counters, choices.names
    fields = USUAL_LABELS if chosen is None else [c.field for c in chosen if c.type == LABEL]
    kinds = kinds_of(choices, fields)
    known = _known(kinds, choices)
    if chosen is None:
        default = [named for family in default_families(kinds) for named in _named(family, names)]
        more = () if names == OLD else _named(known["DCGM_FI_DEV_FB_TOTAL"], NEW)  # a default since 4.9
        return (*default, *more, *sharing_families(kinds))
    selected: dict[str, Family] = {}
    for counter in chosen:
        rename = BY_NEW.get(counter.field)
        if counter.type != LABEL and (family := known.get(rename.old if rename else counter.field)) is not None:
            # A list can have both names itself.
            (named,) = _named(family, names if names != BOTH else NEW if rename else OLD)
            selected.setdefault(named.name, _as_chosen(named, counter))
    return (*selected.values(), *sharing_families(kinds))


def _named(family: Family, names: str) -> tuple[Family, ...]:
    """The family under its old name, its new one with the new unit, or both."""
    if (rename := BY_OLD.get(family.name)) is None:
        return (family,)
    new = replace(family, name=rename.new, help=family.help.replace(rename.unit.old, rename.unit.new))
    if family.name in EXACT:
        new = replace(new, value=EXACT[family.name])
    elif family.value is not None:
        new = replace(new, value=_in_unit(family.value, rename.unit))
    return {OLD: (family,), NEW: (new,)}.get(names, (family, new))


def _in_unit(read: Callable[[Any], Value | None], unit: Unit) -> Callable[[Any], Value | None]:
    if unit is SAME:
        return read
    return lambda thing: None if (v := read(thing)) is None else v * unit.times if unit.per == 1 else v / unit.per


def unknown_fields(chosen: Iterable[Counter]) -> list[str]:
    """Selected fields that are unknown."""
    known = {*_known(kinds_of(Choices(), ()), Choices()), *BY_NEW}
    labels = {*LABELS, *RENAMED_LABELS.values()}
    return [c.field for c in chosen if c.field not in (labels if c.type == LABEL else known)]


def _known(kinds: Kinds, choices: Choices) -> dict[str, Family]:
    """All families, by their old names."""
    return {family.name: family for family in (*default_families(kinds), *optional_families(kinds), *_older(choices))}


def _older(choices: Choices) -> tuple[Family, ...]:
    """Families of 1.x: a list of counters may contain them too. Their series have the labels of 1.x."""
    return DIALECTS["dcgm1"].families(choices)


def _as_chosen(family: Family, counter: Counter) -> Family:
    """The family with the type of a list, and its help if that is of the same name and unit."""
    own = counter.help if counter.field == family.name else ""
    return replace(family, type=Type(counter.type), help=own or family.help)


def _spelled(field: str, old: str, choices: Choices) -> tuple[str, ...]:
    """The names of a label. A list can have both names itself."""
    new = RENAMED_LABELS.get(old, old)
    if choices.names == BOTH:
        return (field,) if choices.counters is not None else (old, new)
    return (old,) if choices.names == OLD else (new,)


def kinds_of(choices: Choices, fields: Iterable[str]) -> Kinds:
    """The kinds with dcgm-exporter's labels; `fields` are labels under an old or a new name."""
    by_new = {new: old for old, new in RENAMED_LABELS.items()}
    versions = {
        name: LABELS[old]
        for field in fields
        if (old := by_new.get(field, field)) in LABELS
        for name in _spelled(field, old, choices)
    }
    labels = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", *HOSTNAMES,
              *versions,
              "container", "namespace", "pod", "pod_uid")  # fmt: skip

    def values(tick: Tick, holding: Holding, holder: HolderLabels) -> tuple[str, ...]:
        gpu, instance = holding.gpu.device, holding.reading.device
        mig = ("", "")
        if instance.parent_uuid:
            mig = (instance.mig_profile, "" if (n := instance.gpu_instance_id) is None else str(n))
        index = str(gpu.index)
        return (
            index, gpu.uuid, gpu.pci_bus_id, f"nvidia{index}", gpu.name, *mig, *[choices.hostname] * len(HOSTNAMES),
            *(read(tick, holding.gpu) for read in versions.values()),
            holder.container, holder.namespace, holder.pod, holder.pod_uid,
        )  # fmt: skip

    return Kinds(labels, values, pod_uid=choices.pod_uid, shared=choices.shared)
