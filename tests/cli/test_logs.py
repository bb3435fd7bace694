"""A log record is one line, whatever it holds."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.cli.logs import LEVELS, LineFormatter, set_up
from gpuledger.config.exporter import LOG_LEVELS

ODD = st.text() | st.sampled_from(["a\nb", "\r\n", "\x1b[31m", '"', "\\", "", "a=b c", "\u2028", "\x85", "\ud800"])
LOGFMT = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[A-Za-z0-9._]+)(?: |$)')


def record(message: str, level: int = logging.INFO, *, error: Exception | None = None) -> logging.LogRecord:
    """A record of ours at a known time."""
    caught = None
    if error is not None:
        try:
            raise error
        except Exception:  # noqa: BLE001 - to have its traceback
            caught = sys.exc_info()
    made = logging.LogRecord("gpuledger.loop", level, "", 0, message, (), caught)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


@given(ODD)
def test_logfmt_is_one_line_that_can_be_taken_apart(message: str) -> None:
    """And gives the message back."""
    line = LineFormatter("logfmt").format(record(message))

    assert len(line.splitlines()) == 1
    fields = {key: json.loads(text) if text[0] == '"' else text for key, text in LOGFMT.findall(line)}
    assert list(fields) == ["time", "level", "source", "msg"]
    assert fields["msg"] == message


@given(ODD)
def test_json_is_one_line_that_can_be_parsed(message: str) -> None:
    """And gives the message back."""
    line = LineFormatter("json").format(record(message))

    assert len(line.splitlines()) == 1
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z", "level": "info", "source": "loop", "msg": message,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_traceback_is_part_of_the_line(form: str) -> None:
    """Nothing is spread over several."""
    line = LineFormatter(form).format(record("oh", error=ValueError("a\nb")))

    assert len(line.splitlines()) == 1
    assert "ValueError" in line
    assert "Traceback" in line


@pytest.mark.parametrize(
    ("level", "name"),
    [(logging.DEBUG, "debug"), (logging.WARNING, "warn"), (logging.ERROR, "error"), (logging.CRITICAL, "error")],
)
def test_levels_have_the_names_of_the_setting(level: int, name: str) -> None:
    """What --log.level takes is what the lines say."""
    assert f" level={name} " in LineFormatter("logfmt").format(record("x", level))
    assert set(LEVELS) == set(LOG_LEVELS)


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines go to standard error, from the level on."""
    set_up("warn", "logfmt")
    logging.getLogger("gpuledger.x").info("quiet")
    logging.getLogger("gpuledger.x").warning("loud")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.endswith(" level=warn source=x msg=loud\n")
