"""A report as a table, CSV, JSON and HTML: the same numbers, and nothing in a name does harm."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from gpuledger.model import PhaseEnergy
from gpuledger.tools.report.formats import table, to_csv, to_json
from gpuledger.tools.report.html import to_html
from gpuledger.tools.report.mapfile import RESERVED
from gpuledger.tools.report.queries import GROUPINGS, Quantity
from gpuledger.tools.report.rates import Embodied, Rates
from gpuledger.tools.report.rows import Kind, ReportRow, ReportRows
from gpuledger.tools.report.span import Span
from gpuledger.tools.text import grouped
from tests.tools.report.made import BAD, KWH, PRICES, SHOWN, report

TABLE = """\
2026-11-01T00:00:00Z to 2026-11-03T00:00:00Z

namespace       energy kWh    share  busy h  resident h  allocated h  memory GiB h  energy EUR  GPU h EUR  total EUR
ml                    6.00   60.0 %   1.000       2.000        3.000         1.000        2.34       6.00       8.34
(3 more)              1.00   10.0 %       -           -            -             -        0.39          -       0.39
(idle)                2.00   20.0 %       -           -            -             -        0.78          -       0.78
(unattributed)        1.00   10.0 %       -           -            -             -        0.39          -       0.39
total                10.00  100.0 %   1.000       2.000        3.000         1.000        3.90       6.00       9.90

GPU-hours observed: 9.00, 7.00 of them without a process
unattributed: gap 0.750 kWh, unrecorded 0.250 kWh
prices: 0.3 EUR per kWh, 2 EUR per GPU-hour (allocated); PUE 1.3
note: there are no data before noon
"""


def test_the_table() -> None:
    """Aligned, with units, the time in UTC, what is not known as a dash, and what a reader must know below."""
    prices = replace(PRICES, grams_per_kwh=None)
    assert table(report(prices, name="ml", notes=("there are no data before noon",))) == TABLE


def test_a_table_without_prices_has_no_columns_of_them() -> None:
    """Nor a line about them."""
    text = table(report(Rates()))

    assert "CO2e" not in text
    assert "prices" not in text


def test_nothing_in_a_name_commands_a_terminal() -> None:
    """With colours only ours do."""
    assert "\x1b" not in table(report())
    assert set(re.findall(r"\x1b\[[^m]*m", table(report(), colour=True))) == {"\x1b[1m", "\x1b[2m", "\x1b[0m"}


def test_csv() -> None:
    """Numbers in full, what is not known empty, and no name is a formula."""
    rows = list(csv.DictReader(io.StringIO(to_csv(report()))))

    assert [row["kind"] for row in rows] == ["group", "other", "idle", "unattributed", "total"]
    assert rows[0]["namespace"] == "'" + SHOWN
    assert (rows[0]["from"], rows[0]["energy_kwh"], rows[0]["energy_cost"]) == ("2026-11-01T00:00:00Z", "6", "2.34")
    assert (rows[2]["busy_gpu_hours"], rows[2]["namespace"]) == ("", "")
    assert sum(float(row["energy_kwh"]) for row in rows[:-1]) == float(rows[-1]["energy_kwh"])


def test_names_of_groups_hide_no_other_column() -> None:
    """No heading of a grouping is that of a column, and the file of --map cannot choose one."""
    bill = replace(report(), prices=replace(PRICES, hours="share", embodied=Embodied(150.0, 1e8)))
    served = replace(bill.rows.rows[0], phases=PhaseEnergy(1.0, 0.1, 2.0, 0.2, 9))
    of_models = replace(bill, grouping=GROUPINGS["model"], rows=replace(bill.rows, rows=(served,)))
    entitled = replace(bill, prices=replace(bill.prices, hours="larger"))
    own = [csv.DictReader(io.StringIO(to_csv(made))).fieldnames or () for made in (bill, of_models, entitled)]

    assert {*own[0], *own[1], *own[2]} - {"namespace", "model"} == RESERVED
    assert all(RESERVED.isdisjoint(grouping.heads) for grouping in GROUPINGS.values())


def test_json() -> None:
    """With the time, the prices and the reasons; what is not known is null."""
    found = json.loads(to_json(report()))

    assert (found["from"], found["to"], found["by"]) == ("2026-11-01T00:00:00Z", "2026-11-03T00:00:00Z", "namespace")
    assert found["rows"][0]["namespace"] == BAD
    assert found["rows"][2] == {
        "kind": "idle", "energy_kwh": 2.0, "energy_share": 0.2, "busy_gpu_hours": None, "resident_gpu_hours": None,
        "allocated_gpu_hours": None, "memory_gib_hours": None, "energy_cost": 0.78, "gpu_hours_cost": None,
        "cost": 0.78, "carbon_kg": 0.65,
    }  # fmt: skip
    assert found["unattributed_kwh_by_reason"] == {"gap": 0.75, "unrecorded": 0.25}
    assert found["observed_gpu_hours"] == 9


class Elements(HTMLParser):
    """What is in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Of each element."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Between them."""
        self.text += data


def test_html_needs_nothing_else_and_escapes_names() -> None:
    """No script, nothing from anywhere; the name is there as it is."""
    elements = Elements()
    elements.feed(to_html(report()))

    assert "script" not in elements.tags
    assert {"link", "img", "iframe"}.isdisjoint(elements.tags)
    assert not [name for name, _ in elements.attributes if name in ("src", "href") or name.startswith("on")]
    assert "http" not in to_html(report()).replace("http-equiv", "")
    assert SHOWN in elements.text
    for shown in ("6.00", "10.00", "(3 more)", "(idle)", "gap 0.750 kWh", "2026-11-01 00:00 to 2026-11-03 00:00 (UTC)"):
        assert shown in elements.text


def test_bars_of_the_chart_are_as_tall_as_their_energy() -> None:
    """Of two days, one with 4 and one with 6 kWh, under a scale to 6."""
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" .* height="([\d.]+)"><title>', to_html(report(name="ml")))
    tall = [(style, float(height) / 220 * 6) for style, _, height in bars]

    assert [(style, round(kwh, 2)) for style, kwh in tall] == [
        ("c0", 2), ("idle", 1), ("nobody", 1), ("c0", 4), ("rest", 1), ("idle", 1),
    ]  # fmt: skip


def test_the_chart_shows_all_energy_of_the_table() -> None:
    """That of owners whose group is unknown, too: the heights of all bars are the 10 kWh of the total."""
    bill = report(name="ml")
    rest = replace(bill.rows.rows[1], kind=Kind.UNKNOWN)
    rows = (bill.rows.rows[0], rest, *bill.rows.rows[2:])
    page = to_html(replace(bill, rows=replace(bill.rows, rows=rows)))
    heights = re.findall(r'<rect class="\w+" x="[\d.]+" .* height="([\d.]+)"><title>', page)

    assert sum(float(height) / 220 * 6 for height in heights) == pytest.approx(10, abs=0.02)
    assert page.count("(unknown)") == 3  # the legend, the table and a tip
    assert "kWh per day" in page


def test_numbers_for_people() -> None:
    """Not known, none, too small for the decimals, and large."""
    assert [grouped(value, 3) for value in (None, 0.0, 0.00042, 0.5, 12345.6789)] == [
        "-", "0.000", "0.00042", "0.500", "12,345.679",
    ]  # fmt: skip


def test_columns_that_add_up_before_rounding_do_so_after_it() -> None:
    """Three thirds of 0.10 are 0.04, 0.03 and 0.03; percentages are 33.4, 33.3 and 33.3."""
    thirds = tuple(ReportRow(Kind.GROUP, (name,), {Quantity.ENERGY: KWH / 3}) for name in "abc")
    total = ReportRow(Kind.TOTAL, (), {Quantity.ENERGY: KWH})
    bill = replace(report(Rates(kwh=0.1)), rows=ReportRows(thirds, total, ()))
    lines = [line.split() for line in table(bill).splitlines()[3:7]]

    assert [line[2] for line in lines] == ["33.4", "33.3", "33.3", "100.0"]
    assert [line[-1] for line in lines] == ["0.04", "0.03", "0.03", "0.10"]


def test_costs_of_a_row_add_up_as_they_are_shown() -> None:
    """Energy and GPU-hours of 0.333 each are 0.33 + 0.34 = 0.67, or 0.33 + 0.33 = 0.66."""
    amounts = {Quantity.ENERGY: KWH / 3, Quantity.ALLOCATED: 1200.0}
    thirds = tuple(ReportRow(Kind.GROUP, (name,), amounts) for name in "abc")
    total = ReportRow(Kind.TOTAL, (), {Quantity.ENERGY: KWH, Quantity.ALLOCATED: 3600.0})
    bill = replace(report(Rates(kwh=1, gpu_hour=1)), rows=ReportRows(thirds, total, ()))
    shown = [[float(text) for text in line.split()[-3:]] for line in table(bill).splitlines()[3:7]]

    assert [round(energy + hours, 2) for energy, hours, _ in shown] == [cost for _, _, cost in shown]
    assert round(sum(cost for _, _, cost in shown[:3]), 2) == shown[3][2] == 2.0


def test_rows_that_do_not_add_up_are_explained_in_every_format() -> None:
    """Two groups held one GPU for two hours."""
    both = tuple(ReportRow(Kind.GROUP, (name,), {Quantity.RESIDENT: 7200.0, Quantity.BUSY: 60.0}) for name in "ab")
    total = ReportRow(Kind.TOTAL, (), {Quantity.RESIDENT: 7200.0, Quantity.ALLOCATED: 3600.0, Quantity.BUSY: 100.0})
    bill = replace(report(Rates(), notes=()), rows=ReportRows(both, total, ()))
    texts = table(bill), to_csv(bill), " | ".join(json.loads(to_json(bill))["notes"]), unescape(to_html(bill))

    for text in texts:
        assert "in resident h (4.000, total 2.000): a GPU that several groups hold" in text
        assert "in busy h (0.03333, total 0.02778): the driver samples" in text
        assert "in allocated h (0.000, total 1.000): some GPUs were allocated to owners without a namespace" in text
    charged = replace(bill, prices=Rates(gpu_hour=2, hours="resident", currency="EUR"))
    assert "in resident h (4.000, total 2.000), GPU h EUR (8.00, total 4.00): a GPU" in table(charged)
    accounts = replace(bill, grouping=GROUPINGS["account"])
    assert "some GPUs were allocated to owners without an account" in table(accounts)
    users = replace(bill, grouping=GROUPINGS["user"])
    assert ": allocations have no user" in table(users)


def test_much_unrecorded_energy_suggests_a_shorter_step() -> None:
    """As long as there is one; then other reasons are likely."""
    rows = ReportRows(report().rows.rows, report().rows.total, (("unrecorded", 1 * KWH),))
    daily = replace(report(), rows=rows)
    quick = replace(daily, span=Span(0, 600_000, 15_000))

    assert "10.0 % of the energy is unrecorded; --step 6h may record more" in table(daily)
    assert "10.0 % of the energy is unrecorded; check that the exporters have a journal" in table(quick)
    assert "is unrecorded" not in table(report())  # 2.5 %
