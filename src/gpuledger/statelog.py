"""Log lines that are written once per change of a state, however often the state is observed."""

from __future__ import annotations

import logging


class StateLog:
    """The last state of each subject. An empty reason means that the subject is well."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._reasons: dict[str, str] = {}

    def assume(self, subject: str, reason: str) -> None:
        """Set the initial state without logging it."""
        self._reasons[subject] = reason

    def change(self, subject: str, reason: str, problem: str, recovery: str) -> None:
        """Log `problem` if the reason is new, or `recovery` if there is none any more."""
        if reason == self._reasons.get(subject, ""):
            return
        self._reasons[subject] = reason
        if reason:
            self._log.warning(problem)
        else:
            self._log.info(recovery)
