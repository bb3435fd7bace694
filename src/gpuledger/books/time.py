"""How busy each process was lately."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model import Facts, Reading, Sample

WINDOW_US = 1_500_000
"""How long a row of the driver speaks for its process: rows come about every 0.2 s while it works."""


Row = tuple[Sample, int | None]
"""With when its process started, if that is known: a pid alone may by now be another's."""


class RecentSamples:
    """The newest utilization row of each process on each device.

    The driver gives each row once. With ticks shorter than its sampling a busy process has no new row in most ticks;
    its last one counts until the window has passed without another.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Row]] = {}

    def update(self, reading: Reading, facts: Mapping[int, Facts], now_us: int) -> dict[int, Sample] | None:
        """Rows by pid that still count; None when this device does not tell utilization by process."""
        uuid = reading.device.uuid
        before = self._rows.pop(uuid, {})
        if reading.samples is None:
            return None
        started = {pid: known.start_ticks for pid, known in facts.items()}
        rows = {
            pid: (row, start)
            for pid, (row, start) in before.items()
            if abs(now_us - row.timestamp_us) < WINDOW_US  # also when the clock was set back
            and (start is None or started.get(pid, start) == start)
        }
        rows.update((row.pid, (row, started.get(row.pid))) for row in reading.samples)
        self._rows[uuid] = rows
        return {pid: row for pid, (row, _) in rows.items()}
