"""Real servers' metrics over HTTP, joined with the energy of a made-up node."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gpuledger.integrations.tokens.collector import LIMITS, MOST_SERVERS, TokenCollector
from gpuledger.integrations.tokens.join import OwnerEnergy
from gpuledger.model import Activity, Owner, Tick, TokenServer
from tests.integrations.dcgmexporter.server import Say, hang, page
from tests.integrations.dcgmexporter.server import upstream as running
from tests.integrations.tokens.servednode import OWNERS, Node, S, tokens
from tests.waiting import wait_until


def by_name(tick: Tick) -> dict[str, TokenServer]:
    """The servers of a tick."""
    return {server.name: server for server in tick.servers or ()}


def test_every_joule_is_in_one_server() -> None:
    """Tokens x joules per token + parked + idle + unattributed is the energy of the GPUs, to the millijoule.

    One server is on two GPUs, two servers work on one GPU, and a third one is parked there.
    """
    node = Node()
    with (
        running(page(tokens(0, 0))) as chat,
        running(page(tokens(0, 0))) as code,
        running(page(tokens(5, 5))) as parked,
    ):
        urls = {"ml/chat-0": chat.url, "ml/code-0": code.url, "ml/parked-0": parked.url}
        settings = [f"{owner}={url}" for owner, url in urls.items()]
        collector = TokenCollector(settings, 5, now_ns=lambda: node.now_ns, in_threads=False)
        first = None
        for second in range(30):
            chat.say, code.say = page(tokens(100 * second, 10 * second)), page(tokens(0, 40 * second))
            collector.poll()
            tick = collector.attach(node.tick(400_000, 600_000))
            first = first or tick
        collector.close()

    assert first is not None
    servers = by_name(tick)
    rose = sum((b.energy_mj or 0) - (a.energy_mj or 0) for a, b in
               zip(first.accounts.values(), tick.accounts.values(), strict=True))  # fmt: skip
    rest = sum(b.idle_mj + sum(dict(b.unattributed_mj).values()) - a.idle_mj - sum(dict(a.unattributed_mj).values())
               for a, b in zip(first.accounts.values(), tick.accounts.values(), strict=True))  # fmt: skip
    booked = sum(server.work_mj + server.parked_mj for server in servers.values())
    assert booked + rest == rose
    assert booked > 25_000_000

    assert servers["ml/parked-0"].work_mj == 0
    assert servers["ml/parked-0"].parked_mj > 0
    chats, codes = servers["ml/chat-0"], servers["ml/code-0"]
    assert chats.owner == Owner(namespace="ml", pod="chat-0", pod_uid="u1", container="main", container_id="c1")
    assert (chats.counts[0].prompt, chats.counts[0].output) == (2900, 290)
    assert chats.rates is not None
    assert codes.rates is not None
    assert chats.rates.prompt_tokens / chats.rates.seconds == pytest.approx(100)
    assert codes.rates.joules_per_output_token == pytest.approx(codes.rates.work_j / codes.rates.output_tokens)
    per_token, rates = chats.rates.joules_per_token, chats.rates
    assert per_token is not None
    assert per_token * (rates.prompt_tokens + rates.output_tokens) == pytest.approx(rates.work_j)


def test_a_restarted_server_continues() -> None:
    """After its counters start at 0 again, tokens are neither negative nor counted twice."""
    node = Node()
    with running(page(tokens(0, 1000))) as chat:
        collector = TokenCollector([f"ml/chat-0={chat.url}"], 5, now_ns=lambda: node.now_ns, in_threads=False)
        for output in (1000, 1010, 1020, 5, 15):
            chat.say = page(tokens(0, output))
            collector.poll()
            tick = collector.attach(node.tick(400_000, 600_000))

    (server,) = tick.servers or ()
    assert server.rates is not None
    assert server.rates.output_tokens == 25  # 10 + 5 + 10, since the first tick


def test_the_first_total_of_an_owner_is_no_work() -> None:
    """A container that gets its name late, as after a restart with a journal, brings the energy of the time before."""
    node = Node(owners={**OWNERS, 1: Owner(container_id="c1")})
    with running(page(tokens(0, 0))) as chat:
        collector = TokenCollector([f"ml/chat-0={chat.url}"], 5, now_ns=lambda: node.now_ns, in_threads=False)
        for _ in range(20):
            collector.poll()
            collector.attach(node.tick(400_000, 0))
        node.owners[1] = OWNERS[1]
        booked = []
        for second in range(5):
            chat.say = page(tokens(0, 100 * second))
            collector.poll()
            (server,) = collector.attach(node.tick(400_000, 0)).servers or ()
            booked.append(server.work_mj + server.parked_mj)

    assert booked[0] == 0
    assert booked[-1] == 4 * 400_000
    assert server.rates is not None
    assert server.rates.work_j + server.rates.parked_j <= 4 * 400


def test_tokens_of_an_owner_without_gpu_are_not_shown() -> None:
    """A server gets no series of another owner, and none at all while its owner is on no GPU."""
    node = Node()
    with running(page(tokens(1, 1))) as server:
        collector = TokenCollector([f"ml/gone-0={server.url}"], 5, now_ns=lambda: node.now_ns, in_threads=False)
        collector.poll()
        (found,) = collector.attach(node.tick(1, 1)).servers or ()

    assert found.up
    assert (found.owner, found.work_mj, found.parked_mj) == (None, 0, 0)


def test_tokens_never_change_the_bill() -> None:
    """Whatever a tenant's server claims, energy, processes and containers of the tick are the same."""
    honest, claimed = Node(), Node()
    with running(page(tokens(9e14, 9e14, "x" * 9000))) as server:
        collector = TokenCollector([f"ml/chat-0={server.url}"], 5, now_ns=lambda: claimed.now_ns, in_threads=False)
        for _ in range(5):
            collector.poll()
            with_tokens = collector.attach(claimed.tick(400_000, 600_000))
            without = honest.tick(400_000, 600_000)

    assert replace(with_tokens, servers=None) == without


@pytest.mark.parametrize(
    ("say", "kind"),
    [
        (page(b"<html>\n"), "format"),
        (page(b"other 1\n"), "empty"),
        (page(b"", "404 Not Found"), "http"),
        (page(b"a 1\n" * (LIMITS.series + 1)), "size"),
        (page(b"# " + b"x" * (LIMITS.size + 1)), "size"),
        (hang, "timeout"),
    ],
    ids=["html", "no tokens", "404", "series", "bytes", "hangs"],
)
def test_bad_servers(say: Say, kind: str) -> None:
    """A server that answers badly is down, with the reason and a fix; nothing else changes."""
    node = Node()
    with running(say) as server:
        collector = TokenCollector(
            [f"ml/chat-0={server.url}"], 5, timeout_s=0.3, now_ns=lambda: node.now_ns, in_threads=False
        )
        assert not collector.answered()
        collector.poll()
        (found,) = collector.attach(node.tick(1, 1)).servers or ()

    assert collector.answered()
    assert not found.up
    assert found.problem is not None
    assert (found.problem.kind, bool(found.problem.fix)) == (kind, True)
    assert found.failures == ((kind, 1),)
    assert (found.counts, found.rates) == ((), None)


def test_an_old_answer_is_not_shown() -> None:
    """A minute after the last answer, a server that is down has no tokens and no rates."""
    node = Node()
    with running(page(tokens(1, 1))) as server:
        collector = TokenCollector([f"ml/chat-0={server.url}"], 5, now_ns=lambda: node.now_ns, in_threads=False)
        for _ in range(4):
            collector.poll()
            tick = collector.attach(node.tick(1, 1))
    assert by_name(tick)["ml/chat-0"].rates is not None
    for _ in range(62):
        tick = collector.attach(node.tick(1, 1))

    assert (by_name(tick)["ml/chat-0"].counts, by_name(tick)["ml/chat-0"].rates) == ((), None)


def test_annotated_pods_come_and_go() -> None:
    """An annotated pod on a GPU is read, up to a limit, and forgotten when it leaves. One in a recording is not."""
    node = Node()
    with running(page(tokens(7, 8))) as server:
        node.owners[1] = replace(OWNERS[1], metrics_url=server.url)
        collector = TokenCollector(["annotations"], 5, now_ns=lambda: node.now_ns, in_threads=False)
        collector.attach(node.tick(1, 1))
        collector.poll()
        tick = collector.attach(node.tick(1, 1))
        many = [f"pid:{n}={server.url}" for n in range(MOST_SERVERS)]
        full = TokenCollector(["annotations", *many], 5, in_threads=False).attach(tick)
        node.owners[1] = OWNERS[1]
        later = collector.attach(node.tick(1, 1))
        recorded = collector.attach(replace(tick, source="replay"))

    assert by_name(tick)["ml/chat-0"].counts[0].output == 8
    assert (later.servers, recorded.servers) == ((), ())
    assert len(full.servers or ()) == MOST_SERVERS


def test_phases_appear_once_the_load_determines_them() -> None:
    """Prompt tokens take 0.05 J and output tokens 2 J in this world, and the estimate finds both."""
    node = Node()
    prompt = output = 0
    with running(page(tokens(0, 0))) as server:
        collector = TokenCollector([f"pid:1={server.url}"], 1, now_ns=lambda: node.now_ns, in_threads=False)
        for second in range(60):
            more = (4000, 50) if second // 5 % 2 else (400, 150)
            prompt, output = prompt + more[0], output + more[1]
            server.say = page(tokens(prompt, output))
            tick = node.tick(120_000 + 50 * more[0] + 2000 * more[1], 0)
            tick = replace(tick, accounts={k: replace(a, parked_power_mw=120_000) for k, a in tick.accounts.items()})
            collector.poll()
            tick = collector.attach(tick)

    (server_,) = tick.servers or ()
    assert server_.phases is not None
    assert server_.phases.prompt_j == pytest.approx(0.05, rel=0.1)
    assert server_.phases.output_j == pytest.approx(2.0, rel=0.1)


def test_threads_read_and_end() -> None:
    """In the exporter each server has a thread, which ends with the collector."""
    with running(page(tokens(3, 4))) as server:
        collector = TokenCollector([f"ml/chat-0={server.url}"], 5)
        wait_until(collector.answered)
        (found,) = collector.attach(Node().tick(1, 1)).servers or ()
        collector.close()
        wait_until(lambda: all(thread.name != "tokens of ml/chat-0" for thread in threading.enumerate()))

    assert found.up


def test_windows_have_the_activity_of_the_server() -> None:
    """Of the GPU on which it is alone: 40 % of the tensor cores and 60 % of the bandwidth, in seconds."""
    node = Node(activity=Activity(graphics_pct=100.0, sm_pct=90.0, tensor_pct=40.0, dram_pct=60.0))
    energy = OwnerEnergy()
    for _ in range(5):
        tick = node.tick(400_000, 600_000)
        uses = [use for use in tick.processes if use.resident.pid == 1 and use.device.index == 0]
        energy.add(tick.time_ns / S, tick.time_ns, uses)

    begin_s, end_s = energy.line.span or (0, 0)
    *_, tensor_s, dram_s, unknown_s = energy.line.at(end_s)
    *_, tensor0_s, dram0_s, unknown0_s = energy.line.at(begin_s + 1)
    assert (tensor_s - tensor0_s, dram_s - dram0_s) == pytest.approx((3 * 0.4, 3 * 0.6))
    assert unknown_s == unknown0_s


def test_servers_are_read_after_a_tick() -> None:
    """Once per interval, right after the tick that is due, so that tokens and energy are of the same moment."""
    node = Node()
    with running(page(tokens(1, 1))) as server:
        collector = TokenCollector([f"ml/chat-0={server.url}"], 3, now_ns=lambda: node.now_ns)
        wait_until(collector.answered)
        for _ in range(3):
            assert len(server.asked) == 1
            collector.attach(node.tick(1, 1))
        wait_until(lambda: len(server.asked) == 2)
        collector.close()
