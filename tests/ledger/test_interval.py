"""When an interval of the ledger is closed, and which intervals teach the power of a GPU at rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.split import apportion, equally
from tests.builders import S, World, account, cut, energy, run


def wait(**changes: Any) -> dict[str, Any]:
    """A second in which two processes did nothing, or not quite."""
    return {"pids": [1, 2], "mj": 120_000, "utilization_pct": 0} | changes


@pytest.mark.parametrize(
    "disturbed",
    [
        {"utilization_pct": 1},
        {"work": {1: 1}},
        {"work": {9: 1}},  # of a process never listed
        {"samples": False},
        {"pids": [1, 2, 3]},
        {"pids": [1]},
        {"residents": None},
    ],
    ids=str,
)
def test_only_an_interval_in_which_nothing_happened_teaches_parked_power(disturbed: dict[str, Any]) -> None:
    """No process came, left or worked, and the driver would have reported it."""
    assert account(run({"pids": [1, 2]}, wait())).parked_power_mw == 120_000
    assert account(run({"pids": [1, 2]}, wait(**disturbed))).parked_power_mw is None


def test_a_short_process_disturbs_a_quiet_interval() -> None:
    """Even if the processes at both ends are the same."""
    last = run({"pids": [1, 2]}, {"pids": [1, 2, 3], "after_s": 0.4, "mj": 1}, wait(after_s=0.6))

    assert account(last).energy_mj == 1_120_001
    assert account(last).parked_power_mw is None


def test_a_failure_disturbs() -> None:
    """Though the energy is that of the process that was alone before and after."""
    last = run({"pids": [1]}, {"residents": None, "mj": 100}, wait(pids=[1]))

    assert energy(last) == {1: {"exclusive": 120_100}}
    assert account(last).parked_power_mw is None


@pytest.mark.parametrize(("after_s", "power_mw"), [(0.049, None), (0.05, 100_000)])
def test_a_short_interval_says_nothing_about_power(after_s: float, power_mw: int | None) -> None:
    """The counter moves every 0.1 s."""
    assert account(run({"pids": [1]}, {"pids": [1], "mj": 5000, "after_s": after_s})).parked_power_mw == power_mw


@pytest.mark.parametrize(("first_w", "last_w", "learned_w"), [(90, 100, 90), (100, 80, 80), (300, 300, 120)])
def test_of_three_powers_the_lowest_is_learned(first_w: int, last_w: int, learned_w: int) -> None:
    """At both ends, and the mean between."""
    last = run({"pids": [1, 2], "power_mw": first_w * 1000}, wait(power_mw=last_w * 1000))

    assert account(last).parked_power_mw == learned_w * 1000


@pytest.mark.parametrize(("activity", "power_mw"), [((0.0, 0.0), 120_000), ((0.0, 0.5), None), ((None, None), None)])
def test_parked_power_of_a_partitioned_gpu(activity: tuple[float | None, ...], power_mw: int | None) -> None:
    """Its instances report whether a process worked; without that, nothing is learned."""
    books, world = Books(), World()
    books.book(cut(world, (1, 2), (3,)))
    world.now_ns += S
    world.energy_mj += 120_000

    assert account(books.book(cut(world, (1, 2), (3,), activity=activity))).parked_power_mw == power_mw


def test_idle_power_needs_no_samples() -> None:
    """Without a process there is nothing to sample."""
    last = account(run({}, {"mj": 80_000, "samples": False}))

    assert (last.idle_power_mw, last.parked_power_mw) == (80_000, None)


@pytest.mark.parametrize(("after_s", "energy_mj"), [(0.899, 1_000_000), (0.9, 1_000_100)])
@pytest.mark.parametrize("step", [{"pids": [1, 2]}, {"pids": [1], "work": {1: 5, 9: 5}}], ids=["two", "unseen"])
def test_a_shared_interval_is_closed_after_some_time(step: dict[str, Any], after_s: float, energy_mj: int) -> None:
    """Samples come late; until then its energy is not the device's either."""
    last = account(run({"pids": step["pids"]}, {**step, "mj": 100, "after_s": after_s}))

    assert last.energy_mj == energy_mj


@pytest.mark.parametrize(
    ("after_s", "expected"), [(1, {1: {}, 2: {"exclusive": 10}}), (0.999, {1: {"parked": 5}, 2: {"parked": 5}})]
)
def test_a_counter_that_stands_still(after_s: float, expected: dict[int, dict[str, int]]) -> None:
    """For a second the counter may be late, and processes of that time get a part; after that no energy was used."""
    last = run({"pids": [1]}, {"pids": [2], "after_s": after_s}, {"pids": [2], "mj": 10})

    assert energy(last) == expected


@pytest.mark.parametrize(
    "says",
    [
        [{"work": {1: 10, 9: 10}}, {"work": {9: 20}}, {"work": {1: 20}}],
        [{"work": {1: 10, 9: 10}}, {"work": {1: 10, 9: 10}}, {"samples": False}],
    ],
    ids=["all", "not the last"],
)
def test_what_several_ticks_say_is_added_up(says: list[dict[str, Any]]) -> None:
    """Work of a process and of one never listed, tick by tick, in one shared interval."""
    steps = [{"pids": [1], "after_s": 0.3, "mj": 100, **said} for said in says]

    last = run({"pids": [1], "work": {1: 0}}, *steps)

    assert energy(last) == {1: {"sm_time": 150}, 9: {"sm_time": 150}}


def test_two_readings_at_one_time() -> None:
    """No time is no gap: the energy waits for the next one."""
    last = run({"pids": [1]}, {"pids": [1], "mj": 10, "after_s": 0}, {"pids": [1], "mj": 20})

    assert energy(last) == {1: {"exclusive": 30}}


def test_a_process_retired_before_the_interval_is_closed() -> None:
    """Its pid was reused: its part of the interval is added to the retired account."""
    books, world = Books(), World()
    books.book(world.tick(1))
    books.book(world.tick(1, 2, mj=50, work={1: 1}))
    books.book(world.tick(1, 2, mj=0))
    world.starts[1] = 2
    assert account(books.book(world.tick(1, 2, mj=100, after_s=0.5))).retired_mj == 50

    last = books.book(world.tick(1, 2, mj=100, after_s=0.5))

    assert energy(last) == {1: {"parked": 67}, 2: {"parked": 66}}
    assert account(last).retired_mj == 50 + 67


WEIGHTS = st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), min_size=1).filter(lambda w: any(w.values()))


@given(st.integers(0, 10**15), WEIGHTS)
def test_shares_add_up_and_are_within_one(total: int, weights: dict[int, int]) -> None:
    """The sum is exact, a weight of 0 gets 0, and each share is within 1 of the exact one."""
    shares = apportion(total, weights)

    whole = sum(weights.values())
    assert sum(shares.values()) == total
    assert all(abs(shares[key] * whole - total * weight) < whole for key, weight in weights.items())
    assert all(shares[key] == 0 for key, weight in weights.items() if weight == 0)


@given(st.integers(0, 10**4), WEIGHTS)
def test_the_largest_remainders_are_rounded_up(total: int, weights: dict[int, int]) -> None:
    """No key is rounded up before a key with a larger remainder, or with the same remainder and a smaller key."""
    shares = apportion(total, weights)

    whole = sum(weights.values())
    up = {key: shares[key] - total * weight // whole for key, weight in weights.items()}
    order = sorted(weights, key=lambda key: (-(total * weights[key] % whole), key))
    assert [up[key] for key in order] == sorted(up.values(), reverse=True)


@given(st.integers(0, 10**6), WEIGHTS, st.integers(1, 1000), st.randoms())
def test_order_and_scale_do_not_matter(total: int, weights: dict[int, int], times: int, random: object) -> None:
    """Only proportions count, and equal remainders are settled by key."""
    keys = list(weights)
    random.shuffle(keys)  # type: ignore[attr-defined]  # a random.Random

    assert apportion(total, {key: weights[key] * times for key in keys}) == apportion(total, weights)


def test_ties_go_in_the_order_of_keys() -> None:
    """The first keys get what is left over."""
    assert equally(5, [3, 1, 2]) == {1: 2, 2: 2, 3: 1}
    assert apportion(2, {"b": 1, "a": 1, "c": 1}) == {"a": 1, "b": 1, "c": 0}
    assert apportion(200_000, {"a": 60, "b": 40}) == {"a": 120_000, "b": 80_000}


def test_a_small_share_with_the_largest_remainder_is_rounded_up() -> None:
    """Not the largest share: of 5.01 and 0.99 the second has the millijoule that is left."""
    assert apportion(6, {"a": 501, "b": 99}) == {"a": 5, "b": 1}


def test_no_weights_is_an_error() -> None:
    """It would lose the total; and there is no negative energy."""
    for weights in ({}, {"a": 0}):
        with pytest.raises(ValueError, match="cannot split 7"):
            apportion(7, weights)
    with pytest.raises(ValueError, match="cannot split -1"):
        apportion(-1, {"a": 1})
