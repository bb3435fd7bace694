"""Snapshots built from ticks."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.model import (
    AllocationUse,
    Device,
    Driver,
    Owner,
    PhaseEnergy,
    Tick,
    TokenCounts,
    TokenRates,
    TokenServer,
)
from gpuledger.model.problem import Problem
from gpuledger.web.snapshot.build import free_command, snapshot
from gpuledger.web.snapshot.codec import decode, encode
from tests.builders import World
from tests.web.snapshot.pictures import demo


def booked(*ticks: Tick) -> tuple[Tick, Tick]:
    """The last two of some ticks, through the books."""
    books = Books()
    done = [books.book(tick) for tick in ticks]
    return done[-2], done[-1]


def test_the_demo_balances() -> None:
    """Every joule of a GPU has an owner or a reason, and the snapshot survives JSON."""
    shown = demo(30)

    for gpu in shown.gpus:
        energy = gpu.energy
        assert energy is not None
        used = sum(sum(process.joules.values()) for process in shown.processes if process.uuid == gpu.uuid)
        accounts = energy.idle_joules + energy.retired_joules + sum(energy.unattributed_joules.values())
        assert (used > 0) == (gpu.gpu in (0, 1))  # GPU 3 has only a process that the driver does not list
        assert used + accounts == pytest.approx(energy.joules, abs=1e-6)
        memory = gpu.memory
        parts = (memory.known_bytes, memory.overhead_bytes, memory.unknown_bytes)
        assert memory.used_bytes == sum(part or 0 for part in parts)
    assert decode(json.loads(encode(shown))) == shown
    assert (shown.version, shown.node) == (1, "n1")


def test_a_device_that_is_allocated_but_not_used() -> None:
    """It has the name of its owner."""
    gpus = demo(30).gpus

    assert [gpu.in_use for gpu in gpus] == [True, True, False, True]
    assert gpus[2].allocated_to == ("research/notebook-dana-0/notebook",)
    assert len(gpus[0].allocated_to) == 2


def test_watts_are_energy_over_time() -> None:
    """200 J in 2 s, all of one process: 100 W."""
    world = World()
    before, tick = booked(
        world.tick(7), world.tick(7, mj=1000, work={7: 50}), world.tick(7, mj=200_000, after_s=2, work={7: 100})
    )

    (process,) = snapshot(tick, before).processes
    assert process.watts == 100.0
    assert process.sm_ratio == 1.0


def test_no_watts_without_an_earlier_tick() -> None:
    """Neither at the first tick, nor for a newcomer, nor over no time: null, not 0."""
    world = World()
    before, tick = booked(world.tick(7), world.tick(7, 8, mj=5000, work={8: 50}))

    assert [process.watts for process in snapshot(tick).processes] == [None, None]
    assert [process.watts for process in snapshot(tick, tick).processes] == [None, None]
    assert snapshot(tick, before).processes[1].watts is None


def test_a_reused_pid_is_a_new_row() -> None:
    """Its energy is not compared with that of the earlier process with this pid."""
    world = World(starts={7: 1})
    first = world.tick(7)
    second = world.tick(7, mj=9000, work={7: 50})
    world.starts[7] = 2
    before, tick = booked(first, second, world.tick(7, mj=1000, work={7: 50}))

    assert [p.watts for p in snapshot(tick, before).processes if p.active] == [None]


def test_unknown_is_null() -> None:
    """A driver that says little gives few numbers, and no zeros."""
    world = World()
    before, tick = booked(world.tick(7, energy_mj=None, samples=False), world.tick(7, energy_mj=None, samples=False))

    shown = snapshot(tick, before)
    (gpu,), (process,) = shown.gpus, shown.processes
    assert (gpu.utilization_ratio, gpu.power_watts, gpu.memory.used_bytes) == (None, None, None)
    assert gpu.energy is not None
    assert gpu.energy.joules is None
    assert (process.memory_bytes, process.sm_ratio) == (None, None)


def test_memory_that_is_shared_with_the_system() -> None:
    """Used memory is that of GPU processes and of the rest of the system; nothing is unknown or inferred."""
    world = World()
    tick = world.tick(7, memory_used_bytes=None, memory_total_bytes=None,
                      system_memory_total_bytes=900, system_memory_used_bytes=500)  # fmt: skip

    (gpu,) = snapshot(Books().book(tick), None).gpus

    memory = gpu.memory
    assert (memory.total_bytes, memory.used_bytes, memory.free_bytes) == (900, 500, 400)
    assert memory.system_bytes == 500 - (memory.known_bytes or 0)
    assert (memory.unknown_bytes, memory.overhead_bytes) == (None, None)


def test_owners_and_problems_have_display_names() -> None:
    """A service is an owner; memory of an unlisted process is inferred for a container, and is a warning."""
    shown = demo(30)

    owners = {process.owner for process in shown.processes}
    assert {"ml/llama-finetune-0/trainer", "ollama.service"} <= owners
    assert {container.owner for container in shown.containers} - owners == {"triton"}
    assert [(problem.about, problem.kind) for problem in shown.problems] == [("GPU 3", "unknown_memory")]
    (problem,) = snapshot(Tick(1, Driver(up=False, problem=Problem("gone")))).problems
    assert (problem.level, problem.about, problem.what) == ("problem", "driver", "cannot be read: gone")


def test_power_that_a_gpu_does_not_tell_is_not_known() -> None:
    """Null, not 0: where it has neither a counter nor power, and while it does not answer."""
    world = World()
    before, tick = booked(world.tick(7, energy_mj=None), world.tick(7, energy_mj=None, work={7: 50}))
    (process,) = snapshot(tick, before).processes
    assert (process.watts, process.joules) == (None, {})

    world = World()
    world.containers[7] = "c" * 64
    before, tick = booked(world.tick(7), world.tick(7, mj=5000, work={7: 50}), world.tick(up=False, residents=None))
    shown = snapshot(tick, before)
    assert [use.watts for use in (*shown.processes, *shown.containers)] == [None, None]
    assert shown.process_count is None


@pytest.mark.parametrize("books", [Books(), Books(1), Books(shown="none")], ids=["all", "one", "none"])
def test_sums_include_processes_without_a_row(books: Books) -> None:
    """How many processes there are and what they used in all do not depend on how many are shown."""
    world = World()
    for _ in range(4):
        tick = books.book(world.tick(7, 8, mj=9000, work={7: 50, 8: 20}))

    shown = snapshot(tick)
    energy = shown.gpus[0].energy
    assert energy is not None
    assert shown.process_count == 2
    assert energy.processes_joules > 0
    accounts = energy.idle_joules + energy.retired_joules + sum(energy.unattributed_joules.values())
    assert energy.processes_joules + accounts == pytest.approx(energy.joules, abs=1e-6)


def test_servers_of_language_models() -> None:
    """Tokens per second and joules per token of each; a server without an owner on a GPU shows no tokens."""
    served = TokenServer(
        "ml/chat-0",
        up=True,
        owner=Owner(namespace="ml", pod="chat-0"),
        counts=(TokenCounts("vllm", "llama", 1000, 100), TokenCounts("vllm", "lora", 10, 1)),
        rates=TokenRates(10.0, 200.0, 50.0, 500.0, 1000.0),
        phases=PhaseEnergy(0.5, 0.1, 8.0, 1.0, 9),
    )
    problem = Problem("cannot reach it", "start it", "unreachable")
    lost = TokenServer("pid:7", up=False, problem=problem, counts=(TokenCounts("tgi", "", 5, 5),))
    found = snapshot(Tick(10**18, Driver(up=True), servers=(served, lost)))

    first, second = decode(json.loads(encode(found))).servers
    assert (first.owner, first.models, first.prompt_tokens, first.output_tokens) == (
        "ml/chat-0", ("llama", "lora"), 1010, 101,
    )  # fmt: skip
    assert (first.output_tokens_per_second, first.prompt_tokens_per_second) == (5.0, 20.0)
    assert (first.work_watts, first.parked_watts) == (50.0, 100.0)
    assert (first.joules_per_output_token, first.joules_per_token) == (10.0, 2.0)
    assert (first.prefill_joules, first.decode_error_joules) == (0.5, 1.0)
    assert (second.owner, second.models, second.output_tokens, second.up) == ("", ("tgi",), None, False)
    assert [row.about for row in found.problems if row.kind == "unreachable"] == ["tokens of pid:7"]


@pytest.mark.parametrize(
    ("seconds", "state", "is_advised"),
    [(1, "no_process", False), (3599, "parked", False), (3600, "no_process", True), (9999, "unknown", False)],
)
def test_no_command_before_an_hour(seconds: int, state: str, *, is_advised: bool) -> None:
    """Commands that free a device are for allocations that are not used for an hour, now included."""
    since_ns = 10**18 - seconds * 10**9
    pod = Owner(namespace="ml", pod="p")
    use = AllocationUse(Device(0, "GPU-a"), pod, state, 1, 0, None, since_ns, 0, (), 0, 0, ())
    tick = Tick(10**18, Driver(up=True), allocations=(use,))
    (row,) = snapshot(tick).allocations

    assert row.free_command == ("kubectl delete pod -n ml p" if is_advised else "")


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (("research", "notebook-dana-0", "notebook", ""), "kubectl delete pod -n research notebook-dana-0"),
        (("", "static", "main", ""), "kubectl delete pod static"),
        (("", "", "triton", ""), "docker stop triton"),
        (("", "", "", "211"), "scancel 211"),
        (("", "", "", ""), ""),
        (("", "", "x; rm -rf /", ""), "docker stop 'x; rm -rf /'"),
        (("", "", "--all", ""), ""),
        (("", "", "a\nb", ""), ""),
    ],
)
def test_commands_that_free_a_device(names: tuple[str, str, str, str], command: str) -> None:
    """A name that could be an option or has control characters gives no command."""
    assert free_command(*names) == command


@given(st.text(), st.text(min_size=1), st.text())
def test_a_name_is_always_one_word(namespace: str, pod: str, container: str) -> None:
    """Tenants choose names: whatever they are, a shell sees each as one word that is no option."""
    command = free_command(namespace, pod, container, "")
    if command:
        words = shlex.split(command)
        assert words == ["kubectl", "delete", "pod", *(["-n", namespace] if namespace else []), pod]
        assert not pod.startswith("-")
