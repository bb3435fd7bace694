"""The numbers of docs/sizing.md, counted in the demo, and its configuration, checked by Prometheus."""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from gpuledger.catalog import CATALOG, kinds
from gpuledger.tools.report.queries import GROUPINGS, Step, queries
from tests.cli.running import serving, surroundings
from tests.fakedriver import Gpu
from tests.mixin.rules import NAMES, RULES
from tests.real.daemons import run
from tests.real.nodes import GIB, EmptyNode, uuid
from tests.tools.fleet.flags import settings

TEXT = (Path(__file__).parents[3] / "docs" / "sizing.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
Labels = tuple[str, ...]
LABELS: dict[str, Labels] = {family.name: family.of.labels for family in CATALOG}
KEPT = next(block for block in BLOCKS if "scrape_configs" in block)["scrape_configs"][0]["metric_relabel_configs"][0]


def counted() -> tuple[Counter[Labels], Counter[Labels], str]:
    """Series and things of each kind in the demo."""
    with serving("demo", "--tick.interval=200ms", env=surroundings()) as running:
        text = running.metrics("^container_gpu_energy_joules_total", within_s=30)
    series: Counter[Labels] = Counter()
    things: dict[Labels, set[tuple[str | None, ...]]] = {}
    for name, labels in re.findall(r"^([a-z_]+)(?:{(.*)})? ", text, re.MULTILINE):
        known = dict(re.findall(r'([a-z_]+)="((?:[^"\\\\]|\\\\.)*)"', labels))
        series[LABELS[name]] += 1
        things.setdefault(LABELS[name], set()).add(tuple(known.get(label) for label in LABELS[name]))
    return series, Counter({kind: len(found) for kind, found in things.items()}), text


FORMULA = re.search(r"= (\d+)((?: \+ \d+ . [A-Za-z]+){4})", TEXT)


def test_the_formula_is_what_is_shown() -> None:
    """Of a node, a GPU, a process and a container, within a tenth."""
    assert FORMULA is not None
    node, (gpu, process, container, _) = int(FORMULA[1]), map(int, re.findall(r"\d+", FORMULA[2]))
    series, things, _ = counted()
    of_containers = sum(series[kind.labels] for kind in (kinds.CONTAINER, kinds.ACCESS, kinds.OWNER))

    assert abs(series[kinds.GPU.labels] / things[kinds.GPU.labels] - gpu) <= gpu / 10
    assert abs(series[kinds.PROCESS.labels] / things[kinds.PROCESS.labels] - process) <= process / 8
    assert abs(of_containers / things[kinds.CONTAINER.labels] + 1 - container) <= 1
    assert 20 <= series[()] <= node


def of_allocations(text: str) -> set[int]:
    """Numbers of series of the pods that hold a device."""
    pattern = r'^gpu_(?:allocation|entitlement|pod_allocation)_\w+{.*?uuid="(.*?)".*?pod="(.*?)"'
    return set(Counter(re.findall(pattern, text, re.MULTILINE)).values())


def test_the_formula_has_the_most_of_an_allocation(tmp_path: Path) -> None:
    """In the demo, and on a node whose pods have entitlements: one works, one stopped, and one never began."""
    assert FORMULA is not None
    most = int(re.findall(r"\d+", FORMULA[2])[-1])
    node = EmptyNode(tmp_path, *(Gpu(index=n, watts=200, util=60, memory_used=8 * GIB) for n in range(3)))
    node.pod("works", 0, uuid(0), memory=8 * GIB, sm=60)
    node.waiting_pod("never", uuid(1))
    stops = node.pod("stops", 2, uuid(2), memory=8 * GIB, sm=60)
    with node.served() as running:
        running.metrics('^gpu_allocation_state.*pod="stops".*state="busy"')
        stops.sm, node.scenario.gpus[2].util = 0, 0
        node.scenario.write(node.folder / "scenario")
        text = running.metrics('^gpu_allocation_state.*pod="stops".*state="parked"', within_s=60)

    assert of_allocations(text) == {20, 21, most}
    assert of_allocations(counted()[2]) <= set(range(16, most + 1))


def test_the_example_is_the_formula() -> None:
    """Eight GPUs, processes, containers and allocations."""
    assert FORMULA is not None
    parts = [int(FORMULA[1]), *(8 * int(number) for number in re.findall(r"\d+", FORMULA[2]))]

    assert f"{' + '.join(map(str, parts))} = {sum(parts):,} series per node" in TEXT
    assert f"| series per node | {sum(parts):,} |" in TEXT


def test_what_is_kept_is_as_small_as_said_and_enough() -> None:
    """About 15 series per GPU: all that the rules, `fleet` and a report query, except for single processes."""
    series = Counter(re.findall(r"^([a-z_]+)[{ ]", counted()[2], re.MULTILINE))
    kept = re.compile(KEPT["regex"])

    of_gpus = [n for name, n in series.items() if kept.fullmatch(name) and LABELS[name] == kinds.GPU.labels]

    assert 12 <= sum(of_gpus) / series["gpu_info"] <= 18
    plan = settings("by=namespace+pod", "by=model").plan().queries
    rules = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("gpuledger-[fn]*.yml"))]
    texts = [getattr(plan, name) for name in plan.__slots__]
    step = Step(300_000, 3_600_000)
    texts += [query.promql.text for by in ("namespace", "workload", "model") for query in queries(GROUPINGS[by], step)]
    texts += [rule["expr"] for file in rules for group in file["groups"] for rule in group["rules"]]
    names = {name for text in texts for name in NAMES.findall(re.sub(r"(cluster|namespace):[a-z_0-9:]+", "", text))}

    assert len(names) > 10
    missing = [name for name in sorted(names) if not kept.fullmatch(name)]
    assert [name for name in missing if not name.startswith("gpu_process_")] == []


def test_what_is_kept_is_enough_for_the_report() -> None:
    """All series of GPUs and containers that a report queries; the page names what is missing without processes."""
    report = (Path(__file__).parents[3] / "docs" / "report.md").read_text()
    named = set(re.findall(r"`((?:container_gpu|gpu|gpuledger)_\w+)`", report))
    named.add("gpu_unattributed_energy_joules_total")
    kept = re.compile(KEPT["regex"])

    assert len(named) > 10
    assert {name for name in named if not kept.fullmatch(name) and not name.startswith("gpu_process_")} == set()


@pytest.mark.needs("promtool")
def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    """Both parts together, as one file; Debian's Prometheus is built without Kubernetes."""
    path = tmp_path / "prometheus.yml"
    whole = {key: part for block in deepcopy(BLOCKS) for key, part in block.items()}
    del whole["scrape_configs"][0]["kubernetes_sd_configs"]
    path.write_text(yaml.safe_dump(whole))

    assert len(BLOCKS) == 2
    assert "SUCCESS" in run("promtool", "check", "config", str(path))


def test_the_rules_in_the_text_exist() -> None:
    """Each recorded series in a query of the page."""
    rules = (RULES / "gpuledger-namespaces.yml").read_text()
    names = set(re.findall(r"(?:namespace|cluster):[a-z_]+:[a-z0-9_]+", TEXT))

    assert len(names) >= 3
    assert [name for name in sorted(names) if f"record: {name}\n" not in rules] == []
