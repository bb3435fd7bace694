"""Energies of another exporter, to be scored instead of gpuledger's: `python -m bench.attribution --booked FILE`.

The file is a JSON object: for each recording by name, a list of `[time, {pid: joules}]` or `[time, {pid: joules},
{pid: error}]`. Times are those of the recording. Joules are the energy above parked power that was attributed to the
process so far; values between two times are interpolated. Errors are standard deviations of the process's share.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.replay import Shares, Step
from bench.truth import Counter

Booked = Mapping[str, list[Any]]
"""Entries by recording."""


def read(path: Path) -> Booked:
    """A file in the format above; a ValueError says what is wrong with it."""
    try:
        booked = json.loads(path.read_text())
        for entries in booked.values():
            for time_s, joules, *errors in entries:
                float(time_s), _by_pid(joules), [_by_pid(of) for of in errors]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} has no booked energies: {type(error).__name__}: {error}") from None
    return booked  # type: ignore[no-any-return]


def scored(steps: list[Step], entries: list[Any]) -> list[Step]:
    """Steps of a recording with other energies and errors as `ours`."""
    if not entries:
        raise ValueError("no booked energies")
    ordered = sorted(entries, key=lambda entry: float(entry[0]))
    times = [float(entry[0]) for entry in ordered]
    joules = [_by_pid(entry[1]) for entry in ordered]
    errors = [_by_pid(entry[2]) if len(entry) > 2 else {} for entry in ordered]
    pids = steps[0].joules["ours"]
    counters = {pid: Counter([(at, of.get(pid, 0.0)) for at, of in zip(times, joules, strict=True)]) for pid in pids}
    return [
        replace(
            step,
            joules=step.joules | {"ours": {pid: counter.at(step.time_s) for pid, counter in counters.items()}},
            errors=errors[max(0, bisect_right(times, step.time_s) - 1)],
            active_s={unit: dict.fromkeys(of, 0.0) for unit, of in step.active_s.items()},
        )
        for step in steps
    ]


def _by_pid(numbers: Mapping[str, Any]) -> Shares:
    return {int(pid): float(number) for pid, number in numbers.items()}
