"""Log lines written once per change of a state, however often the state is seen."""

from __future__ import annotations

import logging


class Said:
    """Remembers what was last said about each thing. An empty reason means all is well."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._reasons: dict[str, str] = {}

    def assume(self, thing: str, reason: str) -> None:
        """Begin in this state without a word."""
        self._reasons[thing] = reason

    def change(self, thing: str, reason: str, problem: str, recovery: str) -> None:
        """Log `problem` when the reason is new, `recovery` when there is none any more."""
        before = self._reasons.get(thing, "")
        if reason == before:
            return
        self._reasons[thing] = reason
        if reason:
            self._log.warning(problem)
        else:
            self._log.info(recovery)
