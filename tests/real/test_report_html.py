"""The HTML report in a browser."""

from __future__ import annotations

import pytest
from tools.samplereport import sample

from gpuledger.tools.report.html import to_html
from tests.real.browsers import chromium, page_of

pytestmark = pytest.mark.needs("chromium")


@pytest.mark.parametrize("width", [390, 1400])
def test_no_number_is_cut_off(width: int) -> None:
    """On a phone and on a screen: nothing is wider than the page, and each number has its heading in sight."""
    with chromium() as browser, page_of(browser, width) as watched:
        page = watched.page
        page.set_content(to_html(sample()))
        wide = page.evaluate("(w => [w.scrollWidth - w.clientWidth])(document.querySelector('.wide'))")
        heads = page.locator("thead").is_visible()
        label = page.evaluate("getComputedStyle(document.querySelector('td + td'), '::before').content")

    assert wide == [0]
    assert (heads, label) == ((True, "none") if width == 1400 else (False, '"energy kWh"'))
