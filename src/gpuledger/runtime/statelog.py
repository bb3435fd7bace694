"""Logs changes of a state once, however often the state is observed."""

from __future__ import annotations

import logging


class StateLog:
    """The last state of each subject. An empty reason means that there is no problem."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._reasons: dict[str, str] = {}

    def assume(self, subject: str, reason: str) -> None:
        """Set the initial state without logging it."""
        self._reasons[subject] = reason

    def change(self, subject: str, reason: str, problem: str, recovery: str) -> None:
        """Log `problem` if the reason changed, or `recovery` if it became empty."""
        if reason == self._reasons.get(subject, ""):
            return
        self._reasons[subject] = reason
        if reason:
            self._log.warning(problem)
        else:
            self._log.info(recovery)
