"""`gpuledger report` as a user runs it, against servers that answer badly: one line, an exit code, and no number."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.cli import terminal as terminal_module
from gpuledger.cli.terminal import Progress
from tests.cli.running import COMMAND, gpuledger, surroundings
from tests.integrations.dcgmexporter.server import Upstream, hang, page, upstream
from tests.waiting import free_port


def matrix(*series: tuple[dict[str, str], str], **more: object) -> bytes:
    """A range vector of one moment."""
    result = [{"metric": labels, "values": [[1793577600, value]]} for labels, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, **more}).encode()


@pytest.fixture
def server() -> Iterator[Upstream]:
    """Answers every query with one series without labels: 3.6 MJ, seconds or bytes."""
    with upstream(page(matrix(({}, "3600000")))) as running:
        yield running


def words(server: Upstream, *more: str) -> list[str]:
    """A report on one cell, the second before 2026-11-02."""
    url = server.root
    return ["report", f"--prometheus.url={url}", "--to=2026-11-02", "--since=10s", *more]


def test_a_report_is_printed(server: Upstream) -> None:
    """Exit code 0 and nothing on standard error, which is no terminal."""
    done = gpuledger(*words(server, "--price=0.30", "--currency=EUR"))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2026-11-01T23:59:50Z to 2026-11-02T00:00:00Z\n")
    assert "energy EUR" in done.stdout


@pytest.mark.parametrize("name", ["report.csv", "report.json", "report.html", "report.txt"])
def test_a_report_in_a_file(server: Upstream, tmp_path: Path, name: str) -> None:
    """The suffix decides the format, and nothing is printed."""
    done = gpuledger(*words(server, f"--output={tmp_path / name}"))
    begins = {"csv": "from,to", "json": "{", "html": "<!doctype html>", "txt": "2026-"}[name.partition(".")[2]]

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / name).read_text().startswith(begins)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        ("401 Unauthorized", b"no", "status 401: authentication failed"),
        ("302 Found", b"", "redirects are not followed"),
        ("404 Not Found", b"404 page not found", "check the path prefix of --prometheus.url"),
        ("200 OK", b"<!doctype html>", "with HTML"),
        ("200 OK", b'{"status":"success","data":{"resultType":"vector","result":[]}}', "not in the format of"),
        ("200 OK", b'{"status":"success"}', "is not in the format of Prometheus"),
        ("200 OK", matrix(), "no metrics of gpuledger from 2026-11-01T23:59:50Z to 2026-11-02T00:00:00Z"),
        ("200 OK", matrix(({}, "1"), warnings=["store is down"]), "Prometheus warns: store is down"),
        ("200 OK", matrix(({}, "1"), isPartial=True), "the response is partial"),
        ("200 OK", matrix(({}, "NaN")), "1 values of gpu_up are NaN, infinite or above 1e+24"),
        ("200 OK", matrix(({}, "+Inf")), "NaN, infinite or above"),
        ("503 Service Unavailable", b'{"status":"error","errorType":"timeout","error":"query timed out"}',
         "timed out in Prometheus: query timed out"),
        ("422 Unprocessable Entity", b'{"status":"error","errorType":"execution","error":"too many samples"}',
         "too many samples"),
    ],
)  # fmt: skip
def test_each_bad_answer_is_one_line(server: Upstream, tmp_path: Path, status: str, body: bytes, says: str) -> None:
    """Exit code 1; nothing is printed, and no file is written."""
    server.say = page(body, status)
    done = gpuledger(*words(server, f"--output={tmp_path / 'report.csv'}"))

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("gpuledger: ")
    assert says in done.stderr
    assert len(done.stderr) < 1000
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_or_hangs(server: Upstream) -> None:
    """Exit code 1, after the timeout at most."""
    unreachable = gpuledger("report", f"--prometheus.url=http://127.0.0.1:{free_port()}")
    untrusted = gpuledger("report", f"--prometheus.url={server.url.removesuffix('/metrics').replace('http', 'https')}")
    server.say = hang
    slow = gpuledger(*words(server, "--prometheus.timeout=200ms"))

    for done, says in ((unreachable, "cannot reach"), (untrusted, "no TLS with"), (slow, "no complete answer from")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert says in done.stderr


def test_invalid_flags_are_exit_code_2(server: Upstream, tmp_path: Path) -> None:
    """Before any query is sent."""
    for more, says in (
        (["--by=gpu"], "is not one of namespace, pod"),
        (["--output=report.pdf"], "set --format"),
        (["--to=2999-01-01"], "is in the future"),
        (["--price=cheap"], "is not an amount"),
        (["--prometheus.user=ada"], "belong together"),
    ):
        done = gpuledger(*words(server, *more))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert says in done.stderr
    assert server.asked == []
    lost = gpuledger(*words(server, f"--output={tmp_path / 'none' / 'report.csv'}"))
    assert (lost.returncode, "cannot write" in lost.stderr) == (2, True)


def test_partial_answers_are_reported_with_allow_partial(server: Upstream) -> None:
    """The report has a note."""
    server.say = page(matrix(({}, "1"), warnings=["store is down"]))
    done = gpuledger(*words(server, "--allow-partial"))

    assert done.returncode == 0
    assert "note: Prometheus warns: store is down" in done.stdout


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._terminal


@pytest.mark.parametrize(
    ("terminal", "patience_s", "drawn"), [(True, 0.0, True), (True, 1000.0, False), (False, 0.0, False)]
)
def test_progress_is_for_terminals_and_for_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, patience_s: float, drawn: bool
) -> None:
    """The bar is erased at the end."""
    monkeypatch.setattr(terminal_module, "PROGRESS_AFTER_S", patience_s)
    screen = Screen(terminal=terminal)
    bar = Progress("asking", screen)
    bar.show(0.5)
    shown = screen.getvalue()
    bar.close()

    assert ("[###############...............]  50 %" in shown) is drawn
    assert screen.getvalue().endswith("\r\x1b[K") is drawn


def test_colours_need_a_terminal_without_no_color(server: Upstream) -> None:
    """Colours on a real terminal, and none with NO_COLOR."""
    found = []
    for variables in ({}, {"NO_COLOR": "1"}):
        ours, theirs = os.openpty()
        with subprocess.Popen(
            [*COMMAND, *words(server)], stdout=theirs, stderr=theirs, env=surroundings(None, **variables)
        ) as process:
            os.close(theirs)
            text = b""
            try:
                while piece := os.read(ours, 4096):
                    text += piece
            except OSError:  # the other end is closed
                pass
            os.close(ours)
        assert process.returncode == 0
        found.append(b"\x1b[1m" in text)
    assert found == [True, False]


def test_a_folder_needs_departments(server: Upstream, tmp_path: Path) -> None:
    """One line and exit code 2, and nothing is created."""
    done = gpuledger(*words(server, f"--output={tmp_path}/bills/", "--format=csv"))

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a folder has a file for each department of --map" in done.stderr
    assert not list(tmp_path.iterdir())
