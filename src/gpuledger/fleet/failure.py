"""The one error of this part."""

from __future__ import annotations

from gpuledger.errors import GpuledgerError


class PrometheusError(GpuledgerError):
    """There is no good answer now. The message says what failed and what to do, `reason` is its kind for a metric."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, kind=reason)
        self.reason = reason
