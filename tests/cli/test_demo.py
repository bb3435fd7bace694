"""`gpuledger demo`: the bundled recording, served where there is no GPU."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import pytest

from gpuledger.books import Books
from gpuledger.cli import demo, main
from gpuledger.recording.replay import Replay
from tests.cli.running import serving, surroundings


def test_the_demo_shows_gpus_with_their_processes() -> None:
    """Without a driver, at once; it names where to look and stops when told."""
    with serving("demo", "--tick.interval=100ms", env=surroundings()) as server:
        body = server.metrics(r"^gpu_process_memory_used_bytes\{")
        page = server.get("/")
        picture = json.loads(server.metrics('"gpus"', "/api/v1/snapshot"))
        past = json.loads(server.get("/api/v1/history"))
        code, took_s, errors = server.stop()

    assert "\ngpuledger_up 1\n" in body
    assert re.search(r"^gpu_power_watts\{.*\} [1-9]", body, re.MULTILINE)
    assert '<a href="./metrics">Prometheus metrics</a>' in page
    assert picture["recording"]
    assert len(picture["gpus"]) == len(past["gpus"]["rows"]) == 4
    assert (code, took_s < 2) == (0, True)
    assert "Traceback" not in errors


def test_a_stream_ends_with_the_exporter() -> None:
    """A client gets every tick and a clean end; the exporter does not wait for it."""
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


def test_the_first_minute_shows_everything() -> None:
    """A pod alone, shared, parked and retired energy, inferred memory, users, and an allocated GPU that is not used."""
    replay, books = Replay(demo.RECORDING, paced=False), Books(keep_ns=int(demo.RETENTION_S * 1e9))
    ticks = []
    while not replay.ended:
        ticks.append(books.book(replay.read()))

    assert 50 <= (ticks[-1].time_ns - ticks[0].time_ns) / 1e9 <= 61
    last = ticks[-1]
    methods = {use.owner.display_name: dict(use.energy_mj) for use in last.processes}
    assert set(methods["search/embed-28841/embed"]) == {"exclusive"}
    assert {"fingerprint"} < set(methods["ml/llama-finetune-0/trainer"]) & set(
        methods["serving/chat-7c9d8f6b5d-x2x4z/vllm"]
    )
    assert set(methods["ollama.service"]) == {"parked"}
    assert "session-4.scope" not in methods
    assert any(use.owner.user == "alice" for tick in ticks for use in tick.processes)
    assert last.accounts[last.readings[0].device.uuid].retired_mj > 1_000_000
    unused = last.readings[2].device
    assert [found.owner.pod for found in last.owners.allocations if found.device == unused] == ["notebook-dana-0"]
    assert not last.accounts[unused.uuid].in_use
    inferred = [use for tick in ticks for use in tick.containers if use.inferred_bytes]
    assert {use.owner.container for use in inferred} == {"triton"}


def test_little_energy_of_the_demo_is_unattributed() -> None:
    """Less than 5 %, over the laps, except for the energy from before the start."""
    second = 0.0
    replay = Replay(demo.RECORDING, looped=True, monotonic=lambda: second)
    books = Books(keep_ns=int(demo.RETENTION_S * 1e9))
    first = tick = books.book(replay.read())
    for _ in range(150):
        second += 1.0
        tick = books.book(replay.read())

    used = sum((tick.accounts[uuid].energy_mj or 0) - (first.accounts[uuid].energy_mj or 0) for uuid in tick.accounts)
    unattributed = sum(
        mj for account in tick.accounts.values() for reason, mj in account.unattributed_mj if reason != "before"
    )
    assert 0 < unattributed < used / 20


def test_a_missing_recording_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As any other thing that is not there."""
    monkeypatch.setattr(demo, "RECORDING", tmp_path / "demo.gz")

    assert main(["demo"]) == 2
    assert capsys.readouterr().err == (
        f"gpuledger: the demo's recording {tmp_path / 'demo.gz'} is missing; reinstall gpuledger\n"
    )
