"""The docs say what the code does."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from tools.samplereport import sample

from gpuledger.catalog import Family
from gpuledger.catalog.dialects import DIALECTS, Choices, dcgm, families_of
from gpuledger.cli import top
from gpuledger.cli.idle import IdleSettings
from gpuledger.config.exporter import CONFIG_FILE, OPTIONS
from gpuledger.config.settings import options_of
from gpuledger.model.owners import PROVIDERS
from gpuledger.tools.fleet.pages import families as fleet_families
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.prometheus.client import FIXES
from gpuledger.tools.report.formats import table
from gpuledger.tools.report.queries import GROUPINGS
from gpuledger.tools.report.settings import ReportSettings
from gpuledger.web.app import App
from tests.hostile.privileges import EXPORTERS, ROWS
from tools import docs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_fresh(name: str) -> None:
    """What `make docs` would write is what is there."""
    page = (ROOT / "docs" / name).read_text()

    assert page == docs.PAGES[name](page), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_marked_as_generated_is_generated(page: Path) -> None:
    """`make docs` writes what stands between two marks that name it."""
    marks = re.findall(r"<!-- .*?: written by `make docs` -->", page.read_text())
    known = {text for name, text in vars(docs).items() if name.endswith("BEGIN")}

    assert set(marks) <= known
    assert not marks or page.name in docs.PAGES


def test_every_attack_has_an_outcome() -> None:
    """The docstrings of tests/hostile are rows of its README: `attack: outcome.`."""
    page = docs.attacks()

    assert "|  |" not in page
    assert page == docs.ATTACKS.read_text(), "run `make docs`"


def test_the_list_of_pages_is_current() -> None:
    """docs/llms.txt has each page of the navigation."""
    assert docs.llms() == docs.LLMS.read_text(), "run `make docs`"


def test_every_kind_of_exporter_is_in_the_table_of_rights() -> None:
    """docs/permissions.md has a row for each set of permissions that tests/hostile tries."""
    assert {row[0] for row in ROWS} == set(EXPORTERS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_site_builds(tmp_path: Path) -> None:
    """Mkdocs finds every page in the navigation, and every link leads to an anchor or a file, also without a server."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert 'id="gpu_process_energy_joules_total"' in (tmp_path / "metrics.html").read_text()
    for page in tmp_path.glob("**/*.html"):
        links = re.findall(r'href="?([^"#:?\s>]+)[#"?\s>]', page.read_text())
        missing = {link for link in links if not link.startswith("/") and not (page.parent / link).is_file()}
        assert missing == set(), page.name


def test_readme_commands_exist() -> None:
    """Each make target and each gpuledger command of the README is one there is."""
    from gpuledger.cli import COMMANDS

    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()

    assert set(re.findall(r"`gpuledger (\w+)", readme)) <= set(COMMANDS)
    for target in re.findall(r"^make (\w+)", readme, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_every_row_about_owners_is_held_by_a_test() -> None:
    """docs/owners.md names a test for each environment; each of them is there."""
    table = (ROOT / "docs" / "owners.md").read_text().partition("## What is recognised")[0]
    named = re.findall(r"`((?:owners/\w+|real|e2e)/test_\w+\.py|test_\w+\.py)`", table)

    assert len(named) > 10
    for name in named:
        assert (ROOT / "tests" / name).exists(), name


def _docker_lines(name: str) -> list[list[str]]:
    """The `docker run` commands of a page, without its port, its settings and the words after the image."""
    text = (ROOT / name).read_text().replace("\\\n", "")
    lines = [shlex.split(line) for line in re.findall(r"^docker run .*$", text, re.MULTILINE)]
    return [line[: line.index("gpuledger", line.index("gpuledger") + 1) + 1] for line in lines]


def test_there_is_one_docker_command() -> None:
    """README, docs/docker.md and docs/migrating.md start the same container, but for a port, a file and arguments."""
    ((readme,), (docker,)) = _docker_lines("README.md"), _docker_lines("docs/docker.md")
    adapted = _docker_lines("docs/migrating.md")

    assert docker == readme
    assert adapted
    for line in adapted:
        assert {word for word in readme if ":9400" not in word} <= set(line)
        others = set(line) - set(readme)
        assert all(re.match(r"\d+:\d+$|EXPORTER_PORT=|\$PWD/", word) for word in others), others


WRITERS = ("attribute", "attribute_single", "Shares", "_mixed")
"""Functions and records of the books that take a method."""


def test_every_method_and_reason_is_explained() -> None:
    """docs/attribution.md has a row for each that the books write down, and for no other."""
    calls = [
        (node.func, node.args)
        for room in ("ledger", "shares")
        for path in (ROOT / "src" / "gpuledger" / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    written = {
        (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""), text.value)
        for node, arguments in calls
        for text in (ast.walk(arguments[1]) if len(arguments) > 1 else ())
        if isinstance(text, ast.Constant)
    }
    page = (ROOT / "docs" / "attribution.md").read_text()

    chosen = {
        text.value
        for path in (ROOT / "src" / "gpuledger" / "shares").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "method"
        for text in ast.walk(node.value)
        if isinstance(text, ast.Constant)
    }
    methods = {text for name, text in written if name in WRITERS and isinstance(text, str)} | (chosen - {None})
    reasons = {text for name, text in written if name in ("leave", "Rise")} | {"before"}
    assert {"exclusive", "sm_time"} <= methods
    assert {"gap", "error", "reset"} <= reasons
    assert _explained(page, "method") == methods
    assert _explained(page, "reason") == reasons


def _explained(page: str, label: str) -> set[object]:
    table = page.partition(f"| `{label}` |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def _ours(page: str) -> list[str]:
    """All code of a page but that in the left columns of its tables, which is that of another program."""
    lines = [line.split(" | ", 1)[1] if line.startswith("| ") else line for line in page.splitlines()]
    return re.findall(r"`([^`\n]+)`", "\n".join(lines))


def test_the_way_from_other_exporters_leads_somewhere() -> None:
    """Each of our metrics, flags and paths in docs/migrating.md is there."""
    page = (ROOT / "docs" / "migrating.md").read_text()
    ours = _ours(page)
    families = {family.name for family in _all_families()}
    options = (*OPTIONS, *options_of(FleetSettings), CONFIG_FILE)
    flags = {name for option in options for name in (option.key, *option.aliases)}
    pages = App(lambda: None, lambda: None, interval_s=1.0)._pages

    metric = re.compile(r"(?<!:)\b(?:\w+_)?(?:gpu|gpuledger|dcgm|DCGM)_\w+\b")  # a colon is in names of recording rules
    metrics = {name for code in ours for name in metric.findall(code)}
    named = {flag for code in ours for flag in re.findall(r"--([\w.-]+)", code)}
    paths = {code for code in ours if re.fullmatch(r"/[\w/-]+", code)}
    assert metrics - families - {"my_gpu_process"} == set()
    assert named - flags - {"privileged", "user", "pid"} == set()  # of Docker
    assert paths - set(pages) == set()
    assert min(len(metrics) - 30, len(named) - 20, len(paths) - 4) > 0


def test_what_is_the_same_is_accepted() -> None:
    """Flags, variables and metrics that docs/migrating.md calls the same are ours too."""
    page = (ROOT / "docs" / "migrating.md").read_text()
    known = {name for option in OPTIONS for name in (option.key, *option.aliases, *option.variables)} | {"NODE_NAME"}

    same = _left(page, "same")
    kept = _left(page, "the same name")

    assert min(len(same) - 15, len(kept) - 6) > 0
    assert {word.lstrip("-") for word in same} - known == set()
    assert set(kept) - {family.name for family in _all_families()} == set()


def _kinds_of_errors(path: Path) -> set[str]:
    """The kinds, given as text, of each PrometheusError that a module creates."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    kinds = {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "PrometheusError"
        for argument in (*call.args[2:], *(keyword.value for keyword in call.keywords if keyword.arg == "kind"))
        if isinstance(argument, ast.Constant)
    }
    return {kind for kind in kinds if isinstance(kind, str)}


def test_the_changelog_has_the_errors_of_the_accuracy_page() -> None:
    """One number for one fact: the tables are written from the measurements."""
    log, page = (" ".join((ROOT / name).read_text().split()) for name in ("CHANGELOG.md", "docs/accuracy.md"))
    (natural,) = re.findall(r"\| \*\*natural programs\*\*, nothing known before .*? \*\*([\d.]+)\*\*", page)
    table = page.partition("<!-- activity -->")[2].partition("<!-- end of activity -->")[0]
    activity = sorted(re.findall(r"before \| \*\*([\d.]+)\*\*|last \| \*\*([\d.]+)\*\*", table))
    errors = sorted(max(pair) for pair in activity)

    assert f"in windows of 5 s is {natural} instead of" in log
    assert f"the SM activity of a process is off by {errors[0]} to {errors[-1]} (" in log


def test_what_the_fleet_page_names_is_there() -> None:
    """Each metric, rule, flag and reason of docs/fleet.md."""
    page = (ROOT / "docs" / "fleet.md").read_text()
    ours = {family.name for family in (*fleet_families(()), *_all_families())}
    rules = (ROOT / "mixin" / "rules" / "gpuledger-fleet.yml").read_text()
    flags = {option.key for option in (*options_of(FleetSettings), CONFIG_FILE)} | {"once"}

    assert set(re.findall(r"\b(?:gpu|container_gpu)_\w+", re.sub(r"\w+:\w+:\w*", "", page))) - ours == {
        "gpu_fleet"
    }  # grep
    assert [name for name in re.findall(r"\w+:\w+:\w+", page) if name not in rules] == []
    older = {alias for option in options_of(FleetSettings) for alias in option.aliases}
    assert set(re.findall(r"--([a-z](?:[\w.-]*\w)?)", page)) - flags - older == set()
    raised = set(FIXES).union(*map(_kinds_of_errors, (ROOT / "src" / "gpuledger" / "tools").glob("[fp]*/*.py")))
    explained = set(re.findall(r"^\| `(\w+)` \| ", page.partition("| reason |")[2].partition("\n\n")[0], re.MULTILINE))
    assert explained == raised


def test_what_the_report_page_names_is_there() -> None:
    """Each metric, flag and grouping of docs/report.md; those of the exporter and of Prometheus itself too."""
    page = (ROOT / "docs" / "report.md").read_text()
    ours = {family.name for family in _all_families()}
    others = {"query.timeout", "data-file", "validate-version"}  # of Prometheus and of focus-validator
    flags = {option.key for option in (*options_of(ReportSettings), *OPTIONS, CONFIG_FILE)} | others

    assert set(re.findall(r"\b(?:gpu|container_gpu|gpuledger)_\w+", page)) - ours == set()
    assert set(re.findall(r"--([a-z](?:[\w.-]*\w)?)", page)) - flags == set()
    named = " ".join(page.partition("`--by` is one of ")[2].partition(". ")[0].split())
    assert [word for word in re.findall(r"[\w-]+", named) if word in GROUPINGS] == list(GROUPINGS)


def test_what_the_idle_page_names_is_there() -> None:
    """Each metric and flag of docs/idle.md; --gpus is Docker's."""
    page = (ROOT / "docs" / "idle.md").read_text()
    ours = {family.name for family in _all_families()}
    flags = {option.key for option in (*options_of(IdleSettings), *OPTIONS)} | {"json", "pairs", "gpus"}

    assert set(re.findall(r"\b(?:gpu|container_gpu|gpuledger)_\w+", page)) - ours == {"gpu_hours"}
    assert set(re.findall(r"--([a-z](?:[\w.-]*\w)?)", page)) - flags == set()


def test_the_example_of_the_report_page_is_a_report() -> None:
    """The table is that of the picture's data, as it would be printed today."""
    page = (ROOT / "docs" / "report.md").read_text()

    assert table(sample()) in page, "replace the example by the output of `python -m tools.samplereport`"


def test_what_the_page_of_the_terminal_view_names_is_there() -> None:
    """Each flag of docs/top.md."""
    parser = ArgumentParser()
    top.add_arguments(parser)
    own = {name for action in parser._actions for name in action.option_strings}
    settings = {f"--{name}" for option in options_of(top.SETTINGS) for name in (option.key, *option.aliases)}

    named = set(re.findall(r"--[a-z](?:[\w.-]*\w)?", (ROOT / "docs" / "top.md").read_text()))
    assert named <= own | settings
    assert {"--once", "--connect", "--interval"} <= named


def _left(page: str, here: str) -> list[str]:
    """The code in the left column of rows whose second column begins so."""
    cells = re.findall(rf"^\| ([^|]*) \| {here}s?\b", page, re.MULTILINE)
    return re.findall(r"`([^`]+)`", " ".join(cells))


def _all_families() -> tuple[Family, ...]:
    """Of every dialect, those that must be chosen too."""
    choices = Choices(prefix="my_gpu_process")
    return (*families_of(DIALECTS, choices), *dcgm.optional_families(dcgm.kinds_of(choices, ())))


UNEXPLAINED = {"exporter"}
"""A bug of gpuledger has no symptom of its own."""


def test_every_line_of_the_doctor_is_explained() -> None:
    """docs/troubleshooting.md names each check that can find a fault, and no other."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## Symptoms")[2]
    rows = [line.split(" | ")[1] for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    faults = {"warning", "problem", "explained"}
    written = {
        _shape(node.args[0])
        for path in [*(ROOT / "src/gpuledger/tools/doctor").glob("*.py"), ROOT / "src/gpuledger/cli/doctor.py"]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in faults
    }
    problems = ast.walk(ast.parse((ROOT / "src/gpuledger/web/snapshot/problems.py").read_text()))
    abouts = [node.value for node in problems if isinstance(node, ast.keyword) and node.arg == "about"]
    written |= {_shape(node).lower() for node in abouts}
    fixed = {name for name in written if name and name not in UNEXPLAINED}

    assert fixed <= named
    assert {name.lower() for name in named - fixed} == {
        "gpu n", "mig of gpu n", "listen address", "reading", *(kind.title for kind in PROVIDERS.values()), "dcgm",
    } - {"job directory"}  # fmt: skip


def _shape(node: ast.expr) -> str:
    """A name that stands in the code; nothing for one that is made."""
    return str(node.value) if isinstance(node, ast.Constant) else ""
