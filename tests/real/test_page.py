"""The page in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gpuledger.books import Books
from gpuledger.cli.demo import RECORDING, RETENTION_S
from gpuledger.driver import nvml
from gpuledger.driver.call import problem_of
from gpuledger.model import (
    Driver,
    Health,
    Holder,
    Owner,
    Owners,
    PhaseEnergy,
    Reading,
    Tick,
    TokenCounts,
    TokenRates,
    TokenServer,
)
from gpuledger.model.problem import Problem
from gpuledger.recording.replay import Replay
from gpuledger.tools.top.rows import owner_styles
from gpuledger.tools.top.text import OWNER_STYLES
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.codec import decode, encode
from tests.builders import CUT, MIGS, World
from tests.cli.running import Running, serving, surroundings
from tests.real.browsers import Shown, chromium, page_of, shown
from tests.waiting import wait_until
from tests.web.snapshot.nodes import HOSTILE, Node

pytestmark = pytest.mark.needs("chromium")

OWNERS = "async () => (await (await fetch('api/v1/snapshot')).json()).processes.map((row) => row.owner)"
SUMS = """() => ({
  time: document.body.dataset.time,
  energy: document.querySelector(".total td:nth-child(6) data").value,
  memory: document.querySelector(".total td:nth-child(3) data").value,
  used: [...document.querySelectorAll(".card .memory .line data")].reduce((sum, one) => sum + +one.value, 0),
  parts: [...document.querySelectorAll(".card [data-part]")].reduce(
    (sums, {dataset: {part}, value}) => ({...sums, [part]: (sums[part] ?? 0) + +value}), {}),
  rows: document.querySelectorAll("tbody tr").length,
})"""
INNER_SCROLLERS = """() => [...document.querySelectorAll("main, main *")].filter((node) =>
  /auto|scroll/.test(getComputedStyle(node).overflow)
  || (node.matches(".frame, table, #cards, .card") && node.scrollWidth > node.clientWidth + 1)
).map((node) => node.className || node.id || node.tagName)"""
"""Areas that scroll inside of the page, and content that sticks out of its box."""
CLICK_MS = """() => {
  const began = performance.now();
  document.querySelector("thead th:nth-child(6) button").click();
  return document.querySelector("table").offsetHeight && performance.now() - began;
}"""
"""Until the table is sorted by energy and laid out."""
FRAME_TIMES = """() => new Promise((done) => {
  const times = [];
  let last = performance.now();
  const next = (now) => {
    times.push(now - last);
    last = now;
    times.length < 60 ? requestAnimationFrame(next) : done(times);
  };
  requestAnimationFrame(next);
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests."""
    with chromium() as made:
        yield made


def node(gpus: int = 2, processes: int = 24, ticks: int = 12, **more: Any) -> tuple[Node, Shown]:
    """A made-up host that has been there for some seconds, and its exporter."""
    made, exporter = Node(gpus, processes, **more), Shown()
    exporter.show(*(made.tick() for _ in range(ticks)))
    return made, exporter


@pytest.fixture
def host() -> Iterator[tuple[Node, Shown]]:
    """A small one."""
    made, exporter = node()
    yield made, exporter
    exporter.stop()


def column(page: Page, number: int) -> list[float]:
    """The values of a column, from the top; what is not known is left out."""
    cells = page.locator(f"tbody tr:not(.group, .details) td:nth-child({number}) data")
    values: list[str] = cells.evaluate_all("all => all.map((one) => one.value)")
    return [float(value) for value in values if value]


def texts(page: Page, selector: str) -> list[str]:
    """What stands in all of these."""
    contents: list[str] = page.locator(selector).all_text_contents()
    return contents


# -- the demo


def metric_sums(server: Running) -> dict[str, float]:
    """Every family of /metrics, its series added up."""
    sums: dict[str, float] = defaultdict(float)
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", server.get("/metrics"), re.MULTILINE):
        sums[name] += float(value)
    return sums


def test_the_demo_on_the_page_is_what_metrics_say(browser: Browser) -> None:
    """Sums on the screen are those of /metrics at the same tick; it says that it is a recording; all of it is ours."""
    with serving("demo", env=surroundings()) as server, page_of(browser) as watched:
        server.metrics(r"^gpu_process_energy_joules_total\{")
        page = watched.open(server.url)
        expect(page.get_by_text("This is a recording, not this host.")).to_be_visible()
        expect(page.locator("#state")).to_have_text("Live")
        deadline = time.monotonic() + 20
        while True:
            told, seen = metric_sums(server), page.evaluate(SUMS)
            if float(seen["time"]) == pytest.approx(told["gpuledger_tick_timestamp_seconds"], abs=1e-3):
                break
            assert time.monotonic() < deadline

        assert seen["rows"] > 0
        assert float(seen["energy"]) == pytest.approx(told["gpu_process_energy_joules_total"], abs=0.01)
        assert float(seen["memory"]) == told["gpu_process_memory_used_bytes"]
        assert float(seen["used"]) == told["gpu_memory_used_bytes"]
        parts = {name: float(value) for name, value in seen["parts"].items()}
        before, since = parts.pop("before"), parts.pop("since")
        assert since + before == pytest.approx(told["gpu_energy_joules_total"], abs=0.01)
        assert sum(parts.values()) == pytest.approx(since, abs=0.01)
        unattributed = told["gpu_unattributed_energy_joules_total"]
        assert parts["unattributed"] + before == pytest.approx(unattributed, abs=0.01)
        assert all(url.startswith(server.url) for url in watched.asked)


@pytest.mark.parametrize("books", [Books(5), Books(shown="none")], ids=["some", "none"])
def test_sums_include_rows_beyond_the_limit(browser: Browser, books: Books) -> None:
    """The ledger of a card balances, no used memory is drawn as free, and the table adds up to the cards."""
    made = Node(1, 20, books=books)
    ticks = [made.tick() for _ in range(4)]
    with shown(*ticks) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        seen = page.evaluate(SUMS)
        parts = {name: float(value) for name, value in seen["parts"].items()}
        assert parts["processes"] > 0
        assert parts.pop("before") == pytest.approx(5000, rel=0.2)
        assert parts.pop("since") == pytest.approx(sum(parts.values()), abs=0.01)
        memory = snapshot(ticks[-1]).gpus[0].memory
        assert float(seen["memory"]) == memory.known_bytes
        free: float = page.locator(".card .bar .free").evaluate("one => +one.style.flexGrow")
        taken = ((memory.used_bytes or 0) + (memory.reserved_bytes or 0)) / (memory.total_bytes or 1)
        assert free == pytest.approx(1 - taken, abs=1e-3)
        expect(page.locator("#sum-processes")).to_have_text("20")
        assert seen["rows"] > 0


def test_a_driver_that_is_down(browser: Browser) -> None:
    """Nothing is known of GPUs and processes: dashes, not 0; and what to do."""
    problem = problem_of("Driver Not Loaded", nvml.DRIVER_NOT_LOADED)
    down = Tick(1_700_000_000 * 10**9, Driver(up=False, problem=problem), health=Health(interval_ns=10**9))
    with shown(down) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        assert texts(page, "#sums dd") == ["–", "–", "– of –", "–"]  # noqa: RUF001
        expect(page.locator("#problems")).to_contain_text("sudo modprobe nvidia")


def test_a_gpu_without_energy(browser: Browser) -> None:
    """What it uses is not known: dashes in the table, not 0."""
    world, books = World(), Books()
    ticks = [books.book(world.tick(7, energy_mj=None, work={7: 50})) for _ in range(3)]
    with shown(*ticks) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        assert texts(page, "tbody tr td.number")[-2:] == ["–", "–"]  # noqa: RUF001
        assert texts(page, ".total td.number")[-2:] == ["–", "–"]  # noqa: RUF001


# -- an allocated GPU that is not used, and the first screen

IDLE_OWNER = "research/notebook-dana-0/notebook"
SCREENS = [(1280, 900), (1400, 900), (1920, 900), (390, 844)]
OVERLAPS = """() => [...document.querySelectorAll("#cards .card")].flatMap((card) => {
  const name = card.querySelector("h3 .toggle + span").getBoundingClientRect();
  return [...card.querySelectorAll(".badge")].map((badge) => badge.getBoundingClientRect()).filter((badge) =>
    badge.left < name.right && badge.right > name.left && badge.top < name.bottom && badge.bottom > name.top)
    .concat(name.right > card.getBoundingClientRect().right ? [name] : []);
})"""
"""Badges that cover the name of their GPU."""
BELOW_THE_SUM = """() => [".total", "tbody tr"].map((row) => document.querySelector(`#table ${row}`))
  .map((row) => row.getBoundingClientRect()).map(({top, bottom}) => [top, bottom])"""
SWATCHES = """() => Object.fromEntries([...document.querySelectorAll("#table tbody tr")].map((row) =>
  [row.querySelector(".name").textContent, getComputedStyle(row.querySelector(".swatch")).getPropertyValue("--c")]))"""


@pytest.fixture(scope="module")
def demo_ticks() -> list[Tick]:
    """40 seconds of the demo, in which GPU 2 is allocated and not used."""
    replay, books = Replay(RECORDING, paced=False), Books(keep_ns=int(RETENTION_S * 1e9))
    return [books.book(replay.read()) for _ in range(40)]


@pytest.fixture
def recorded(demo_ticks: list[Tick]) -> Iterator[Shown]:
    """An exporter that shows them."""
    with shown(*demo_ticks) as exporter:
        yield exporter


def test_a_badge_does_not_cover_the_name_of_its_gpu(browser: Browser, recorded: Shown) -> None:
    """At any width, from a phone to a wall."""
    with page_of(browser) as watched:
        for width in (320, 390, 640, 801, 1000, 1100, 1240, 1400, 1920, 2560):
            watched.page.set_viewport_size({"width": width, "height": 900})
            page = watched.open(recorded.url)
            expect(page.locator(".badge", has_text="allocated, not used for")).to_be_visible()

            assert page.evaluate(OVERLAPS) == []
            assert page.evaluate(INNER_SCROLLERS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_memory_of_a_row_is_readable(browser: Browser, recorded: Shown) -> None:
    """Its bar is never narrower than 80 pixels beside the chart, and has a gap to the longest number."""
    bars_and_gaps = """() => [...document.querySelectorAll(".card.row .memory")].map((memory) => {
      memory.querySelector("data").textContent = "22 MiB of 140 GiB";
      const [bar, text] = [".bar", "data"].map((part) => memory.querySelector(part).getBoundingClientRect());
      return [bar.width, text.left - bar.right];
    })"""
    with page_of(browser) as watched:
        page = watched.open(recorded.url)
        for width in (1100, 1152, 1200, 1280, 1319, 1320, 1366, 1400):
            watched.page.set_viewport_size({"width": width, "height": 900})
            for bar, gap in page.evaluate(bars_and_gaps):
                assert bar >= 80, width
                assert gap >= 8, width


def test_the_owner_of_an_unused_gpu_has_a_row(browser: Browser, recorded: Shown) -> None:
    """With its GPU, the time since which it is idle, and no use; the filter finds it; its sums are unchanged."""
    with page_of(browser) as watched:
        page = watched.open(recorded.url)
        row = page.locator("#table tbody tr", has_text=IDLE_OWNER)
        expect(row.locator(".parts")).to_have_text(re.compile(r"^idle, no process · since \d\d:\d\d:\d\d$"))
        assert row.locator("td").all_text_contents()[:5] == ["2", "0 GiB", "0 %", "0 W", "0 kJ"]
        for words in ("notebook-dana", "gpu2", "idle"):
            page.locator("#filter").fill(words)
            expect(page.locator("#table tbody .name")).to_have_text([IDLE_OWNER])
        sums = page.locator("#table .total .number:not(.asked)")
        expect(sums).to_have_text(["0 GiB", "0 %", "0 W", "0 kJ"])  # in the units of all rows
        expect(page.locator("#more")).to_have_text("")


def test_an_owner_whose_process_has_exited_has_one_row(browser: Browser, recorded: Shown) -> None:
    """Its exited process, and not the unused allocation too."""
    tick = recorded.tick
    assert tick is not None
    unused = next(use for use in tick.allocations if use.owner.display_name == IDLE_OWNER)
    exited = replace(tick.processes[0], owner=unused.owner, device=unused.device, active=False)
    with shown(replace(tick, processes=(*tick.processes, exited))) as exporter, page_of(browser) as watched:
        rows = watched.open(exporter.url).locator("#table tbody tr", has_text=IDLE_OWNER)

        expect(rows.locator(".parts")).to_have_text([re.compile("exited$")])


def test_a_filter_without_a_match_says_so(browser: Browser, recorded: Shown) -> None:
    """In words, with a way back."""
    with page_of(browser) as watched:
        page = watched.open(recorded.url + "#filter=nothing-is-called-this")
        expect(page.locator("#empty")).to_contain_text("No row contains “nothing-is-called-this”.")
        expect(page.locator("#count")).to_have_text("0 of 7 rows")
        page.get_by_role("button", name="Show all rows").click()

        expect(page.locator("#empty")).to_be_hidden()
        expect(page.locator("#count")).to_have_text("7 rows")


@pytest.mark.parametrize(("width", "height"), SCREENS)
@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 8], ids=["demo", "1", "2", "3", "8"])
def test_the_table_begins_on_the_first_screen(
    browser: Browser, recorded: Shown, width: int, height: int, gpus: int
) -> None:
    """Its first three rows are visible, and its sum is above them and covers none."""
    with shown(*(ticks_of(gpus, 24, 70) if gpus else ())) as made, page_of(browser) as watched:
        watched.page.set_viewport_size({"width": width, "height": height})
        page = watched.open(made.url if gpus else recorded.url)
        total, first = page.evaluate(BELOW_THE_SUM)
        third: float = page.evaluate("document.querySelectorAll('#table tbody tr')[2].getBoundingClientRect().bottom")

        assert total[1] <= first[0] + 1
        assert third < height


def test_no_space_beside_the_chart_is_blank(browser: Browser, recorded: Shown) -> None:
    """The chart is as high as the GPUs beside it."""
    heights = (
        "[...document.querySelector('#overview').children].map((one) => one.lastElementChild ? one : one)"
        ".map((one) => [one.getBoundingClientRect().top, one.lastElementChild.getBoundingClientRect().bottom])"
    )
    with page_of(browser) as watched:
        for width in (1400, 1920):
            watched.page.set_viewport_size({"width": width, "height": 900})
            (left_top, left_bottom), (right_top, _) = watched.open(recorded.url).evaluate(heights)
            bottom: float = watched.page.evaluate("document.querySelector('#power').getBoundingClientRect().bottom")
            assert left_top == pytest.approx(right_top, abs=1)
            assert left_bottom == pytest.approx(bottom, abs=20)


def test_open_cards_leave_no_space_blank(browser: Browser, recorded: Shown) -> None:
    """With one card open, and with all: the chart fills its box, and each box the width of the page."""
    blank = """() => {
      const [cards, power, plot] = ["#cards", "#power", "#power .plot"]
        .map((one) => document.querySelector(one).getBoundingClientRect());
      return [power.bottom - plot.bottom, document.querySelector("#overview").clientWidth - cards.width];
    }"""
    with page_of(browser, 1400) as watched:
        page = watched.open(recorded.url)
        for _ in range(4):
            page.locator(".card.row").first.locator(".toggle").click()
            below, beside = page.evaluate(blank)

            assert below < 60
            assert beside < 1


def test_colours_are_the_same_from_load_to_load(browser: Browser, recorded: Shown) -> None:
    """In any order of the table, each owner on the screen has its own colour."""
    with page_of(browser) as watched:
        first = watched.open(recorded.url).evaluate(SWATCHES)
        assert len(first) == len(set(first.values())) == 7
        watched.page.goto("about:blank")

        assert watched.open(recorded.url + "#sort=name").evaluate(SWATCHES) == first


def test_colours_stay_when_owners_leave(browser: Browser, demo_ticks: list[Tick]) -> None:
    """Each owner keeps its colour, in the page that is open, in a new one and in `gpuledger top`."""
    last = demo_ticks[-1]
    gone, after = {process.owner.display_name for process in last.processes[:2]}, last.time_ns + 10**9
    fewer = replace(
        last,
        time_ns=after,
        processes=tuple(use for use in last.processes if use.owner.display_name not in gone),
        containers=tuple(use for use in last.containers if use.owner.display_name not in gone),
        allocations=tuple(use for use in last.allocations if use.owner.display_name not in gone),
    )
    looks = "all => all.map((one) => [one.closest('tr').querySelector('.name').textContent, one.className])"
    with shown(*demo_ticks) as exporter, page_of(browser) as watched, page_of(browser) as other:
        page = watched.open(exporter.url)
        before = page.evaluate(SWATCHES)
        exporter.show(fewer)
        wait_until(lambda: float(page.evaluate("document.body.dataset.time")) * 1e9 >= after - 1e6, 10)
        left = {owner: colour for owner, colour in before.items() if owner not in gone}
        assert {**page.evaluate(SWATCHES), **left} == page.evaluate(SWATCHES)  # which has a row of others, too
        assert len(left) < len(before)
        newly = other.open(exporter.url)
        assert newly.evaluate(SWATCHES) == page.evaluate(SWATCHES)
        swatches = newly.locator("#table tbody .swatch").evaluate_all(looks)
        of_top = owner_styles(decode(newly.evaluate("fetch('api/v1/snapshot').then((one) => one.json())")))

    colours = {owner: int(re.findall(r"\bc(\d)", look)[0]) for owner, look in swatches if owner in left}
    assert colours == {owner: OWNER_STYLES.index(style) for owner, style in of_top.items()}


def test_what_owners_asked_for(browser: Browser, recorded: Shown) -> None:
    """Pods with a part of a GPU have it beside what they use of it, in the table, in its sum and in the details."""
    with page_of(browser) as watched:
        page = watched.open(recorded.url)
        expect(page.get_by_role("columnheader", name="Used / asked")).to_be_visible()
        cells = dict(zip(texts(page, "#table tbody .name"), texts(page, "#table tbody td.asked"), strict=True))
        assert {name: cell[-7:] for name, cell in cells.items() if cell != NONE} == {
            "ml/llama-finetune-0/trainer": " / 0.50",
            "serving/chat-7c9d8f6b5d-x2x4z/vllm": " / 0.50",
        }
        expect(page.locator(".total td.asked")).to_have_text(re.compile(r"^[01]\.\d\d / 1\.00$"))
        page.locator("#table tbody tr", has_text="ml/llama-finetune-0").click()

        details = page.locator("tr.details")
        expect(details).to_contain_text("0.50 of the GPU, 70.2 GiB (kai)")
        expect(details).to_contain_text(re.compile(r"Used of it\d+ % of the compute, \d+ % of the memory"))
    with shown(*ticks_of()) as whole, page_of(browser) as watched:
        page = watched.open(whole.url)
        expect(page.locator("th.asked")).to_be_hidden()


# -- the table


def test_sorting(browser: Browser, host: tuple[Node, Shown]) -> None:
    """By a click: numbers from the greatest, then from the smallest; said to screen readers, kept in the address."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        memory, energy = page.locator("thead th").nth(2), page.locator("thead th").nth(5)
        assert memory.get_attribute("aria-sort") == "descending"
        assert column(page, 3) == sorted(column(page, 3), reverse=True)
        energy.get_by_role("button").click()
        assert (energy.get_attribute("aria-sort"), memory.get_attribute("aria-sort")) == ("descending", None)
        assert column(page, 6) == sorted(column(page, 6), reverse=True)
        energy.get_by_role("button").click()
        assert column(page, 6) == sorted(column(page, 6))
        assert page.url.endswith("#sort=joules")

        page.reload()
        page.wait_for_selector("tbody tr")
        assert energy.get_attribute("aria-sort") == "ascending"
        page.locator("thead th").nth(0).get_by_role("button").click()
        names = texts(page, "tbody .name")
        assert names == sorted(names)


def test_filtering_with_the_keyboard(browser: Browser, host: tuple[Node, Shown]) -> None:
    """A slash goes to the filter, every word must fit, the sum is of those shown, Escape shows all again."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        page.keyboard.press("/")
        page.keyboard.type("ollama gpu1")
        expect(page.locator("#count")).to_have_text(re.compile(r"^\d of 24 rows$"))
        assert set(texts(page, "tbody .name")) == {"ollama.service"}
        assert set(texts(page, "tbody td:nth-child(2)")) == {"1"}
        shown_sum = page.locator(".total td:nth-child(6) data").get_attribute("value")
        assert float(shown_sum or 0) == pytest.approx(sum(column(page, 6)))
        assert "filter=ollama+gpu1" in page.url
        page.keyboard.press("Escape")

        expect(page.locator("#count")).to_have_text("24 rows")
        assert set(texts(page, "tbody .name")) == set(page.evaluate(OWNERS))
        assert "#" not in page.url


def test_grouping(browser: Browser, host: tuple[Node, Shown]) -> None:
    """Every row is in one group, and the groups add up to the whole; a group can be shut."""
    with page_of(browser) as watched:
        for group in ("namespace", "pod", "container", "user", "gpu"):
            page = watched.open(host[1].url)
            page.select_option("#group", group)
            groups = page.locator("tbody tr.group")
            energy: list[str] = groups.locator("td:nth-child(6) data").evaluate_all(
                "all => all.map((one) => one.value)"
            )
            total = page.locator(".total td:nth-child(6) data").get_attribute("value")
            assert len(energy) > 1
            assert sum(map(float, filter(None, energy))) == pytest.approx(float(total or 0))
            assert page.locator("tbody tr:not(.group)").count() == 24
            rows = int(groups.first.locator(".parts").inner_text().split()[0])
            groups.first.get_by_role("button").click()

            assert page.locator("tbody tr:not(.group)").count() == 24 - rows
            assert f"group={group}" in page.url


def test_rows_stay_where_the_reader_is(browser: Browser, host: tuple[Node, Shown]) -> None:
    """New readings change numbers in place: focus and what was opened stay, though rows change their order."""
    made, exporter = host
    with page_of(browser) as watched:
        page = watched.open(exporter.url + "#sort=-watts")
        page.keyboard.press("/")
        page.keyboard.press("Tab")
        toggle = page.locator("tbody tr").nth(3).get_by_role("button")
        toggle.focus()
        page.keyboard.press("Enter")
        opened = page.locator("tr.details")
        expect(opened).to_contain_text("Owner")
        name = page.evaluate("document.activeElement.getAttribute('aria-label')")
        for _ in range(8):
            before = page.evaluate("document.body.dataset.time")
            exporter.show(made.tick())
            page.wait_for_function("before => document.body.dataset.time !== before", arg=before)

        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name
        assert opened.count() == 1
        assert "estimated: by its SM time" in opened.inner_text()
        assert page.locator(".details figure svg[role=img]").count() == 2


def test_names_do_not_become_markup(browser: Browser) -> None:
    """A container may be called anything; it is shown as it is called."""
    made, exporter = node(1, 10, names=(HOSTILE,))
    with page_of(browser) as watched:
        page = watched.open(exporter.url + "#sort=name")
        page.select_option("#group", "pod")
        for button in page.locator("tbody tr:not(.group) .toggle").all():
            button.click()
        exporter.show(made.tick())

        expect(page.locator("tr.group .name", has_text="<img src=x")).to_have_count(1)
        assert page.locator("main img, main script").count() == 0
        assert page.title() == "gpuledger"
    exporter.stop()


def test_two_thousand_processes(browser: Browser) -> None:
    """A click is answered at once, ticks do not make it stutter, and all rows can be had."""
    made, exporter = node(8, 2000, ticks=3)
    with page_of(browser) as watched:
        page = watched.open(exporter.url)
        expect(page.locator("#count")).to_have_text("2,000 rows")
        assert page.locator("tbody tr").count() == 100
        assert page.evaluate(CLICK_MS) < 2000  # some 30 on a machine that does nothing else
        assert column(page, 6) == sorted(column(page, 6), reverse=True)
        exporter.show(made.tick())
        frames: list[float] = page.evaluate(FRAME_TIMES)
        assert sorted(frames)[len(frames) // 2] < 250
        page.locator("#more").click()
        assert page.locator("tbody tr").count() == 500
        page.select_option("#group", "namespace")
        expect(page.locator("tbody tr.group").first).to_be_visible()
    exporter.stop()


NONE = "\u2013"
NUMBERS: dict[str, list[tuple[float | None, str]]] = {
    "bytes": [(None, NONE), (0, "0 GiB"), (26 << 20, "26 MiB"), (5 << 29, "2.5 GiB"), (150 << 30, "150 GiB")],
    "watts": [(None, NONE), (0, "0 W"), (4.25, "4.3 W"), (643.3, "643 W"), (5200, "5,200 W"), (12_345, "12.3 kW")],
    "joules": [
        (None, NONE), (0, "0 J"), (999, "999 J"), (11_573.6, "11.6 kJ"), (360_000, "360 kJ"), (7.2e7, "72.0 MJ"),
        (2e10, "20.0 GJ"),
    ],
    "percent": [(None, NONE), (0, "0 %"), (0.394, "39 %"), (1, "100 %")],
    "duration": [(None, NONE), (12, "12 s"), (600, "10 min"), (9000, "2.5 h"), (259_200, "3.0 days")],
}  # fmt: skip


def test_numbers_as_people_read_them(browser: Browser, host: tuple[Node, Shown]) -> None:
    """Units that fit; what is not known is a dash and never a 0."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        for name, cases in NUMBERS.items():
            ask = f"values => import('./page/format.js').then((all) => values.map(all.{name}))"
            assert page.evaluate(ask, [value for value, _ in cases]) == [shown for _, shown in cases]


# -- the connection


def test_a_lost_connection_and_its_return(browser: Browser, host: tuple[Node, Shown]) -> None:
    """It says so at once and keeps what it has; when the exporter is back, so is the page."""
    made, exporter = host
    with page_of(browser) as watched:
        page = watched.open(exporter.url)
        expect(page.get_by_role("status")).to_have_text("Live")
        watched.excused = "Failed to load resource: net::"
        port = exporter.port
        exporter.stop()
        expect(page.get_by_role("status")).to_have_text("Connection lost")
        expect(page.get_by_text("The exporter does not respond; retrying. This page shows data from")).to_be_visible()
        assert page.locator("tbody tr").count() == 24
        again = Shown(*(made.tick() for _ in range(2)), port=port)

        expect(page.get_by_role("status")).to_have_text("Live", timeout=15_000)
        expect(page.locator("#lost")).to_be_hidden()
        before = page.evaluate("document.body.dataset.time")
        again.show(made.tick())
        page.wait_for_function("before => document.body.dataset.time !== before", arg=before)
        again.stop()


def test_an_exporter_that_hangs(browser: Browser, host: tuple[Node, Shown]) -> None:
    """It answers, but with an old reading: the page does not call that live."""
    made, exporter = host
    with page_of(browser) as watched:
        watched.page.clock.install()
        page = watched.open(exporter.url)
        for _ in range(3):
            page.clock.fast_forward(6000)
        expect(page.get_by_role("status")).to_have_text("No new data")
        exporter.show(made.tick())

        expect(page.get_by_role("status")).to_have_text("Live")


def test_without_a_stream(browser: Browser) -> None:
    """Where no more may watch, it asks for one reading after the other."""
    made = Node(1, 3)
    with shown(made.tick(), max_connections=3) as exporter, page_of(browser) as watched:
        watched.excused = "503"
        page = watched.open(exporter.url)
        expect(page.get_by_role("status")).to_have_text("Live")
        before = page.evaluate("document.body.dataset.time")
        exporter.show(made.tick())
        page.wait_for_function("before => document.body.dataset.time !== before", arg=before)


def test_a_hidden_page_requests_nothing(browser: Browser, host: tuple[Node, Shown]) -> None:
    """Its stream is closed while it is hidden."""
    made, exporter = host
    with page_of(browser) as watched:
        page = watched.open(exporter.url)
        assert exporter.api.streams.open == 1
        hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
        page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", arg=True)
        deadline = time.monotonic() + 10
        while exporter.api.streams.open and time.monotonic() < deadline:
            exporter.show(made.tick())  # a stream finds out that nobody reads when it has something to say
            time.sleep(0.05)
        assert exporter.api.streams.open == 0
        page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", arg=False)
        before = page.evaluate("document.body.dataset.time")
        exporter.show(made.tick())

        page.wait_for_function("before => document.body.dataset.time !== before", arg=before)


def test_under_the_prefix_of_a_proxy(browser: Browser) -> None:
    """All addresses are relative."""
    with shown(Node(1, 3).tick(), prefix="/hosts/node-7") as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        expect(page.get_by_role("status")).to_have_text("Live")

        assert all(url.startswith(exporter.url) for url in watched.asked)
        links: list[str] = page.locator("footer a").evaluate_all("all => all.map((one) => one.href)")
        assert all(page.request.get(link).ok for link in links)


# -- how it looks


def test_light_and_dark(browser: Browser, host: tuple[Node, Shown]) -> None:
    """As the system wants it, or as the reader does, also the next time."""
    back = "getComputedStyle(document.body).backgroundColor"
    with page_of(browser, color_scheme="dark") as watched:
        page = watched.open(host[1].url)
        dark = page.evaluate(back)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(back)
        assert dark != light
        page.get_by_role("button", name="Theme: auto").click()
        page.get_by_role("button", name="Theme: light").click()
        assert page.evaluate(back) == dark
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate(back) == dark


def test_any_width(browser: Browser) -> None:
    """From a phone to a wall: nothing sticks out, and what matters is there."""
    made = Node(8, 64, troubled=True, names=("a-name-that-is-much-longer-than-any-that-people-would-give" * 3,))
    with shown(*(made.tick() for _ in range(3))) as exporter, page_of(browser) as watched:
        for width in (390, 768, 1280, 2560):
            watched.page.set_viewport_size({"width": width, "height": 900})
            page = watched.open(exporter.url)
            page.locator("tbody .toggle").first.click()
            page.locator(".card .toggle").first.click()

            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(INNER_SCROLLERS) == []
            for title in ("Owner", "Memory", "Power", "Energy"):
                expect(page.get_by_role("columnheader", name=title)).to_be_visible()


def test_servers_of_language_models(browser: Browser) -> None:
    """Tokens and joules per token on any screen; names are text; without servers there is no such table."""
    name = f"{HOSTILE}/{'long' * 20}"
    served = TokenServer(
        "ml/chat-0",
        up=True,
        owner=Owner(namespace="ml", pod=name),
        counts=(TokenCounts("vllm", HOSTILE, 1000, 123_456),),
        rates=TokenRates(10.0, 20_480.0, 5120.0, 2560.0, 1210.0),
        phases=PhaseEnergy(0.0123456, 0.001, 0.4, 0.02, 9),
    )
    down = TokenServer("pid:7", up=False, problem=Problem("cannot reach it", "start it", "unreachable"))
    ticks = [Node(2, 4).tick() for _ in range(2)]
    with (
        shown(*(replace(tick, servers=(served, down)) for tick in ticks)) as exporter,
        page_of(browser) as watched,
    ):
        for width in (390, 768, 1280):
            watched.page.set_viewport_size({"width": width, "height": 900})
            page = watched.open(exporter.url)
            cells = texts(page, "#servers-table tbody tr:first-child > *")

            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(INNER_SCROLLERS) == []
            assert cells[1:] == [
                HOSTILE,
                "512",
                "2,050",
                "0.5 J",
                "0.1 J",
                "121 W",
                "0.0123 ± 0.001 J",
                "0.4 ± 0.02 J",
                "123,456",
            ]
            assert "cannot reach it" in texts(page, "#servers-table tbody tr:nth-child(2) > *")[1]
            expect(page.get_by_role("heading", name="Language models")).to_be_visible()
    with shown(*ticks) as exporter, page_of(browser) as watched:
        expect(watched.open(exporter.url).locator("#servers")).to_be_hidden()


def test_what_is_wrong_is_said_with_what_to_do(browser: Browser) -> None:
    """Driver, GPUs and providers; commands are set apart."""
    made = Node(4, 20, troubled=True)
    with shown(*(made.tick() for _ in range(3))) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        problems = page.locator("#problems li")
        expect(problems.filter(has_text="GPU 3: cannot be read: GPU is lost")).to_be_visible()
        expect(problems.filter(has_text="docker: cannot open").locator("code")).to_have_text(
            "sudo usermod -aG docker USER"
        )
        expect(problems.filter(has_text="slowed down by heat")).to_be_visible()
        cards = page.locator(".card")
        expect(cards.nth(3)).to_contain_text("down")
        expect(cards.nth(0).locator(".badges")).to_contain_text("slowed by heat")
        expect(cards.nth(2).locator(".instances .memory")).to_have_count(2)
        assert texts(page, "#node") == ["node-7"]


def test_memory_is_drawn_to_scale(browser: Browser) -> None:
    """Known, inferred and reserved memory have bars to scale, and names for screen readers."""
    made = Node(1, 6, troubled=False)
    troubled = Node(3, 6, troubled=True)
    with shown(made.tick(), troubled.tick()) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        bar = page.locator(".card").first.locator(".bar").first
        label = bar.get_attribute("aria-label") or ""
        assert "notebook, inferred: " in label
        assert "reserved: 0.5 GiB" in label
        grow: dict[str, float] = bar.evaluate(
            "bar => Object.fromEntries([...bar.children].map((one) => [one.className.trim(), +one.style.flexGrow]))"
        )
        assert sum(grow.values()) == pytest.approx(1, abs=1e-4)
        assert grow["reserved"] == pytest.approx(0.5 / 140, abs=1e-5)
        (inferred,) = (size for name, size in grow.items() if name.startswith("inferred"))
        assert inferred == pytest.approx(9 / 140, rel=0.1)
        expect(page.locator("tbody .badge.guess")).to_have_text("memory inferred")


def test_a_container_inferred_on_two_instances_of_a_gpu(browser: Browser) -> None:
    """It has one part of the whole GPU's bar, as large as both; inferred memory is not drawn as unknown too."""
    pod = Owner(namespace="ml", pod="notebook", container="jupyter")
    whole = Reading(CUT, memory_total_bytes=80 << 30, memory_used_bytes=22 << 30, residents=(), mig_enabled=True)
    parts = [Reading(mig, memory_total_bytes=40 << 30, memory_used_bytes=11 << 30, residents=()) for mig in MIGS]
    tick = World().around(whole, *parts)
    held = replace(tick, owners=Owners(holders=tuple(Holder(mig, pod, "allocation") for mig in MIGS)))
    with shown(Books().book(held)) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        label = page.locator(".card .bar").first.get_attribute("aria-label") or ""
        assert label.startswith("Memory: ml/notebook/jupyter, inferred: 22.0 GiB; ")
        assert "unknown" not in label


def test_memory_that_is_shared_with_the_system(browser: Browser) -> None:
    """It is named as such, and what others than GPU processes use is neither free nor unknown."""
    memory: dict[str, Any] = {"system_memory_total_bytes": 128 << 30, "system_memory_used_bytes": 32 << 30}
    tick = World().tick(7, memory_total_bytes=None, memory_used_bytes=None, **memory)
    with shown(Books().book(tick)) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        shared = page.locator(".card .memory").first
        label = shared.locator(".bar").get_attribute("aria-label") or ""
        expect(shared.locator(".line")).to_contain_text("Memory of the system")
        assert "rest of the system: 32.0 GiB" in label
        assert label.endswith("; free: 96.0 GiB")
        assert "unknown" not in label


def test_charts_go_on_from_the_history(browser: Browser) -> None:
    """What was before the page was opened is there, and each tick adds to it; words say it too."""
    made, exporter = node(1)
    with page_of(browser) as watched:
        page = watched.open(exporter.url)
        line = page.locator(".card").first.locator(".chart .line").nth(1)
        assert (line.get_attribute("d") or "").count("L") == 11
        before = page.evaluate("document.body.dataset.time")
        exporter.show(made.tick())
        page.wait_for_function("before => document.body.dataset.time !== before", arg=before)

        assert (line.get_attribute("d") or "").count("L") == 12
        label = page.locator(".card").first.locator(".chart").nth(1).get_attribute("aria-label") or ""
        assert re.fullmatch(r"Power, last 1 min: mean \d+ W, highest \d+ W", label)
    exporter.stop()


def ticks_of(gpus: int = 1, processes: int = 4, ticks: int = 90) -> list[Tick]:
    """The first ticks of a host."""
    made = Node(gpus, processes)
    return [made.tick() for _ in range(ticks)]


def test_a_value_under_the_pointer(browser: Browser) -> None:
    """With its time; the pointer gone, the value goes; axes have units."""
    ticks = ticks_of()
    with shown(*ticks) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url + "#range=1")
        power = page.locator(".card .meter").nth(1)
        box = power.locator(".area-of-chart").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 5 / 6, box["y"] + 10)  # ten seconds ago
        shown_tick = min(ticks, key=lambda tick: abs(ticks[-1].time_ns - tick.time_ns - 10 * 10**9))
        clock = page.evaluate(
            "seconds => new Date(seconds * 1000).toLocaleTimeString('en-GB')", shown_tick.time_ns / 1e9
        )
        watts = round((shown_tick.readings[0].power_mw or 0) / 1000)
        expect(page.locator(".tip")).to_have_text(f"{watts} W{clock}")
        assert texts(power.page, ".card .meter:nth-child(2) .y-axis span") == ["700 W", "350 W", "0 W"]
        assert texts(power.page, ".card .meter:nth-child(1) .y-axis span") == ["100 %", "50 %", "0 %"]
        page.mouse.move(5, 5)

        expect(page.locator(".tip")).to_be_hidden()


def test_stacked_power_by_owner(browser: Browser) -> None:
    """Layers and legend name the owners; a moment has the power of each, and their sum; arrow keys move in time."""
    ticks = ticks_of(2, 8)
    with shown(*ticks) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        owners = {use.owner.display_name for use in ticks[-1].processes}
        assert set(texts(page, "#power .legend .name")) <= owners | {"idle or unattributed"}
        assert len(texts(page, "#power .legend .name")) > 3
        page.locator("#power .chart").focus()
        page.keyboard.press("ArrowLeft")
        total, *parts = (
            float(text.split()[0]) for text in texts(page, ".tip p strong, .tip p > span:last-child:not(.time)")
        )
        assert total == pytest.approx(sum(parts), abs=0.5 * len(parts) + 0.5)
        history = page.evaluate("async () => (await (await fetch('api/v1/history')).json()).owners")
        exact = sum(row["watts"][-1] or 0 for row in history["rows"]) + (history["unowned_watts"][-1] or 0)
        assert total == pytest.approx(exact, abs=1)
        first = page.locator(".tip .time").inner_text()
        page.keyboard.press("ArrowLeft")
        assert page.locator(".tip .time").inner_text() < first
        page.keyboard.press("Escape")

        expect(page.locator(".tip")).to_be_hidden()


@pytest.fixture(scope="module")
def hour() -> Iterator[tuple[list[Tick], Shown]]:
    """A host that has been there for more than an hour, and its exporter."""
    ticks = ticks_of(ticks=4000)
    with shown(*ticks) as exporter:
        yield ticks, exporter


def test_ranges(browser: Browser, hour: tuple[list[Tick], Shown]) -> None:
    """1, 10 and 60 minutes: chosen by a click, kept in the address, and each shows what the exporter kept."""
    _, exporter = hour
    points = "document.querySelector('.card .chart .line').getAttribute('d').split('L').length"
    with page_of(browser) as watched:
        page = watched.open(exporter.url)
        expect(page.get_by_role("button", name="10 min")).to_have_attribute("aria-pressed", "true")
        counts = {}
        for minutes in (1, 10, 60):
            page.get_by_role("button", name=f"{minutes} min", exact=True).click()
            assert f"range={minutes}" in page.url
            expect(page.locator(".card .x-axis").first).to_have_text(f"{minutes} min agonow")
            counts[minutes] = page.evaluate(points)
        assert counts == {1: pytest.approx(61, abs=1), 10: pytest.approx(150, abs=2), 60: pytest.approx(150, abs=2)}
        page.reload()
        expect(page.get_by_role("button", name="60 min")).to_have_attribute("aria-pressed", "true")


def test_an_open_page_keeps_an_hour(browser: Browser, hour: tuple[list[Tick], Shown]) -> None:
    """What it gathers itself is what an exporter keeps: as many points, as old, with the same values."""
    ticks, exporter = hour
    gather = """async ([period, times]) => {
      const { Past } = await import('./page/past.js');
      const past = new Past();
      times.forEach((time, index) => past.add({ ...period[index % period.length], time }));
      const row = past.gpus.rows.values().next().value;
      return { times: past.gpus.times, power: row.power_watts, owners: past.owners.times };
    }"""
    with page_of(browser) as watched:
        page = watched.open(exporter.url)
        period = [json.loads(encode(snapshot(tick))) for tick in ticks[:10]]  # after which the power repeats
        gathered = page.evaluate(gather, [period, [tick.time_ns / 1e9 for tick in ticks]])
        kept = page.evaluate("async () => await (await fetch('api/v1/history')).json()")

    times, power = kept["gpus"]["times"], kept["gpus"]["rows"][0]["power_watts"]
    assert len(gathered["times"]) == pytest.approx(len(times), abs=3)
    assert gathered["times"][0] == pytest.approx(times[0], abs=20)
    assert gathered["power"][-600:] == power[-600:]
    assert gathered["power"][:250] == [pytest.approx(350, rel=0.02)] * 250
    assert len(gathered["owners"]) == pytest.approx(len(kept["owners"]["times"]), abs=3)


def test_a_click_anywhere_opens_a_row(browser: Browser, host: tuple[Node, Shown]) -> None:
    """On a number as well as on the name; a second one shuts it; a group too; the keyboard has its button."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        row = page.locator("tbody tr").first
        row.locator("td").nth(4).click()
        expect(page.locator("tr.details")).to_have_count(1)
        page.locator("tr.details .facts").click()
        expect(page.locator("tr.details")).to_have_count(1)
        row.locator("th").click()
        expect(page.locator("tr.details")).to_have_count(0)
        row.get_by_role("button").focus()
        page.keyboard.press("Enter")
        expect(page.locator("tr.details")).to_have_count(1)
        page.select_option("#group", "user")
        rows = page.locator("tbody tr").count()
        page.locator("tr.group td").first.click()

        assert page.locator("tbody tr").count() < rows


@pytest.mark.parametrize(("gpus", "rows"), [(1, 0), (2, 2), (4, 4), (8, 8)])
def test_many_gpus_are_rows(browser: Browser, gpus: int, rows: int) -> None:
    """From two GPUs on, so that the table of owners is on the first screen; a click opens the card of a GPU."""
    ticks = ticks_of(gpus, 40, 20)
    with shown(*ticks) as exporter, page_of(browser, 1400) as watched:
        page = watched.open(exporter.url)
        expect(page.locator(".card.row")).to_have_count(rows)
        if not rows:
            return
        bottom = "document.querySelectorAll('tbody tr')[2].getBoundingClientRect().bottom"
        assert page.evaluate(bottom) < 900
        expect(page.locator(".row .ledger").first).to_be_hidden()
        page.locator(".row .memory").first.click()
        expect(page.locator(".card.row")).to_have_count(rows - 1)
        expect(page.locator(".card .ledger").first).to_be_visible()
        page.get_by_role("button", name="Hide details of GPU 0").click()

        expect(page.locator(".card.row")).to_have_count(rows)


def test_on_a_phone_the_table_comes_first(browser: Browser, host: tuple[Node, Shown]) -> None:
    """For the eye and for the keyboard; a page that is turned changes the order."""
    tops = "['owners', 'gpus'].map((id) => document.getElementById(id).getBoundingClientRect().top)"
    is_first = "!!(owners.compareDocumentPosition(gpus) & Node.DOCUMENT_POSITION_FOLLOWING)"
    with page_of(browser, 390) as watched:
        page = watched.open(host[1].url)
        owners, gpus = page.evaluate(tops)
        assert owners < gpus
        assert page.evaluate(is_first)
        page.set_viewport_size({"width": 900, "height": 390})
        wait_until(lambda: not page.evaluate(is_first), 10)  # not wait_for_function, which the page's CSP may refuse


def test_the_energy_of_a_gpu_adds_up_as_written(browser: Browser) -> None:
    """All terms have the unit of the sum, and the rounded terms are the rounded sum; what was before is apart."""
    ticks = ticks_of(1, 3, 77)
    with shown(*ticks) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        text = page.locator(".ledger").inner_text()
        number = r"([\d.]+)"
        terms = rf"{number} processes \+ {number} retired \+ {number} idle \+ {number} unattributed"
        match = re.fullmatch(rf"Energy {number} kJ = {terms}", text)
        assert match is not None, text
        whole, *parts = map(Decimal, match.groups())
        assert sum(parts) == whole
        expect(page.locator(".earlier")).to_have_text(
            re.compile(r"The GPU's counter also has [\d.]+ kJ from before gpuledger started\. This is normal")
        )
        cases = [[1 / 3, 1 / 3, 1 / 3], [17449, 1, 60, 8249.6], [0.4, 0.4, 0.4], [0, 0], [4e7, 1], [333333.3, 26666.6]]
        shown_sums = page.evaluate(
            "cases => import('./page/format.js').then((all) => cases.map((c) => all.addends('joules', c)))", cases
        )
        for one in shown_sums:
            assert sum(map(plain_number, one["parts"])) == plain_number(one["sum"].split()[0])


def plain_number(text: str) -> Decimal:
    """A number without the commas of thousands."""
    return Decimal(text.replace(",", ""))


def test_a_column_has_one_unit(browser: Browser, host: tuple[Node, Shown]) -> None:
    """That of its sum, so that it can be checked."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        for number in (3, 5, 6):
            cells = texts(page, f"tbody tr td:nth-child({number}), .total td:nth-child({number})")
            assert len({cell.split()[-1] for cell in cells if cell != NONE}) == 1, cells
        cases = [
            ["joules", 3e7, 40],
            ["joules", 3e7, 0],
            ["bytes", 2**33, 2**20],
            ["watts", 20000, 640],
            ["watts", 90, None],
        ]
        ask = """cases => import('./page/format.js').then((all) =>
          cases.map(([kind, sum, value]) => all.inUnitOf(kind, sum)(value)))"""
        assert page.evaluate(ask, cases) == ["< 0.1 MJ", "0 MJ", "< 0.1 GiB", "0.64 kW", NONE]


def test_more_than_all_of_the_sms(browser: Browser) -> None:
    """The page explains how shares can add up to more than 100 %, and only then."""
    world, books = World(), Books()
    calm = [books.book(world.tick(7, 8, mj=100_000, work={7: 40, 8: 50})) for _ in range(3)]
    with shown(*calm) as exporter, page_of(browser) as watched:
        page = watched.open(exporter.url)
        expect(page.locator("#sm-note")).to_be_hidden()
        exporter.show(books.book(world.tick(7, 8, mj=100_000, work={7: 80, 8: 50})))

        expect(page.locator("#sm-note")).to_contain_text("more than 100 %")


def test_screen_readers_find_their_way(browser: Browser, host: tuple[Node, Shown]) -> None:
    """Landmarks, headings, a table with headers, controls with names."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        told = page.locator("body").aria_snapshot()

        for part in (
            "- banner:", "- main:", "- contentinfo:", '- navigation "Other pages"', "- status: Live",
            '- heading "gpuledger node-7" [level=1]', '- region "Usage by owner', '- searchbox "Filter',
            '- combobox "Group by"',
            '- columnheader "Memory"', '- article "GPU 0 NVIDIA H200"', '- button "Show details of',
        ):  # fmt: skip
            assert part in told, part


def test_links_say_where_they_lead(browser: Browser, host: tuple[Node, Shown]) -> None:
    """Each has a name of its own, and its path beside it."""
    with page_of(browser) as watched:
        page = watched.open(host[1].url)
        names, paths = texts(page, "footer li a"), texts(page, "footer li code")

        dialects = page.locator("footer details li a")
        expect(dialects.first).to_be_hidden()
        page.get_by_text("Metric names of other exporters").click()
        expect(dialects.first).to_have_text("Metric names of NVIDIA's dcgm-exporter, 2.0 to 4.9")

    assert names[:2] == ["Prometheus metrics", "JSON API"]
    assert paths[:2] == ["/metrics", "/api/v1/"]
    assert len(set(names)) == len(names) == len(paths)


def test_a_finger_on_a_chart(browser: Browser, host: tuple[Node, Shown]) -> None:
    """The values stay after it is lifted, until the page is touched elsewhere."""
    with page_of(browser, 390, has_touch=True) as watched:
        page = watched.open(host[1].url)
        page.locator("#power .area-of-chart").tap()
        expect(page.locator(".tip")).to_be_visible()
        page.locator("#gpus-title").tap()

        expect(page.locator(".tip")).to_be_hidden()


def test_without_scripts(browser: Browser, host: tuple[Node, Shown]) -> None:
    """It says what it needs, and the links to everything else work."""
    with page_of(browser) as watched:
        watched.excused = "Failed to load resource: net::ERR_FAILED"
        watched.page.route("**/page.js", lambda route: route.abort())
        watched.page.goto(host[1].url)
        says = watched.page.locator("noscript").text_content()
        watched.page.get_by_role("link", name="Prometheus metrics", exact=True).click()
        watched.page.wait_for_url("**/metrics")

    assert "This page needs JavaScript" in (says or "")


def test_an_idle_allocation_is_shown_with_its_command(browser: Browser, recorded: Shown) -> None:
    """The demo's unused GPU: its badge, its owner once it is opened, and the command after an hour, not before."""
    tick = recorded.tick
    assert tick is not None
    with page_of(browser) as watched:
        page = watched.open(recorded.url)
        card = page.get_by_role("article", name=re.compile("^GPU 2 "))
        expect(card.locator(".badge").first).to_have_text(re.compile(r"^allocated, not used for \d+ s$"))
        card.get_by_role("button", name="Show details of GPU 2").click()
        expect(card.locator(".wasted li")).to_contain_text(
            re.compile(
                r"^research/notebook-dana-0/notebook: idle for .* \(no process on the GPU\) since .* GPU hours, \d+"
            )
        )
        expect(card.locator(".wasted")).not_to_contain_text("to free it")
        expect(card.locator(".wasted code")).to_be_hidden()
        hour_ago_ns = tick.time_ns - 3600 * 10**9
        recorded.show(replace(tick, allocations=tuple(replace(u, idle_since_ns=hour_ago_ns) for u in tick.allocations)))

        expect(card.locator(".wasted code")).to_have_text("kubectl delete pod -n research notebook-dana-0")
