"""Log lines once per change."""

from __future__ import annotations

import logging

import pytest

from gpuledger.runtime.statelog import StateLog


def test_a_state_is_said_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often a problem is seen, it is one line when it begins, one when it changes and one when it ends."""
    caplog.set_level(logging.INFO)
    said = StateLog(logging.getLogger("test"))

    for reason in ("", "lost", "lost", "lost", "hung", "hung", "", "", "lost"):
        said.change("gpu 0", reason, f"down: {reason}", "back")

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "down: lost"), ("WARNING", "down: hung"), ("INFO", "back"), ("WARNING", "down: lost"),
    ]  # fmt: skip


def test_things_are_kept_apart(caplog: pytest.LogCaptureFixture) -> None:
    """What was said of one GPU does not silence another."""
    said = StateLog(logging.getLogger("test"))

    said.change("gpu 0", "lost", "0 is lost", "")
    said.change("gpu 1", "lost", "1 is lost", "")

    assert caplog.messages == ["0 is lost", "1 is lost"]


def test_a_percent_sign_in_a_reason_is_just_that(caplog: pytest.LogCaptureFixture) -> None:
    """Reasons come from drivers and files: they are never taken for a format."""
    StateLog(logging.getLogger("test")).change("x", "100%s", "100%s %d", "")

    assert caplog.messages == ["100%s %d"]


def test_a_state_that_is_assumed_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    """Only leaving it is."""
    caplog.set_level(logging.INFO)
    said = StateLog(logging.getLogger("test"))
    said.assume("driver", "not opened yet")

    said.change("driver", "not opened yet", "down", "up")
    assert not caplog.messages
    said.change("driver", "", "down", "up")
    assert caplog.messages == ["up"]
