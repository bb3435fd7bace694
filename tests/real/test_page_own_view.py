"""The page of a tenant in a real browser, with a token that an API server reviews."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cli.running import Running, serving, surroundings
from tests.owners.providers.api_server import kubeconfig
from tests.real.browsers import chromium, page_of
from tests.web.review_server import OWN_TOKEN, ReviewServer

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Running]:
    """The demo with own views; the tenant may read the namespace serving."""
    reviews = ReviewServer({"t-alice": "alice"}, {"alice": {"serving"}})
    path = kubeconfig(reviews.port, tmp_path, prefix="/k8s", token=OWN_TOKEN)
    (tmp_path / "web.yml").write_text(json.dumps({"own_view": {"kubernetes": {"kubeconfig": str(path)}}}))
    with serving("demo", f"--web.config.file={tmp_path / 'web.yml'}", env=surroundings()) as exporter:
        yield exporter
    reviews.close()


@pytest.mark.parametrize("width", [1400, 390])
def test_a_tenant_sees_its_own_rows_and_the_sum_of_others(exporter: Running, width: int) -> None:
    """The page says whose view it is; rows of others are one row; pages that are closed are not offered."""
    with chromium() as browser, page_of(browser, width, extra_http_headers={"X-Gpuledger-Token": "t-alice"}) as watched:
        watched.excused = "403"  # the stream of ticks is closed; the page polls
        page = watched.open(exporter.url)
        expect(page.locator("#own")).to_contain_text("Own view of alice", timeout=15_000)
        expect(page.locator("#owners tbody")).to_contain_text("serving/chat", timeout=15_000)
        expect(page.locator("#owners tbody")).to_contain_text("workloads of other owners", timeout=15_000)
        expect(page.locator("#links")).to_be_hidden()
        text = page.inner_text("body")
        assert "no problems" not in text
        assert not any(other in text for other in ("llama", "embed", "ollama", "search", "session-4"))
        before = page.get_attribute("body", "data-time")
        expect(page.locator("body")).not_to_have_attribute("data-time", before or "", timeout=15_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
