"""A real Prometheus, with its own port and data, that scrapes what a test names."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.real import daemons

Found = list[tuple[dict[str, str], float]]


@dataclass
class Prometheus:
    """One that runs."""

    url: str
    jobs: tuple[str, ...]

    def query(self, promql: str) -> Found:
        """The labels and values an expression has now; an expression that is wrong fails the test."""
        try:
            with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': promql})}", timeout=10) as response:
                answer = json.load(response)
        except HTTPError as error:
            raise AssertionError(f"{promql}: {error.read().decode()}") from None
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [({}, float(result[1]))]
        return [(row["metric"], float(row["value"][1])) for row in result]

    def wait_until_scraped(self, times: int = 3, within_s: float = 30) -> None:
        """Until every job was scraped so often without a failure."""
        missing: list[str] = []
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            counts = {labels["job"]: n for labels, n in self.query("sum by (job) (sum_over_time(up[10m]))")}
            missing = [job for job in self.jobs if counts.get(job, 0) < times]
            if not missing:
                return
            time.sleep(0.1)
        raise AssertionError(f"not scraped {times} times within {within_s:g} s: {missing}; {self._targets()}")

    def _targets(self) -> str:
        with urlopen(f"{self.url}/api/v1/targets", timeout=10) as response:
            targets = json.load(response)["data"]["activeTargets"]
        return "; ".join(f"{target['scrapePool']}: {target['lastError']}" for target in targets)


@contextmanager
def prometheus(targets: Mapping[str, tuple[str, str]], scrape_interval: str = "500ms") -> Iterator[Prometheus]:
    """One that scrapes these jobs, each a `host:port` and a path."""
    config = {
        "global": {"scrape_interval": scrape_interval, "scrape_timeout": scrape_interval},
        "scrape_configs": [
            {"job_name": job, "metrics_path": path, "static_configs": [{"targets": [target]}]}
            for job, (target, path) in targets.items()
        ],
    }
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        root, port = Path(folder), _free_port()
        (root / "prometheus.yml").write_text(yaml.safe_dump(config))
        running = Prometheus(f"http://127.0.0.1:{port}", tuple(targets))
        daemon = daemons.start(
            [
                "prometheus",
                f"--config.file={root}/prometheus.yml",
                f"--storage.tsdb.path={root}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            root / "log",
            lambda: _ready(running.url),
        )
        try:
            yield running
        finally:
            daemons.stop(daemon)


def _ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/-/ready", timeout=1):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
