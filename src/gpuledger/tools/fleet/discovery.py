"""Service discovery: the exporters that a Prometheus knows, as targets for others in the format of HTTP SD.

A second Prometheus, or an OpenTelemetry collector, can then scrape the same nodes without a list of its own. A node
that is down stays a target for an hour.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable

from gpuledger.catalog import metrics
from gpuledger.errors import PrometheusError
from gpuledger.runtime.poller import Poller
from gpuledger.runtime.statelog import StateLog
from gpuledger.tools.prometheus.answer import Answer, Series
from gpuledger.tools.prometheus.expression import series
from gpuledger.web.http import Request, Response

log = logging.getLogger(__name__)

PATH = "/sd"
QUERY = series(metrics.gpu_info).over("last_over_time", "1h").aggregate("count", ("instance", "name")).text
PORT = 9400
"""The port of an instance whose label has none."""
META = "__meta_gpuledger"
"""Prefix of labels that exist only while targets are relabelled."""
JSON = [("Content-Type", "application/json")]


def targets(found: Iterable[Series]) -> bytes:
    """One group of targets per exporter, with the number and the models of its GPUs."""
    gpus: dict[str, dict[str, int]] = {}
    for labels, value in found:
        instance = labels.get("instance", "")
        if instance:
            gpus.setdefault(instance, {})[labels.get("name", "")] = int(value)
    groups = [
        {
            "targets": [instance if ":" in instance else f"{instance}:{PORT}"],
            "labels": {
                f"{META}_gpus": str(sum(models.values())),
                f"{META}_gpu_models": ",".join(sorted(filter(None, models))),
            },
        }
        for instance, models in sorted(gpus.items())
    ]
    return json.dumps(groups).encode()


class Discovery:
    """Refreshes the targets in the background, and serves them."""

    def __init__(self, query: Callable[[str], Answer], refresh_s: float) -> None:
        self._query = query
        self._body: bytes | None = None
        self._reason = "not queried yet"
        self._state_log = StateLog(log)
        self.poller = Poller("targets", self.step, lambda: refresh_s)

    def step(self) -> bool:
        """Refresh once; whether it succeeded. A failure keeps the last targets."""
        try:
            self._body, self._reason = targets(self._query(QUERY).series), ""
        except PrometheusError as error:
            self._reason = str(error)
        self._state_log.change("targets", self._reason, f"targets: {self._reason}", "targets are refreshed again")
        return not self._reason

    def page(self, _: Request) -> Response:
        """The targets. Prometheus keeps its last ones if the answer is an error."""
        if self._body is None:
            return Response.text(503, f"no targets: {self._reason}")
        return Response(200, JSON, self._body)
