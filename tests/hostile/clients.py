"""Clients of a real exporter, and an exporter with a large page."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests import fakedriver
from tests.cli.running import Running, serving, surroundings

PROBE_S = 5.0
"""The default timeout of a probe in Kubernetes is 1 s; the rest is for machines that run other tests meanwhile."""
SCRAPE_S = 10.0
"""The default timeout of a scrape in Prometheus."""


@contextmanager
def busy_exporter(folder: Path, gpus: int = 8, processes: int = 256, flags: tuple[str, ...] = ()) -> Iterator[Running]:
    """An exporter with a page of several hundred kilobytes."""
    scenario = fakedriver.h200_node(gpus=gpus, processes=processes).write(folder / "scenario")
    with serving("serve", *flags, env=surroundings(scenario)) as exporter:
        body = exporter.metrics("^gpu_process_energy_joules_total")
        assert len(body) > 150_000
        yield exporter


def port(exporter: Running) -> int:
    """Of the listener."""
    return urlsplit(exporter.url).port or 0


def status(exporter: Running, path: str, timeout_s: float, source: str = "127.0.0.1", **headers: str) -> int:
    """Status of a complete response on a new connection: 0 if there is none."""
    client = http.client.HTTPConnection("127.0.0.1", port(exporter), timeout=timeout_s, source_address=(source, 0))
    try:
        client.request("GET", path, headers=headers)
        response = client.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return 0
    else:
        return response.status
    finally:
        client.close()
