"""Servers of language models next to a real exporter, in a real Prometheus with the rules and the dashboard."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.cli.running import Running, gpuledger
from tests.fakedriver import Gpu, Process
from tests.integrations.dcgmexporter.server import upstream
from tests.mixin.dashboards import QUERIES, RULED, PanelQuery, fill_variables
from tests.real.nodes import GIB, EmptyNode, host, uuid
from tests.real.prometheus import Prometheus, prometheus
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("prometheus")

RULES = Path(__file__).parents[2] / "mixin" / "rules" / "gpuledger-tokens.yml"
ACCOUNTS = re.compile(r"^gpu_(energy|idle_energy|unattributed_energy|server_(?:work|parked)_energy)_joules_total"
                      r"(?:\{(.*)\})? (\S+)$", re.MULTILINE)  # fmt: skip


@dataclass
class Server:
    """A vLLM that has served so many tokens by now; `claims` are labels that it has no right to."""

    prompts_per_s: tuple[float, float]
    joules_per_s: float
    """Power above parked power, of which each prompt token takes 0.1 J and the output tokens the rest, 2 J each."""
    claims: str = ""
    began: float = 0.0

    def __call__(self, out: BinaryIO, _: object) -> None:
        """Answer a scrape."""
        turns, rest = divmod(time.time() - self.began, 8.0)  # four seconds of each mix of tokens
        first, second = self.prompts_per_s
        prompt = turns * 4 * (first + second) + first * min(rest, 4.0) + second * max(0.0, rest - 4.0)
        output = (self.joules_per_s * (time.time() - self.began) - 0.1 * prompt) / 2
        labels = f'{{model_name="llama",engine="0"{self.claims}}}'
        body = f"vllm:prompt_tokens_total{labels} {prompt}\nvllm:generation_tokens_total{labels} {output}\n".encode()
        out.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@dataclass
class World:
    """An exporter whose pods serve tokens, and a Prometheus that scrapes all of them."""

    exporter: Running
    server: Prometheus


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`chat` is on two GPUs, `code` and `parked` share the second one with it, and the third one is idle."""
    node = EmptyNode(tmp_path_factory.mktemp("node"), *(Gpu(index=n, watts=w) for n, w in enumerate((400, 600, 90))))
    chat = node.pod("chat", 0, uuid(0), memory=8 * GIB, sm=50)
    cgroup = (node.proc / str(chat.pid) / "cgroup").read_text().removeprefix("0::").strip()
    node.scenario.processes.append(Process(gpu=1, pid=7777, memory=8 * GIB, sm=40))
    node.running(7777, "python3", cgroup)
    node.pod("code", 1, uuid(1), memory=8 * GIB, sm=30)
    node.pod("parked", 1, uuid(1), memory=8 * GIB)
    began = time.time()
    servers = {
        "chat": Server((400, 1200), 500, began=began),
        "code": Server((100, 100), 100, ',namespace="ml",pod="parked"', began),
        "parked": Server((0, 0), 0, began=began),
    }
    with ExitStack() as stack:
        urls = {name: stack.enter_context(upstream(server)).url for name, server in servers.items()}
        stack.enter_context(node.named())
        flags = [f"--tokens.scrape=ml/{name}={url}" for name, url in urls.items()]
        exporter = stack.enter_context(node.exporter(*flags, "--tokens.interval=1s"))
        exporter.metrics('^gpu_server_token_energy_joules.*pod="code"', within_s=20)
        targets = {
            name: (url.removeprefix("http://").removesuffix("/metrics"), "/metrics") for name, url in urls.items()
        }
        running = stack.enter_context(
            prometheus(
                {"gpuledger": (host(exporter), "/metrics"), **targets},
                "500ms",
                extras={name: {"honor_labels": False} for name in servers},
                labels={name: {"namespace": "ml", "pod": name} for name in servers},
                rules=RULES,
            )
        )
        running.wait_until_scraped(20)
        exporter.metrics('^gpu_server_phase_token_energy_joules.*pod="chat"', within_s=60)
        wait_until(lambda: bool(running.query('gpu_server_phase_token_energy_error_joules{pod="chat"}')), 10)
        yield World(exporter, running)


def accounts(exporter: Running) -> dict[str, int]:
    """Millijoules by account of one scrape, over all GPUs and servers."""
    found: dict[str, int] = {}
    for name, _, value in ACCOUNTS.findall(exporter.get("/metrics")):
        found[name] = found.get(name, 0) + round(float(value) * 1000)
    return found


def test_every_joule_is_served_parked_idle_or_unattributed(world: World) -> None:
    """Work and parked energy of the servers + idle + unattributed = the energy of the GPUs, to the millijoule."""
    before = accounts(world.exporter)
    time.sleep(3)
    after = accounts(world.exporter)
    rose = {name: after[name] - before[name] for name in after}

    assert rose.pop("energy") == sum(rose.values())
    assert rose["server_work_energy"] > 1_000_000


def test_two_gpus_of_one_server_and_two_servers_of_one_gpu(world: World) -> None:
    """`chat` has the energy of both of its GPUs; `code` its share of one; `parked` has parked energy only.

    The window of the rules is longer than the test, so that all rates are too low by the same factor.
    """
    at = time.time() - 5  # rules evaluated by then have their values, also on a busy machine

    def by_pod(rule: str) -> dict[str, float]:
        return {labels["pod"]: value for labels, value in world.server.query(f"pod:gpu_server_{rule}:rate5m", at)}

    work, parked = by_pod("work_watts"), by_pod("parked_watts")
    used = "sum(rate(gpu_energy_joules_total[5m])) - sum(rate(gpu_idle_energy_joules_total[5m]))"
    device = world.server.query(used, at)

    assert work["parked"] < 0.01 * device[0][1]
    assert work["chat"] > work["code"] > 0.05 * device[0][1]
    assert sum(work.values()) + sum(parked.values()) == pytest.approx(device[0][1], rel=0.1)
    per_token, outputs = by_pod("joules_per_output_token"), by_pod("output_tokens")
    assert per_token["chat"] * outputs["chat"] == pytest.approx(work["chat"])


def test_a_server_cannot_claim_to_be_another_pod(world: World) -> None:
    """The labels that `code` writes itself are renamed by Prometheus, so its tokens stay its own."""
    tokens = {labels["pod"]: value for labels, value in world.server.query("pod:gpu_server_output_tokens:rate5m")}

    assert world.server.query('vllm:generation_tokens_total{exported_pod="parked"}')
    assert set(tokens) == {"chat", "code", "parked"}
    assert tokens["parked"] == pytest.approx(0, abs=0.01)
    assert tokens["code"] / tokens["chat"] == pytest.approx(45 / 210, rel=0.1)


@pytest.mark.parametrize("asked", [query for query in QUERIES if query.dashboard == RULED], ids=str)
def test_every_panel_of_the_dashboard_has_data(world: World, asked: PanelQuery) -> None:
    """With all variables at All, and with the namespace and the model chosen."""
    for chosen in ({}, {"namespace": "ml", "model": "llama"}):
        text = fill_variables(asked.promql, RULED, chosen, interval="5s", span="1m")
        assert world.server.query(text), text


def test_top_shows_the_servers(world: World) -> None:
    """Tokens per second and joules per token, live, from the exporter alone."""
    shown = gpuledger("top", "--once", f"--connect={world.exporter.url}").stdout

    assert re.search(
        r"ml/chat/main +llama +\d+ \+ \d+ tokens/s +[\d.]+ J/output token +[\d.]+ J/token +parked \d+ W", shown
    )
