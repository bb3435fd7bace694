"""Generates docs/metrics.md, and the tables of other pages that repeat the code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from textwrap import wrap

import yaml

from gpuledger.books import Books
from gpuledger.catalog import CATALOG, OPTIONAL, Family, kinds
from gpuledger.catalog import GROUPS as FAMILIES
from gpuledger.catalog.dialects import DIALECTS, Choices, dcgm, dcgm1
from gpuledger.catalog.dialects.dcgmnames import BY_OLD, OLD
from gpuledger.catalog.family import Type
from gpuledger.catalog.otel import CONVENTIONS
from gpuledger.cli.demo import RECORDING
from gpuledger.cli.idle import IdleSettings
from gpuledger.cli.job import JobSettings
from gpuledger.config.exporter import OPTIONS, Config
from gpuledger.config.settings import GROUPS, options_of
from gpuledger.model import Owner
from gpuledger.recording.replay import Replay
from gpuledger.tools.fleet.pages import families as fleet_families
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.idle.formats import idle_table
from gpuledger.tools.idle.rows import IdleRow, ranked
from gpuledger.tools.job.formats import screen, short
from gpuledger.tools.job.use import DeviceUse, JobUse
from gpuledger.tools.prices import Prices
from gpuledger.tools.report.settings import ReportSettings
from gpuledger.tools.top.columns import COLUMNS, View
from gpuledger.tools.top.feed import Ticks
from gpuledger.tools.top.keys import KEYS
from gpuledger.tools.top.pages import once
from gpuledger.web.snapshot.schema import Snapshot

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BEGIN, END = "<!-- settings: written by `make docs` -->", "<!-- end of settings -->"
DIALECTS_BEGIN, DIALECTS_END = "<!-- dialects: written by `make docs` -->", "<!-- end of dialects -->"
NAMES_BEGIN, NAMES_END = "<!-- names: written by `make docs` -->", "<!-- end of names -->"
JOB_SAMPLE_BEGIN, JOB_SAMPLE_END = "<!-- job example: written by `make docs` -->", "<!-- end of job example -->"
IDLE_SAMPLE_BEGIN, IDLE_SAMPLE_END = "<!-- idle example: written by `make docs` -->", "<!-- end of idle example -->"
KEYS_BEGIN, KEYS_END = "<!-- keys: written by `make docs` -->", "<!-- end of keys -->"
COLUMNS_BEGIN, COLUMNS_END = "<!-- columns: written by `make docs` -->", "<!-- end of columns -->"
TOOLS_BEGIN, TOOLS_END = "<!-- settings of tools: written by `make docs` -->", "<!-- end of settings of tools -->"
CONVENTIONS_BEGIN, CONVENTIONS_END = "<!-- conventions: written by `make docs` -->", "<!-- end of conventions -->"
SCREEN_BEGIN, SCREEN_END = "<!-- screen: written by `make docs` -->", "<!-- end of screen -->"
TOOLS = (FleetSettings, ReportSettings, JobSettings, IdleSettings)
TWINS = (("gpu_mig_", "gpu_"), ("container_gpu_", "gpu_process_"))
KINDS = {
    kinds.EXPORTER: ("Exporter", "One series per exporter, except for metrics with additional labels."),
    kinds.GPU: ("GPUs", "One series per GPU."),
    kinds.MIG: (
        "MIG instances",
        "One series per instance, in separate families, so that a sum over GPUs counts nothing twice.",
    ),
    kinds.PROCESS: (
        "Processes",
        "One series per process and device; on a MIG instance, `uuid` is the uuid of the instance.",
    ),
    kinds.CONTAINER: ("Containers", "One series per container and device: sums over its processes."),
    kinds.ACCESS: ("Containers with access", "One series per container and device that it is or may be on."),
    kinds.OWNER: (
        "Properties of containers",
        "One series per container on a GPU. Join them, as in `* on (container_id) group_left (image) gpu_owner_info`.",
    ),
    kinds.SERVER: (
        "Servers of language models",
        "With [`--tokens.scrape`](tokens.md): one series per owner of servers, over all its GPUs.",
    ),
    kinds.POD_ALLOCATION: ("Allocations to pods", "Devices that the kubelet has allocated, used or not."),
    kinds.CONTAINER_ALLOCATION: ("Allocations to containers", "Devices that Docker or Podman has allocated."),
    kinds.JOB_ALLOCATION: ("Allocations to batch jobs", "Devices that a scheduler's prolog has recorded."),
    kinds.ALLOCATION: (
        "Idle ledger",
        "One series per allocation; see [Idle GPUs](idle.md). After its end, only the counters are exposed.",
    ),
}


def metrics() -> str:
    """The page of all metrics, with an anchor for each."""
    parts = [
        "# Metrics",
        "",
        "Generated from `src/gpuledger/catalog/` by `make docs`; do not edit.",
        "",
        "A value that the GPU or driver does not report is absent, never 0. Series have no timestamps: a series that",
        "ends is stale at the next scrape. A scrape returns the values of the last tick (`--tick.interval`, 1 s); some",
        "are [read less often](overhead.md#how-fresh-a-value-is). The [glossary](glossary.md) defines the terms.",
        "",
        "Metrics in `_total` are counters, those in `_info` infos, all others gauges. Braces contain the labels that a",
        "metric has besides those of its section. The source is in parentheses; without one, it is gpuledger itself.",
        "GPM is the driver's activity counters (Hopper and newer), averaged since the previous reading.",
    ]
    for kind, (title, about) in KINDS.items():
        labels = ", ".join(f"`{label}`" for label in kind.labels)
        parts += ["", f"## {title}", "", about + (f" Labels: {labels}." if labels else "")]
        families = [family for family in CATALOG if family.of.labels == kind.labels]
        optional = {family: name for name in OPTIONAL for family in FAMILIES[name]}
        for name in ("", *OPTIONAL):
            group = [family for family in families if optional.get(family, "") == name]
            if group and name:
                parts += ["", f"Only with `--collector.{name}`:"]
            if group:
                parts += ["", *_items(group)]
    about = "Of the service [`gpuledger fleet`](fleet.md), not of the exporter."
    parts += ["", "## Fleet", "", about, ""]
    parts += [_item(family, ("labels of `--by`",) if family.of.labels else ()) for family in fleet_families(())]
    return "\n".join(parts) + "\n"


def _items(families: list[Family]) -> list[str]:
    """One line per metric; one for all with the descriptions of metrics of GPUs or processes."""
    items = [_item(family) for family in families if not _twin(family)]
    if twins := [family for family in families if _twin(family)]:
        begin, other = next(pair for pair in TWINS if twins[0].name.startswith(pair[0]))
        names = ", ".join(_anchor(family) for family in twins)
        items.append(f"- as the metrics that begin with `{other}` instead of `{begin}`: {names}")
    return items


def _anchor(family: Family) -> str:
    labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
    return f'<a id="{family.name}"></a>`{family.name}{labels}`'


def _item(family: Family, labels: tuple[str, ...] = ()) -> str:
    """The line of a metric: name, additional labels, description and source."""
    suffixes = {"total": Type.COUNTER, "info": Type.INFO}
    if family.type is not suffixes.get(family.name.rpartition("_")[2], Type.GAUGE):
        raise ValueError(f"{family.name}: the type {family.type.value} does not follow from the name")
    source = family.origin.removeprefix("the ")
    sources = "" if source == "gpuledger" else f" ({source})"
    about = f"{family.help.removesuffix('.')}{sources}."
    return f"- {_anchor(family)}{''.join(f', {label}' for label in labels)}: {about}"


def _twin(family: Family) -> str:
    """The metric of GPUs or of processes with the same description and source; empty if there is none."""
    for begin, other in TWINS:
        for twin in CATALOG:
            if family.name == begin + twin.name.removeprefix(other) and family.origin == twin.origin:
                return twin.name if family.help == twin.help.replace("the process", "the container") else ""
    return ""


def configuration(page: str) -> str:
    """The page with the current settings, of the exporter and of the tools."""
    rows = [*_shared_settings()]
    sections = {"fleet": FleetSettings, "report": ReportSettings, "idle": IdleSettings, "job": JobSettings}
    exporters = [row for row in _own_settings(IdleSettings) if row in _own_settings(JobSettings)]
    for name, kind in sections.items():
        if kind is IdleSettings:
            rows += ["", "### idle and job", "", *exporters]
        own = _own_settings(kind)
        rows += ["", f"### {name}", "", *(row for row in own if row not in exporters)]
    return _between(_between(page, BEGIN, _settings(Config), END), TOOLS_BEGIN, rows, TOOLS_END)


def _shared_settings() -> list[str]:
    """The settings that each tool has, with the same default."""
    first, *others = (_settings(kind) for kind in TOOLS)
    return [row for row in first if all(row in rows for rows in others)]


def _own_settings(kind: type) -> list[str]:
    """The settings of a tool, without the settings that all tools or the exporter have."""
    known = {*_shared_settings(), *(row for row in _settings(Config) if row.startswith(("- `--web.", "- `--log.")))}
    return [row for row in _settings(kind) if row not in known]


def dialects(page: str) -> str:
    """The page with the current tables of dialects and of DCGM's names."""
    rows = ["| dialect | path | names of |", "|---|---|---|"]
    for dialect in DIALECTS.values():
        path = f"`{dialect.path}`" if dialect.path else "`/metrics`" if dialect.name == "native" else "on request"
        rows.append(f"| `{dialect.name}` | {path} | {dialect.about} |")
    page = _between(page, DIALECTS_BEGIN, rows, DIALECTS_END)
    older = {theirs: name for name, theirs in dcgm1.NAMES.items()}
    usual = dcgm.families(Choices(names=OLD))
    optional = dcgm.optional_families(dcgm.kinds_of(Choices(), ()))
    rows = []
    for families, about in ((usual, []), (optional, ["", "Only if `--dcgm.counters` selects them:", ""])):
        rows += [*about, "| name and unit | in 4.9, if another | derived from | in dcgm1 |", "|---|---|---|---|"]
        for family in families:
            was = f"`{older[family.name]}`" if family.name in older else ""
            new = BY_OLD.get(family.name)
            now = "" if new is None else f"`{new.new}`{f', {new.unit.new}' if new.unit.new else ''}"
            unit = UNIT.search(family.help)
            name = f"`{family.name}`{f', {unit[1]}' if unit else ''}"
            rows.append(f"| {name} | {now} | `{family.origin}` | {was} |")
    return _between(page, NAMES_BEGIN, rows, NAMES_END)


SAMPLE_IDLE = (
    (Owner(namespace="research", pod="notebook-dana-0", container="notebook"), "2", "no_process", 31.0, 76, 1),
    (Owner(container="triton", container_id="5e1f"), "3", "parked", 7.5, 110, 1),
    (Owner(job="211"), "0", "low", 4.0, 120, 2),
)
"""Owner, GPU, state, hours, watts, and number of allocations."""
SAMPLE_TIME = 1_794_844_800.0


def _sample_idle() -> str:
    prices, rows = Prices(kwh=0.30, gpu_hour=2.50, currency="EUR"), []
    for owner, gpu, state, hours, watts, shared_by in SAMPLE_IDLE:
        seconds = 3600 * hours
        rows.append(
            IdleRow(node="", gpu=gpu, uuid="", owner=owner, state=state, idle_since=SAMPLE_TIME - seconds,
                    now_s=SAMPLE_TIME, gpu_seconds=seconds / shared_by, joules=seconds * watts / shared_by,
                    prices=prices, shared_by=shared_by)
        )  # fmt: skip
    return idle_table(ranked(rows, 0.0), prices, nodes=False, colour=False)


def idle(page: str) -> str:
    """The page with an example."""
    return _between(page, IDLE_SAMPLE_BEGIN, ["```", *_sample_idle().splitlines(), "```"], IDLE_SAMPLE_END)


def _sample_job() -> list[str]:
    """A job of eight hours on two GPUs, of which one was not used and the other was not used at the end."""
    prices, hour = Prices(kwh=0.30, gpu_hour=2.50, currency="EUR"), 3600.0
    busy, idle = (
        DeviceUse(node="gpu01", gpu=gpu, start=SAMPLE_TIME - 8 * hour, end=SAMPLE_TIME, busy_s=busy * hour,
                  idle_s=(8 - busy) * hour, unknown_s=0.0, joules=joules, memory_bytes=gib << 30,
                  idle_since=SAMPLE_TIME - idle * hour)
        for gpu, busy, idle, joules, gib in (("0", 6.5, 1.5, 1.62e7, 97), ("1", 0.0, 8.0, 3.4e6, 1))
    )  # fmt: skip
    use = JobUse("211", "prometheus", (busy, idle), has_peak=True)
    text = screen(use, prices, colour=False)
    return ["```", *text.splitlines(), "```", "", "and with `--short`", "", "```", short(use, prices).strip(), "```"]


def slurm(page: str) -> str:
    """The page with an example of a job."""
    return _between(page, JOB_SAMPLE_BEGIN, _sample_job(), JOB_SAMPLE_END)


def top(page: str) -> str:
    """The page with the current lists, and the demo after half a minute."""
    rows = [f"- {' '.join(f'`{name}`' for name in key.names.split())}: {key.about}" for key in KEYS]
    page = _between(page, KEYS_BEGIN, rows, KEYS_END)
    rows = [f"- {column.title} (`{column.name}`): {column.about}" for column in COLUMNS]
    page = _between(page, COLUMNS_BEGIN, rows, COLUMNS_END)
    text = once(_demo(30), View(), columns=80, colour=False, utf8=True)
    screen = ["```", *text.splitlines()[1:], "```"]  # without the title, which has the version and the time of day
    return _between(page, SCREEN_BEGIN, screen, SCREEN_END)


def attacks() -> str:
    """One row per test in tests/hostile, whose docstring is `attack: outcome.`."""
    rows = [
        "# Attacks",
        "",
        "Generated by `make docs` from the tests in this folder; docs/security.md explains them.",
        "",
    ]
    rows += ["| attack | outcome | test |", "|---|---|---|"]
    for path in sorted(ATTACKS.parent.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                attack, _, outcome = (ast.get_docstring(node) or "").replace("\n", " ").partition(": ")
                rows.append(f"| {attack} | {outcome.removesuffix('.')} | `{path.stem}.{node.name}` |")
    return "\n".join(rows) + "\n"


def _demo(ticks: int) -> Snapshot:
    replay, books = Replay(RECORDING, paced=False), Books()
    source = Ticks(lambda: books.book(replay.read()), "")
    return [source() for _ in range(ticks)][-1]


def _between(page: str, begin: str, rows: list[str], end: str) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([before + begin, *rows, end + after])


def _settings(kind: type) -> list[str]:
    """One line per setting with its default, in the order of their groups, as in the help."""
    rows = []
    for option in sorted(options_of(kind), key=lambda option: GROUPS.index(option.group)):
        older = ", ".join(f"`{name}`" for name in (*(f"--{alias}" for alias in option.aliases), *option.variables))
        default = f"={option.default_text}" if option.default_text else ""
        rows.append(f"- `--{option.key}{default}`: {option.help}{f' Alias: {older}.' if older else ''}")
    return rows


def otlp(page: str) -> str:
    """The page with the current names of OpenTelemetry's conventions."""
    rows = []
    for name, convention in CONVENTIONS.items():
        attributes = [f"`{key}={value}`" for key, value in convention.attributes]
        attributes += [f"`{new}` from `{old}`" for old, new in convention.labels.items()]
        rows.append(f"- `{name}`: {', '.join([f'`{convention.name}`', *attributes])}")
    return _between(page, CONVENTIONS_BEGIN, rows, CONVENTIONS_END)


UNIT = re.compile(r" in (MHz|W|mJ|ns|MiB|percent|degrees Celsius|units of 1000 KiB per second|bytes per second)\b")
SAMPLE = ROOT / "deploy" / "gpuledger.yml"
ATTACKS = ROOT / "tests" / "hostile" / "README.md"


def sample() -> str:
    """deploy/gpuledger.yml: every setting of the exporter with its default, as a comment; the environment first."""
    lines = [
        "# Configuration: `gpuledger serve --config.file gpuledger.yml`. Remove the # of a line to change a setting.",
        "# Generated by `make docs`; `gpuledger serve --print-config` prints the effective settings.",
    ]
    for group in sorted(
        {option.group for option in OPTIONS}, key=lambda group: (group != "owners", GROUPS.index(group))
    ):
        lines += ["", f"# --- {group}"]
        for option in (option for option in OPTIONS if option.group == group):
            default = list(option.default) if option.many else option.default
            value = option.default_text if isinstance(default, float) else json.dumps(default)
            value = "true" if default is None else value
            sign = "" if option.key == "environment" else "#"
            lines += ["", *(f"# {line}" for line in wrap(option.help, 118)), f"{sign}{option.key}: {value}"]
    return "\n".join(lines) + "\n"


LLMS = DOCS / "llms.txt"
ABOUT = (
    "Prometheus exporter that attributes the use of NVIDIA GPUs (memory, time, energy) to processes, containers, pods "
    "and batch jobs, with books that balance, and tools for bills, idle GPUs and autoscaling."
)


def llms() -> str:
    """docs/llms.txt: all pages with their first sentence, in the order of the navigation, for language models."""
    lines = ["# gpuledger", "", f"> {ABOUT}"]
    for section in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]:
        ((title, pages),) = section.items()
        lines += ["", f"## {title}", ""]
        for page in pages:
            name = page if isinstance(page, str) else next(iter(page.values()))
            head, *paragraphs = (DOCS / name).read_text(encoding="utf-8").split("\n\n")
            about = next(
                (text for text in paragraphs if not text.startswith(("<", "!", "|", "#", "```", "-", "["))), ""
            )
            sentence = re.split(r"(?<=[.:])\s", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", about), maxsplit=1)[0]
            about = f": {' '.join(sentence.split())}" if sentence else ""
            lines.append(f"- [{head.partition('# ')[2].splitlines()[0]}]({name}){about}")
    return "\n".join(lines) + "\n"


PAGES = {
    "metrics.md": lambda _: metrics(),
    "configuration.md": configuration,
    "dialects.md": dialects,
    "otlp.md": otlp,
    "idle.md": idle,
    "slurm.md": slurm,
    "top.md": top,
}


if __name__ == "__main__":
    for name, make in PAGES.items():
        path = DOCS / name
        path.write_text(make(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote docs/{name}")
    for path, text in ((SAMPLE, sample()), (ATTACKS, attacks()), (LLMS, llms())):
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
