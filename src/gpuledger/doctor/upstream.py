"""The dcgm-exporter whose metrics are shown with pods on them, where there is one."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.doctor.finding import Finding, explained, ok, problem, unused
from gpuledger.errors import ConfigError, UpstreamError
from gpuledger.upstream.source import Source

NAME = "dcgm-exporter"


def upstream(url: str, source: Callable[[], Source]) -> list[Finding]:
    """Whether what is at `url` gives a good answer; `source` opens it as `serve` would."""
    if not url:
        return [unused(NAME, "--dcgm-exporter.url is not given")]
    try:
        families = source().read().families or []
    except ConfigError as error:
        return [explained(NAME, error)]
    except UpstreamError as error:
        said = explained(NAME, error)
        look = f"`ls -l {url}`" if url.startswith(("/", "file://")) else f"`curl -i {url}`"
        return [problem(NAME, said.text, f"{said.fix} See {look}")]
    return [ok(NAME, f"answers with {len(families)} metrics")]
