"""The books of every recording are the stored ones, tick by tick.

A change that alters the books on purpose writes the digests again with `GOLDEN=write` and says why in its commit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuledger.books import Books
from gpuledger.model import Tick
from gpuledger.recording.replay import Replay
from tests import h200
from tests.checkout import ROOT

STORED = Path(__file__).parent / "golden" / "replay-digests.json"
DEMO = ROOT / "src" / "gpuledger" / "demo.jsonl.gz"
DEMO_LAPS = 2
RECORDINGS = sorted(h200.FOLDER.rglob("*.json.gz"))
BOOKED = ("processes", "containers", "accounts", "memory", "allocations", "unattributed_activity", "learned")
"""What the books add to a tick: rows with energy by method and their errors, accounts, allocations, fingerprints."""


def recording_name(path: Path) -> str:
    """The path of a recording below the folder of all of them."""
    return path.relative_to(h200.FOLDER).as_posix().removesuffix(".json.gz")


def h200_ticks(path: Path) -> list[Tick]:
    """The ticks of an H200 recording, before the books."""
    recording = h200.load(path)
    return h200.mig_ticks(recording) if "mig" in path.parts else h200.ticks(recording)


def demo_ticks() -> Iterable[Tick]:
    """The ticks of the bundled recording, over the seam between two laps."""
    replay = Replay(DEMO, looped=True, paced=False)
    while replay._laps < DEMO_LAPS:
        yield replay.read()


def digests(ticks: Iterable[Tick]) -> str:
    """Eight hexadecimal digits for each tick after the books."""
    books = Books(keep_ns=15_000_000_000)
    return " ".join(digest(books.book(tick)) for tick in ticks)


def digest(tick: Tick) -> str:
    """A digest of what the books added to a tick. Floats count with nine digits, down to 1e-9: the rest is rounding."""
    booked = json.dumps([plain(getattr(tick, name)) for name in BOOKED])
    return hashlib.sha256(booked.encode()).hexdigest()[:8]


def plain(value: Any) -> Any:
    """A value as JSON: records as the values of their fields. No recording has containers inside others."""
    if is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in fields(value) if field.name != "outer"]
    if isinstance(value, Mapping):
        return sorted((str(key), plain(item)) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return f"{value:.9g}" if abs(value) > 1e-9 else "0"
    return value


def check(name: str, made: str) -> None:
    """Compare the digests of one recording with the stored ones, and name the first tick that differs."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("GOLDEN") == "write":
        STORED.write_text(json.dumps({**stored, name: made}, indent=0, sort_keys=True) + "\n")
        return
    pairs = zip(made.split(), stored[name].split(), strict=True)
    different = [number for number, (new, old) in enumerate(pairs) if new != old]
    assert not different, f"{len(different)} ticks of {name} differ, the first is number {different[0]}"


def test_the_demo_is_booked_as_before() -> None:
    """Every tick of two laps of the demo has the stored digest."""
    check("demo", digests(demo_ticks()))


@pytest.mark.parametrize("path", RECORDINGS, ids=recording_name)
def test_a_recording_of_an_h200_is_booked_as_before(path: Path) -> None:
    """Every tick of the recording has the stored digest."""
    check(recording_name(path), digests(h200_ticks(path)))


def test_no_digest_is_left_over() -> None:
    """Every stored digest belongs to a recording, so that a lost recording is noticed."""
    assert set(json.loads(STORED.read_text())) == {"demo", *map(recording_name, RECORDINGS)}
