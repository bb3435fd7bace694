"""How busy each process was lately."""

from __future__ import annotations

from gpuledger.model import Reading, Sample

WINDOW_US = 1_500_000
"""How long a row of the driver speaks for its process: rows come about every 0.2 s while it works."""


class RecentSamples:
    """The newest utilization row of each process on each device.

    The driver gives each row once. With ticks shorter than its sampling a busy process has no new row in most ticks;
    its last one counts until the window has passed without another.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Sample]] = {}

    def update(self, reading: Reading, now_us: int) -> dict[int, Sample] | None:
        """Rows by pid that still count; None when this device does not tell utilization by process."""
        uuid = reading.device.uuid
        if reading.samples is None:
            self._rows.pop(uuid, None)
            return None
        rows = {pid: row for pid, row in self._rows.get(uuid, {}).items() if now_us - row.timestamp_us < WINDOW_US}
        rows.update((row.pid, row) for row in reading.samples)
        self._rows[uuid] = rows
        return rows
