"""When MIG instances are sampled."""

from __future__ import annotations

from gpuledger.driver.rounds import LARGEST_SHARE, LATE_ROUNDS, Plan, Rounds

COST_S = 0.06


class Node:
    """A GPU with instances that is read once a second."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.now_s = 0.0
        self.power_mw: int | None = 300_000
        self.processes = {f"MIG-{number}": frozenset({number}) for number in range(7)}

    def tick(self) -> Plan:
        """A reading."""
        self.now_s += 1
        return self.rounds.plan(self.processes, self.power_mw, COST_S, self.now_s)

    def count(self, ticks: int) -> int:
        """The rounds in so many ticks."""
        plans = [self.tick() for _ in range(ticks)]
        return sum(plan.at_once + plan.late for plan in plans)


def test_a_burst_at_first_and_then_now_and_then() -> None:
    """What was never measured is outdated; in a burst every reading but the first has new activity."""
    node = Node()
    first = [node.tick() for _ in range(LATE_ROUNDS + 1)]
    assert first[0] == Plan(at_once=True, late=True, outdated=True)
    assert first[1:] == [Plan(at_once=False, late=n < LATE_ROUNDS, outdated=False) for n in range(1, LATE_ROUNDS + 1)]

    rounds = node.count(1000)

    assert 0 < rounds * COST_S <= 1000 * LARGEST_SHARE


def test_a_change_is_measured_at_once() -> None:
    """Of power, of processes, or whether there is power; little changes are none."""
    node = Node()
    node.count(300)
    for change in ({"power_mw": 400_000}, {"power_mw": None}, {"processes": {"MIG-0": frozenset({8})}}):
        while not (node.tick().late):
            pass
        node.count(LATE_ROUNDS + 10)
        vars(node).update(change)
        assert node.tick() == Plan(at_once=True, late=True, outdated=True)
    node.count(LATE_ROUNDS)
    node.power_mw = None
    assert not node.tick().outdated


def test_power_that_always_changes_costs_no_more() -> None:
    """In the long run; a few bursts may come early."""
    node = Node()
    rounds = 0
    for second in range(2000):
        node.power_mw = 300_000 + 200_000 * (second % 2)
        rounds += node.count(1)

    assert rounds * COST_S <= 2000 * LARGEST_SHARE + 3 * (1 + LATE_ROUNDS) * COST_S
