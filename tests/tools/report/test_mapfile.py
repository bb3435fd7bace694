"""The file with departments, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.errors import ConfigError
from gpuledger.model import PhaseEnergy
from gpuledger.tools.report.mapfile import Departments, file_names, parse, read
from gpuledger.tools.report.queries import GROUPINGS
from gpuledger.tools.report.rates import Embodied, Rates
from gpuledger.tools.report.report import Report, columns
from gpuledger.tools.report.rows import Kind, ReportRow, ReportRows
from gpuledger.tools.report.span import Span


def test_a_file_with_departments(tmp_path: Path) -> None:
    """As a spreadsheet writes it: with a byte order mark, quotes, empty lines and comments."""
    path = tmp_path / "accounts.csv"
    path.write_bytes(
        b'\xef\xbb\xbfaccount,Cost centre\r\nphys01,"Physics, theory"\r\n\r\n# left\r\n chem , Chemistry \r\n'
    )

    assert read(str(path), "account") == Departments("Cost centre", {"phys01": "Physics, theory", "chem": "Chemistry"})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "line 1: the first column is '', but the report is by account"),
        (b"ada,physics\n", "line 1: the first column is 'ada', but the report is by account"),
        (b"user,department\nada,physics\n", "line 1: the first column is 'user', but the report is by account"),
        (b"account,cost\na,b\n", "line 1: 'cost' is the name of another column"),
        (b"account,department\na,b\nc\n", "line 3: needs two columns"),
        (b"account,department\na,b,c\n", "line 2: needs two columns"),
        (b"account,department\na,\n", "line 2: needs two columns"),
        (b"account,department\na,b\x1b[2J\n", "line 2: needs two columns with printable names"),
        (b"account,department\na,b\n\na,c\n", "line 4: 'a' is there twice"),
        (b"account,department\na,\xff\n", "line 2: is not UTF-8"),
        (b'account,department\na,"b\n', "line 2: unexpected end of data"),
    ],
)
def test_mistakes_have_the_number_of_their_line(tmp_path: Path, data: bytes, says: str) -> None:
    """Each is one error with a fix."""
    path = tmp_path / "accounts.csv"
    path.write_bytes(data)

    with pytest.raises(ConfigError) as caught:
        read(str(path), "account")
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"--map: {path}, ")


@pytest.mark.parametrize("by", GROUPINGS)
def test_no_column_of_a_report_can_be_the_heading_of_departments(by: str) -> None:
    """Every column that prices, emissions and language models add; otherwise CSV would have two of one name."""
    prices = Rates(0.3, 2.0, "EUR", "share", 400.0, embodied=Embodied(150.0, 1e8), carbon_query="grid")
    row = ReportRow(Kind.GROUP, phases=PhaseEnergy(1.0, 0.1, 2.0, 0.2, 9))
    report = Report(Span(0, 3_600_000, 60_000), GROUPINGS[by], prices, ReportRows((row,), ReportRow(Kind.TOTAL), ()))

    for column in columns(report):
        with pytest.raises(ConfigError, match="is the name of another column"):
            parse([f"{by},{column.key}"], "a.csv", by)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It is missing, or a directory."""
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ConfigError, match="--map: cannot read"):
            read(str(path), "user")


def test_each_department_has_a_file_of_its_own() -> None:
    """No name leads out of the folder or hides a file, and no two departments share one."""
    assert file_names(["Physics", "../../etc/x", ".law"], ".csv") == {
        "Physics": "Physics.csv", "../../etc/x": "_.._etc_x.csv", ".law": "law.csv",
    }  # fmt: skip
    for names in (["a/b", "a:b"], ["Law", "law"], ["ä" * 200]):
        with pytest.raises(ConfigError, match="has no file name of its own"):
            file_names(names, ".csv")
