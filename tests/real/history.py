"""Samples of the past, made up by a test, in a real Prometheus or VictoriaMetrics."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from tests.real.daemons import start, stop
from tests.real.prometheus import Prometheus, command
from tests.waiting import free_port

Samples = Iterable[tuple[float, float]]
"""Unix seconds and value."""


class History:
    """Series and their samples."""

    def __init__(self) -> None:
        self._series: dict[str, list[tuple[str, list[tuple[float, float]]]]] = {}

    def add(self, name: str, labels: Mapping[str, str], samples: Samples) -> None:
        """One series."""
        inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
        self._series.setdefault(name, []).append((inside, list(samples)))

    def lines(self, unit: int) -> Iterator[str]:
        """Each sample, with its time in seconds (1) or milliseconds (1000)."""
        for name, series in self._series.items():
            if unit == 1:
                yield f"# TYPE {name} unknown\n"
            for labels, samples in series:
                for when, value in samples:
                    shown = f"{when:.3f}" if unit == 1 else f"{when * 1000:.0f}"
                    yield f"{name}{{{labels}}} {value!r} {shown}\n"

    def make_blocks(self, folder: Path) -> None:
        """The data folder of a Prometheus."""
        path = folder / "history.om"
        with path.open("w") as file:
            file.writelines(self.lines(1))
            file.write("# EOF\n")
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(path), str(folder / "data")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def remembering(history: History, kind: str = "prometheus") -> Iterator[Prometheus]:
    """A server of a kind that knows it."""
    with tempfile.TemporaryDirectory(prefix="history-") as name:
        folder = Path(name)
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": []}))
        if kind == "prometheus":
            history.make_blocks(folder)
        address = f"127.0.0.1:{free_port()}"
        server = Prometheus(f"http://{address}", 0)
        daemon = start(command(kind, config, folder / "data", address), folder / "log", server.ready)
        try:
            if kind != "prometheus":
                body = "".join(history.lines(1000)).encode()
                with urlopen(Request(f"{server.url}/api/v1/import/prometheus", body), timeout=30):
                    pass
                with urlopen(f"{server.url}/internal/force_flush", timeout=30):
                    pass
            yield server
        finally:
            stop(daemon)
