"""A check that may hang: it has a thread of its own and a time limit, and hanging is what it finds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuledger.doctor.finding import Finding, problem
from gpuledger.sources.worker import Worker

log = logging.getLogger(__name__)

T = TypeVar("T")


class Bounded(Generic[T]):
    """Begins at once; the limit counts from then on. One that hangs is left behind and ends with the process."""

    def __init__(self, name: str, job: Callable[[], T], limit_s: float, fix: str) -> None:
        self._name, self._limit_s, self._fix = name, limit_s, fix
        self._until = time.monotonic() + limit_s
        self._worker: Worker[T] = Worker(f"check {name}")
        self._worker.start(job)

    def outcome(self) -> T | Finding:
        """What the job gave, or the finding that it gave nothing."""
        try:
            found = self._worker.result(max(0.0, self._until - time.monotonic()))
        except Exception as error:  # the other checks are still worth their lines
            log.debug("%s", self._name, exc_info=True)
            reason = f"the check itself failed: {type(error).__name__}: {error}"
            return problem(self._name, reason, "please report it, with `gpuledger doctor --bundle FILE`")
        finally:
            self._worker.close()
        if found is None:
            return problem(self._name, f"does not come back within {self._limit_s:g} s", self._fix)
        return found


def findings(check: Bounded[list[Finding]]) -> list[Finding]:
    """Those of a check that gives some."""
    found = check.outcome()
    return [found] if isinstance(found, Finding) else found
