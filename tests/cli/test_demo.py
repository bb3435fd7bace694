"""`gpuledger demo`: the bundled recording, served where there is no GPU."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import pytest

from gpuledger.cli import demo, main
from gpuledger.sources.recording import load, read_packed
from tests.cli.running import serving, surroundings


def test_the_demo_shows_a_gpu_with_its_processes() -> None:
    """Without a driver, at once; it names where to look and stops when told."""
    with serving("demo", "--tick.interval=100ms", env=surroundings()) as server:
        body = server.metrics(r"^gpu_process_memory_used_bytes\{")
        page = server.get("/")
        picture = json.loads(server.get("/api/v1/snapshot"))
        past = json.loads(server.get("/api/v1/history"))
        code, took_s, errors = server.stop()

    assert "\ngpuledger_up 1\n" in body
    assert re.search(r"^gpu_power_watts\{.*\} [1-9]", body, re.MULTILINE)
    assert '<a href="./metrics">metrics</a>' in page
    assert picture["recording"]
    assert len(picture["gpus"]) == len(past["gpus"]["rows"]) == 1
    assert (code, took_s < 2) == (0, True)
    assert "Traceback" not in errors


def test_a_stream_ends_with_the_exporter() -> None:
    """Who watches gets every tick, and a clean end; the exporter does not wait for them."""
    with (
        serving("demo", "--tick.interval=100ms", env=surroundings()) as server,
        urlopen(server.url + "/api/v1/events", timeout=10) as stream,
    ):
        times = [json.loads(line[6:])["time"] for line in islice(stream, 12) if line.startswith(b"data: ")]
        code, took_s, errors = server.stop()
        rest = stream.read()  # complains when the last chunk is missing

    assert len(times) > 2
    assert times == sorted(times)
    assert rest == b"" or rest.endswith(b"\n\n")
    assert (code, took_s < 2) == (0, True)
    assert "Traceback" not in errors


def test_the_recording_is_whole_and_worth_looking_at() -> None:
    """A minute or so, with processes of several owners that come and go, and energy that rises."""
    ticks = list(load(read_packed(demo.RECORDING), demo.RECORDING))

    assert 50 <= (ticks[-1].time_ns - ticks[0].time_ns) / 1e9 <= 120
    assert all(tick.driver.up for tick in ticks)
    assert len({facts.cgroup for tick in ticks for facts in tick.facts.values()}) >= 4
    assert len({frozenset(tick.facts) for tick in ticks}) >= 3
    counters = [tick.readings[0].energy_mj or 0 for tick in ticks]
    assert counters == sorted(counters)
    assert counters[-1] > counters[0]


def test_a_missing_recording_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As any other thing that is not there."""
    monkeypatch.setattr(demo, "RECORDING", tmp_path / "demo.gz")

    assert main(["demo"]) == 2
    assert capsys.readouterr().err == (
        f"gpuledger: the demo's recording {tmp_path / 'demo.gz'} is missing; reinstall gpuledger\n"
    )
