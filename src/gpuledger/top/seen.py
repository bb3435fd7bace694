"""What a picture says, checked and cleaned: it may come from another host, of another version or in bad faith.

What is missing, or is not what it should be, is not known. Names can be shown as they are here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.model import OUTSIDE
from gpuledger.top.line import OWNERS, clean
from gpuledger.view.snapshot import VERSION, Picture

MOST = 20_000
"""Rows of one kind; an exporter shows 10,000 processes at most."""
LONGEST = 512
"""Characters of a name that are looked at."""
HOST = "host"
"""Stands for everybody who is known to be in no container and no service."""
NOBODY = "not known"
MEASURED = frozenset({"exclusive"})
"""Ways to know energy that are no estimate."""


class PictureError(ValueError):
    """It is no picture; says in one line what it is."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU or a MIG instance."""

    index: int
    uuid: str
    gpu_uuid: str
    name: str
    profile: str
    up: bool
    reason: str
    total_bytes: float | None
    used_bytes: float | None
    reserved_bytes: float | None
    known_bytes: float | None
    overhead_bytes: float | None
    unknown_bytes: float | None
    inferred_bytes: float | None
    busy: float | None
    power_watts: float | None
    limit_watts: float | None
    celsius: float | None
    slowed_by: tuple[str, ...]
    xids: Mapping[str, float]
    joules: float | None

    @property
    def label(self) -> str:
        """Its number, and the profile of an instance."""
        return f"{self.index}/{self.profile}" if self.profile else str(self.index)


@dataclass(frozen=True, slots=True)
class Use:
    """A process on a device, or a container with no process of its own shown."""

    gpu: int
    uuid: str
    gpu_uuid: str
    pid: int | None
    process: str
    kind: str
    namespace: str
    pod: str
    container: str
    container_id: str
    unit: str
    job: str
    workload: str
    image: str
    user: str
    unknown_because: str
    active: bool
    start_time: float | None
    memory_bytes: float | None
    inferred_bytes: float | None
    sm: float | None
    watts: float | None
    joules: Mapping[str, float]
    share_error: float | None
    busy_seconds: float | None
    processes: int
    fields: Mapping[str, Any] = field(repr=False, compare=False)
    """As they came, for whoever wants to see all of them."""

    @property
    def owner(self) -> str:
        """Whose it is, in one text."""
        if self.pod:
            return "/".join(part for part in (self.namespace, self.pod, self.container) if part)
        outside = HOST if self.unknown_because == OUTSIDE else f"({self.unknown_because or NOBODY})"
        return self.container or self.container_id[:12] or self.job or self.unit or outside


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, and what to do about it."""

    is_bad: bool
    """Something does not work; else something is missing."""
    about: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Seen:
    """All of a picture."""

    time: float | None
    interval_s: float | None
    node: str
    version: str
    recording: bool
    driver_up: bool
    driver_reason: str
    driver_version: str
    cuda_version: str
    gpus: tuple[Gpu, ...]
    processes: tuple[Use, ...]
    containers: tuple[Use, ...]
    hidden: int
    """Processes that the driver lists and the exporter does not show one by one."""
    problems: tuple[Problem, ...]
    colours: Mapping[str, str]
    """The style of each owner, the same in bars and in the table."""


def read(picture: object) -> Seen:
    """The picture; raises PictureError where it is none, or is of a version this program does not know."""
    if not isinstance(picture, dict) or not isinstance(picture.get("version"), int):
        raise PictureError("is no picture of gpuledger")
    if picture["version"] != VERSION:
        raise PictureError(f"is a picture of version {picture['version']}, and this program knows {VERSION}; "
                           "install the same gpuledger on both hosts")  # fmt: skip
    driver = _mapping(picture, "driver")
    processes = tuple(_use(one) for one in _rows(picture, "processes"))
    containers = tuple(_use(one) for one in _rows(picture, "containers"))
    return Seen(
        time=_number(picture, "time"),
        interval_s=_number(picture, "interval_seconds"),
        node=_text(picture, "node"),
        version=_text(picture, "gpuledger"),
        recording=picture.get("recording") is True,
        driver_up=driver.get("up") is True,
        driver_reason=_text(driver, "reason"),
        driver_version=_text(driver, "driver_version"),
        cuda_version=_text(driver, "cuda_version"),
        gpus=tuple(_gpu(one) for one in _rows(picture, "gpus")),
        processes=processes,
        containers=containers,
        hidden=max(0, int(_number(picture, "process_count") or 0) - len({use.pid for use in processes if use.active})),
        problems=tuple(
            Problem(one["level"] == "problem", _text(one, "about"), _text(one, "what"), _text(one, "fix"))
            for one in _rows(picture, "problems")
            if one.get("level") in ("problem", "warning")
        ),
        colours=_colours({use.owner for use in (*processes, *containers)}),
    )


def _colours(owners: set[str]) -> dict[str, str]:
    """By name, so that colours stay when others come and go; different ones as long as there are any."""
    found: dict[str, str] = {}
    for owner in sorted(owners):
        first = zlib.crc32(owner.encode("utf-8", "replace"))
        wanted = [OWNERS[(first + step) % len(OWNERS)] for step in range(len(OWNERS))]
        free = [style for style in wanted if style not in found.values()] if len(found) < len(OWNERS) else wanted
        found[owner] = free[0]
    return found


def _gpu(one: Picture) -> Gpu:
    memory, slowed = _mapping(one, "memory"), one.get("slowed_by")
    return Gpu(
        index=int(_number(one, "gpu") or 0),
        uuid=_text(one, "uuid"),
        gpu_uuid=_text(one, "gpu_uuid"),
        name=_text(one, "name"),
        profile=_text(one, "mig_profile"),
        up=one.get("up") is True,
        reason=_text(one, "reason"),
        total_bytes=_number(memory, "total_bytes"),
        used_bytes=_number(memory, "used_bytes"),
        reserved_bytes=_number(memory, "reserved_bytes"),
        known_bytes=_number(memory, "known_bytes"),
        overhead_bytes=_number(memory, "overhead_bytes"),
        unknown_bytes=_number(memory, "unknown_bytes"),
        inferred_bytes=_number(memory, "inferred_bytes"),
        busy=_number(one, "utilization_ratio"),
        power_watts=_number(one, "power_watts"),
        limit_watts=_number(one, "power_limit_watts"),
        celsius=_number(_mapping(one, "temperatures_celsius"), "gpu"),
        slowed_by=tuple(_cleaned(name) for name in slowed[:LONGEST]) if isinstance(slowed, list) else (),
        xids=_numbers(one, "xids"),
        joules=_number(_mapping(one, "energy"), "joules"),
    )


def _use(one: Picture) -> Use:
    pid = _number(one, "pid")
    return Use(
        gpu=int(_number(one, "gpu") or 0),
        uuid=_text(one, "uuid"),
        gpu_uuid=_text(one, "gpu_uuid"),
        pid=None if pid is None else int(pid),
        process=_text(one, "process_name"),
        kind=_text(one, "kind"),
        namespace=_text(one, "namespace"),
        pod=_text(one, "pod"),
        container=_text(one, "container"),
        container_id=_text(one, "container_id"),
        unit=_text(one, "unit"),
        job=_text(one, "job"),
        workload=_text(one, "workload"),
        image=_text(one, "image"),
        user=_text(one, "user"),
        unknown_because=_text(one, "unknown_because"),
        active=one.get("active") is not False,
        start_time=_number(one, "start_time"),
        memory_bytes=_number(one, "memory_bytes"),
        inferred_bytes=_number(one, "inferred_bytes"),
        sm=_number(one, "sm_ratio"),
        watts=_number(one, "watts"),
        joules=_numbers(one, "joules"),
        share_error=_number(one, "energy_share_error_ratio"),
        busy_seconds=_number(one, "busy_seconds"),
        processes=1 if "pid" in one else int(_number(one, "processes") or 0),
        fields=one,
    )


def _rows(of: Picture, name: str) -> list[Picture]:
    found = of.get(name)
    return [one for one in found[:MOST] if isinstance(one, dict)] if isinstance(found, list) else []


def _mapping(of: Picture, name: str) -> Picture:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _numbers(of: Picture, name: str) -> dict[str, float]:
    found = _mapping(of, name)
    told = {_cleaned(key): _number(found, key) for key in found}
    return {key: number for key, number in told.items() if number is not None}


def _number(of: Picture, name: str) -> float | None:
    """A number from 0 to 10^18: more is of no use, and some would not fit into a column."""
    found = of.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return found if 0 <= found <= 1e18 else None


def _text(of: Picture, name: str) -> str:
    found = of.get(name)
    return _cleaned(found) if isinstance(found, str) else ""


def _cleaned(text: object) -> str:
    return clean(str(text)[:LONGEST])
