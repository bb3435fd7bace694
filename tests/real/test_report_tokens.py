"""Tokens, carbon over time and FOCUS in reports, on samples that were worked out by hand, in a real Prometheus."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus
from tests.real.scriptednode import BEGAN, Node, column, report, run_report, scrapes

pytestmark = pytest.mark.needs("prometheus", "victoria-metrics")

BACKENDS = ("prometheus", "victoria-metrics")
KWH = 3.6e6
HOUR = 60
"""Minutes."""


def qwen_prompt(minute: float) -> float:
    """Prompt tokens of `code`: 100,000 a minute in even spans of five minutes, 200,000 in odd ones."""
    spans, rest = divmod(minute + 30, 5)
    odd = spans // 2 * 1_000_000 + (spans - spans // 2) * 500_000
    return odd + rest * (200_000 if spans % 2 else 100_000)


def qwen_output(minute: float) -> float:
    """Output tokens of `code`, so that 0.02 J a prompt token and 0.5 J an output token are 7,000 J a minute."""
    return (7000 * (minute + 30) - 0.02 * qwen_prompt(minute)) / 0.5


def history() -> History:
    """Three GPUs. `chat` is on a and b, `code` and `parked` share b with it, `late` comes to c after half an hour."""
    found = History()

    def serves(node: Node, pod: str, joules: float, parked: float) -> None:
        node.container(pod, lambda m: joules * (m + 30))
        labels = {**node.gpu, "namespace": pod, "pod": f"{pod}-0", "container": "main", "container_id": f"id-{pod}"}
        node.add("container_gpu_parked_energy_joules_total", lambda m: parked * (m + 30), labels)

    def tokens(name: str, pod: str, model: str, value: Callable[[float], float], **more: str) -> None:
        labels = {"namespace": pod, "pod": f"{pod}-0", "model_name": model, "instance": f"{pod}:8000", "job": "servers"}
        samples = [(BEGAN + 60 * m, value(m)) for m in scrapes((-30, 90))]
        found.add(name, {**labels, **more}, samples)

    a, b, c = (Node(found, name) for name in "abc")
    serves(a, "chat", 24_000, 6000)
    a.books(1e6, lambda _: 0, lambda m: 1e6 + 24_000 * (m + 30))
    serves(b, "chat", 12_000, 2000)
    serves(b, "code", 9000, 2000)
    serves(b, "parked", 2000, 2000)
    b.books(1e6, lambda m: 600 * (m + 30), lambda m: 1e6 + 23_600 * (m + 30))
    c.container("late", lambda m: 1000 * max(0, m - 30), within=(30, 90))
    c.books(1e6, lambda _: 0, lambda m: 1e6 + 1000 * max(0, m - 30))
    for job in ("servers", "again"):  # scraped by two jobs, and with two engines in one server
        for engine in ("0", "1"):
            tokens("vllm:prompt_tokens_total", "chat", "llama", lambda m: 30_000 * (m + 30), engine=engine, job=job)
            tokens("vllm:generation_tokens_total", "chat", "llama", lambda m: 1500 * (m + 30), engine=engine, job=job)
    # The server of `parked` restarted before the hour and has served nothing since.
    tokens("vllm:prompt_tokens_total", "parked", "llama", lambda m: 5e6 if m < -10 else 100.0)
    tokens("vllm:generation_tokens_total", "parked", "llama", lambda m: 5e6 if m < -10 else 100.0)
    tokens("sglang:prompt_tokens_total", "code", "qwen", qwen_prompt)
    tokens("sglang:generation_tokens_total", "code", "qwen", qwen_output)
    # A server on a node without an exporter: its energy is unknown, so its tokens do not count.
    tokens("vllm:generation_tokens_total", "elsewhere", "llama", lambda m: 1e6 * (m + 30))
    # The grid: 100 g/kWh in the first half hour, 300 in the second.
    grid = [(BEGAN + 60 * m, 100.0 if m <= 30 else 300.0) for m in scrapes((-30, 90))]
    found.add("grid_carbon_intensity", {"zone": "DE"}, grid)
    found.add("grid_carbon_intensity", {"zone": "FR"}, [(when, 50.0) for when, _ in grid])
    return found


@pytest.fixture(scope="module", params=BACKENDS)
def server(request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    """A server that remembers it."""
    with remembering(history(), request.param) as running:
        yield running


def test_tokens_and_energy(server: Prometheus) -> None:
    """One server on two GPUs has the energy of both, two servers on one GPU have their own, and parked is separate."""
    found = report(server, "--by=model")

    energy = column(found, "energy_kwh", KWH)
    assert energy["parked/llama"] == pytest.approx(HOUR * 2000, rel=1e-6)
    assert energy["chat/llama"] == pytest.approx(HOUR * 36_000, rel=1e-6)
    assert energy["code/qwen"] == pytest.approx(HOUR * 9000, rel=1e-6)
    assert energy["unknown"] == pytest.approx(30_000, rel=0.05)  # `late` serves no model
    assert column(found, "parked_kwh", KWH)["chat/llama"] == pytest.approx(HOUR * 8000, rel=1e-6)
    assert column(found, "prompt_tokens")["chat/llama"] == pytest.approx(HOUR * 60_000, rel=1e-6)
    assert column(found, "output_tokens")["chat/llama"] == pytest.approx(HOUR * 3000, rel=1e-6)
    assert column(found, "joules_per_output_token")["chat/llama"] == pytest.approx(28_000 / 3000, rel=1e-6)
    assert column(found, "joules_per_token")["chat/llama"] == pytest.approx(28_000 / 63_000, rel=1e-6)


def test_tokens_times_joules_and_the_rest_is_the_energy_of_the_gpus(server: Prometheus) -> None:
    """Tokens x joules per token + parked + idle + other workloads = the increase of the energy counters."""
    found = report(server, "--by=model")
    per_token, prompt, output = (column(found, key) for key in ("joules_per_token", "prompt_tokens", "output_tokens"))
    energy, parked = column(found, "energy_kwh", KWH), column(found, "parked_kwh", KWH)
    models = ("chat/llama", "code/qwen", "parked/llama")
    served = [(per_token[m] or 0) * ((prompt[m] or 0) + (output[m] or 0)) + (parked[m] or 0) for m in models]
    rest = [
        energy[kind] or 0 for kind in ("idle", "unknown", "unattributed", "outside of containers") if kind in energy
    ]

    assert sum(served) + sum(rest) == pytest.approx(energy["total"], rel=1e-9)
    assert energy["total"] == pytest.approx(HOUR * 47_600 + 30_000, rel=0.002)


def test_prefill_and_decode(server: Prometheus) -> None:
    """`code` changes its mix of tokens, so both phases are known; `chat` never does, so it has no estimate."""
    found = report(server, "--by=model", "--step=5m")
    prefill, decode = column(found, "prompt_j_per_token"), column(found, "output_j_per_token")

    assert prefill["code/qwen"] == pytest.approx(0.02, rel=0.05)
    assert decode["code/qwen"] == pytest.approx(0.5, rel=0.05)
    assert (prefill["chat/llama"], decode["chat/llama"]) == (None, None)
    error = column(found, "output_error_j_per_token")["code/qwen"]
    assert error is not None
    assert error < 0.1


def test_prices_per_million_tokens(server: Prometheus) -> None:
    """The cost of the energy above parked power, of everything with GPU-hours, and grams of CO2."""
    found = report(server, "--by=model", "--price=0.36", "--price-gpu-hour=2", "--carbon=200", "--pue=1.5")
    tokens, work = HOUR * 63_000 / 1e6, HOUR * 28_000 / KWH

    assert column(found, "energy_cost_per_million_tokens")["chat/llama"] == pytest.approx(work * 1.5 * 0.36 / tokens)
    assert column(found, "carbon_grams_per_million_tokens")["chat/llama"] == pytest.approx(work * 1.5 * 200 / tokens)
    cost = column(found, "cost")["chat/llama"]
    assert cost is not None
    assert column(found, "cost_per_million_tokens")["chat/llama"] == pytest.approx(cost / tokens)


def test_carbon_over_time(server: Prometheus) -> None:
    """Energy of the second half hour has the intensity of that half hour, and the rows add up to the total."""
    found = report(server, "--by=namespace", '--carbon-query=grid_carbon_intensity{zone="DE"}', "--pue=1.2")
    carbon = column(found, "carbon_kg", 1000 * KWH / 1.2)

    assert carbon["chat"] == pytest.approx(HOUR * 36_000 * 200, rel=0.03)
    assert carbon["late"] == pytest.approx(30_000 * 300, rel=0.06)
    assert carbon["total"] == pytest.approx(sum(value or 0 for name, value in carbon.items() if name != "total"))


def test_sci_with_its_components(server: Prometheus) -> None:
    """(E x I + M) / R: a million tokens by model, a GPU-hour otherwise; embodied emissions by GPU-hours."""
    flags = ("--carbon=200", "--embodied=150", "--embodied-lifetime=1000d", "--gpu-hours=share")
    found = report(server, "--by=namespace", *flags)
    hours, embodied = column(found, "apportioned_gpu_hours"), column(found, "embodied_carbon_kg")
    carbon, sci = column(found, "carbon_kg"), column(found, "sci_grams_per_gpu_hour")

    assert hours["total"] == pytest.approx(3, rel=0.02)
    assert embodied["total"] == pytest.approx((hours["total"] or 0) * 150 / 24_000)
    assert embodied["total"] == pytest.approx(sum(value or 0 for name, value in embodied.items() if name != "total"))
    grams = 1000 * ((carbon["chat"] or 0) + (embodied["chat"] or 0))
    assert sci["chat"] == pytest.approx(grams / (hours["chat"] or 1))
    assert " = " in found["sci"]
    assert "M 18" in found["sci"]

    by_model = report(server, "--by=model", *flags)
    tokens = 60 * 63_000 / 1e6
    grams = 1000 * (
        (column(by_model, "carbon_kg")["chat/llama"] or 0) + (column(by_model, "embodied_carbon_kg")["chat/llama"] or 0)
    )
    assert column(by_model, "sci_grams_per_million_tokens")["chat/llama"] == pytest.approx(grams / tokens)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("grid_carbon_intensity", "returns 2 series; select one of them"),
        ("nothing_like_it", "has no values"),
        ("sum(grid_carbon_intensity) * 1000", "is no carbon intensity of a grid"),
        ("sum(", "--carbon-query"),
    ],
)
def test_bad_carbon_queries(server: Prometheus, query: str, message: str) -> None:
    """A query that is not the intensity of one grid is refused, with what is wrong."""
    done = run_report(server, "--since=3h", f"--carbon-query={query}")

    assert done.returncode == 1
    assert message in done.stderr or query == "sum("


def focus(server: Prometheus, *flags: str) -> list[dict[str, str]]:
    """The rows of FOCUS of the hour, or of a longer span."""
    begin, end = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN + 60 * minute)) for minute in (-30, 90))
    done = run_report(server, "--format=focus", f"--from={begin}", f"--to={end}", "--currency=EUR", *flags)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.mark.parametrize("by", ["pod", "namespace", "model"])
def test_focus_rows_add_up_and_are_the_report(server: Prometheus, by: str) -> None:
    """Each GPU and hour is one origin row, its allocated rows add up to it, and the whole is the report's total."""
    found = focus(server, f"--by={by}", "--price=0.36", "--price-gpu-hour=2")
    origins = {(row["ResourceId"], row["ChargePeriodStart"]): row for row in found if not row["AllocatedMethodId"]}
    allocated: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in found:
        if row["AllocatedMethodId"]:
            allocated.setdefault((row["ResourceId"], row["ChargePeriodStart"]), []).append(row)

    assert len(origins) == len([row for row in found if not row["AllocatedMethodId"]])
    assert set(origins) == set(allocated)
    for key, origin in origins.items():
        for name in ("BilledCost", "ConsumedQuantity", "PricingQuantity"):
            assert sum(Decimal(row[name]) for row in allocated[key]) == Decimal(origin[name])
    begin, end = min(row["ChargePeriodStart"] for row in found), max(row["ChargePeriodEnd"] for row in found)
    done = run_report(server, "--format=json", f"--from={begin}", f"--to={end}", f"--by={by}", "--step=1h",
                      "--price=0.36", "--price-gpu-hour=2", "--gpu-hours=share")  # fmt: skip
    total = json.loads(done.stdout)["total"]
    assert float(sum(Decimal(row["BilledCost"]) for row in origins.values())) == pytest.approx(total["cost"], rel=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--price=1",), "needs a currency"),
        (("--currency=EUR",), "needs a price"),
        (("--currency=EUR", "--price=1", "--by=node"), "has no owners"),
        (("--currency=EUR", "--price=1", "--top=3"), "has no effect"),
        (("--currency=EUR", "--price-model=Nothing=1"), "no price for H200"),
    ],
)
def test_focus_needs_what_a_bill_needs(server: Prometheus, flags: tuple[str, ...], message: str) -> None:
    """Currency, price and owners; exit code 2 and what to do."""
    done = run_report(server, "--format=focus", "--since=3h", *flags)

    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
