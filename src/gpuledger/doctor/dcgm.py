"""DCGM, where it is asked."""

from __future__ import annotations

from gpuledger.doctor.finding import Finding, explained, ok, unused
from gpuledger.model import DcgmHealth


def dcgm(health: DcgmHealth | None) -> list[Finding]:
    """Whether it answers; None where nobody asks it."""
    if health is None:
        return [unused("dcgm", "--collector.dcgm is off")]
    if health.up:
        return [ok("dcgm", f"{health.version} answers ({health.mode}, {health.library})")]
    if health.reason == "not asked yet":
        return [explained("dcgm", "has not answered in the time there is; see whether nv-hostengine hangs")]
    return [explained("dcgm", health.reason)]
