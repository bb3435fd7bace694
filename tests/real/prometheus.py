"""A real Prometheus that scrapes what a test tells it to."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.checkout import ROOT
from tests.real.daemons import start, stop
from tests.waiting import free_port, wait_until

Found = list[tuple[dict[str, str], float]]
"""Labels and value of each series."""

NO_EXTRAS: Mapping[str, Mapping[str, Any]] = {}
OURS: Mapping[str, str] = {"job": "gpuledger"}
"""The label of targets that the tools and the rules read."""
ENDED_S = 1.0
"""After this, a scrape has ended; its series have the time of its start."""


class Prometheus:
    """One that runs. Without a time of their own, queries are at the Unix time `at`, or now."""

    def __init__(self, url: str, jobs: int, at: float | None = None) -> None:
        self.url, self.at = url, at
        self._jobs = jobs

    def query(self, promql: str, at: float | None = None) -> Found:
        """An instant query: labels and value of each series, in the order of the answer."""
        at = self.at if at is None else at
        moment = {} if at is None else {"time": f"{at:.3f}"}
        result = self._get("/api/v1/query", query=promql, **moment)["data"]
        if result["resultType"] == "scalar":
            return [({}, float(result["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in result["result"]]

    def wait_until_scraped(self, times: int = 1, timeout_s: float = 60) -> Prometheus:
        """Until every target has answered that many scrapes; returns the server at a time when it has all series.

        On a busy machine, a scrape may take too long: then Prometheus has no series of the target until the next one.
        """
        past = Prometheus(self.url, self._jobs)

        def done() -> bool:
            past.at = time.time() - ENDED_S
            return len(past.query(f"sum_over_time(up[1h]) >= {times} and up == 1")) == self._jobs

        wait_until(done, timeout_s)
        return past

    def is_fresh(self, age_s: float) -> bool:
        """Whether every target answered its last scrape, at most this long ago: a busy machine delays scrapes."""
        return len(self.query(f"time() - timestamp(up) <= {age_s} and up == 1")) == self._jobs

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            self._get("/-/ready")
        except URLError:  # also 503
            return False
        return True

    def _get(self, path: str, **parameters: str) -> Any:
        try:
            with urlopen(f"{self.url}{path}?{urlencode(parameters)}", timeout=10) as response:
                body = response.read()
        except URLError as error:
            if parameters and hasattr(error, "read"):
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error
            raise
        return json.loads(body) if parameters else None


def readers_of_dcgm_exporter() -> dict[str, Any]:
    """The scrape job of docs/kubernetes.md for readers of dcgm-exporter."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    jobs: list[dict[str, Any]] = [job for block in blocks for job in block.get("scrape_configs", ())]
    (found,) = (job for job in jobs if "metrics_path" in job)
    return found


@contextmanager
def prometheus(
    targets: Mapping[str, tuple[str, str]],
    scrape_interval: str = "1s",
    kind: str = "prometheus",
    *,
    extras: Mapping[str, Mapping[str, Any]] = NO_EXTRAS,
    labels: Mapping[str, Mapping[str, str]] = NO_EXTRAS,
    rules: Path | None = None,
) -> Iterator[Prometheus]:
    """One with a port and a folder of its own.

    `targets` gives each job its host:port and path, `labels` what to add to its series, and `extras` are more settings
    of jobs, such as passwords. `kind` may be victoria-metrics, which takes the same configuration and the same queries.
    `rules` are evaluated as often as targets are scraped, by Prometheus only.
    """
    with tempfile.TemporaryDirectory(prefix="prometheus-") as name:
        folder = Path(name)
        jobs = [
            {"job_name": job, "metrics_path": path, "honor_labels": True,
             "static_configs": [{"targets": [address], "labels": dict(labels.get(job, {}))}]}
            | dict(extras.get(job, {}))
            for job, (address, path) in targets.items()
        ]  # fmt: skip
        intervals = ["scrape_interval", "scrape_timeout"]
        if kind == "prometheus":
            intervals.append("evaluation_interval")  # the step of subqueries
        wanted: dict[str, object] = {"global": dict.fromkeys(intervals, scrape_interval)}
        if rules is not None:
            wanted["rule_files"] = [str(folder / "rules.yml")]
            often = re.sub(r"(?m)^( +interval:).*", rf"\g<1> {scrape_interval}", rules.read_text())
            (folder / "rules.yml").write_text(often)
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({**wanted, "scrape_configs": jobs}))  # JSON is YAML
        address = f"127.0.0.1:{free_port()}"
        server = Prometheus(f"http://{address}", len(targets))
        daemon = start(command(kind, config, folder / "data", address), folder / "log", server.ready)
        try:
            yield server
        finally:
            stop(daemon)


def command(kind: str, config: Path, data: Path, address: str) -> list[str]:
    """Of a server of a kind."""
    if kind == "victoria-metrics":
        flags = ["-search.latencyOffset=1s", "-memory.allowedBytes=64MB", f"-storageDataPath={data}"]
        return [kind, f"-promscrape.config={config}", f"-httpListenAddr={address}", *flags]
    return [kind, f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"]
