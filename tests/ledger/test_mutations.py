"""The rules of rounding, order and exclusivity are held: break one, and a named test fails.

`tools/mutate.py` tries many more, on a copy of the tree; these few are the ones that must never be free to change.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from tests.ledger import test_interval as interval
from tests.ledger import test_ledger as ledger
from tests.ledger import test_memory as memory
from tests.ledger import test_retention as retention
from tests.shares import test_recordings as recordings

Test = Callable[[], None]

MUTANTS: list[tuple[str, str, str, Test]] = [
    # rounding
    ("split", "total * weight // whole for", "-(-total * weight // whole) for",
     interval.test_shares_add_up_and_are_within_one),
    ("split", "-(total * weights[key] % whole)", "total * weights[key] % whole",
     interval.test_the_largest_remainders_are_rounded_up),
    ("split", "-(total * weights[key] % whole)", "-(total * weights[key] // whole)",
     interval.test_a_small_share_with_the_largest_remainder_is_rounded_up),
    ("split", "(power_mw or 0) * elapsed_ns // NS_MW_PER_MJ", "-(-(power_mw or 0) * elapsed_ns // NS_MW_PER_MJ)",
     ledger.test_power_times_time_is_rounded_down),
    ("split", "hidden_mj = parked_mj // (len(parked) + 1)", "hidden_mj = -(-parked_mj // (len(parked) + 1))",
     memory.test_the_part_of_an_unlisted_process_is_rounded_down),
    # order
    ("split", "% whole), key)", "% whole),)", interval.test_ties_go_in_the_order_of_keys),
    ("rows", "return self.pid, self", "return -self.pid, self", ledger.test_the_example_of_the_page),
    ("rows", "return self.pid, self.device.uuid, -1 if", 'return 0, "", -1 if',
     partial(ledger.test_ties_go_to_the_lowest_pid, (2, 1))),
    ("retention", "(row.gone_ns, row.key())", "(-row.gone_ns, row.key())", retention.test_the_last_to_exit_are_kept),
    # parked power
    ("split", "parked = rows - servers - interval.unlisted", "parked = rows - interval.unlisted",
     recordings.test_clients_of_mps_share_what_their_server_did),
    ("split", "active_mj = interval.energy_mj - parked_mj", "active_mj = interval.energy_mj",
     ledger.test_parked_power_is_shared_by_all_and_the_rest_by_work),
    ("split", "result.parked_mj = equally(parked_mj, parked)",
     "result.parked_mj = equally(parked_mj, list(interval.busy_ns) or rows)",
     ledger.test_the_example_of_the_page),
    ("split", "parked = rows - servers - interval.unlisted", "parked = rows - servers",
     ledger.test_a_glimpsed_process_has_no_parked_share),
    # exclusivity
    ("split", "bool(at_start) and at_start == at_end", "bool(at_start)", ledger.test_a_process_at_one_end_only),
    ("split", "elif alone and not interval.hidden:", "elif alone:",
     memory.test_beside_unknown_memory_no_process_is_alone),
    ("interval", "self.rows |= work.unlisted", "self.rows |= set()", ledger.test_work_of_a_process_never_listed),
    ("split", "elif policy.strict:", "elif policy.parked_apart:",
     ledger.test_strict_books_only_what_is_measured),
]  # fmt: skip


@pytest.mark.parametrize(("module", "old", "new", "test"), MUTANTS, ids=range(len(MUTANTS)))
def test_a_broken_rule_is_noticed(module: str, old: str, new: str, test: Test, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test passes on the books as they are, and fails with the rule changed."""
    test()
    books = import_module(f"gpuledger.ledger.{module}")
    source = Path(books.__file__ or "").read_text()
    assert source.count(old) == 1, "the rule reads differently now; change the mutant with it"
    broken = types.ModuleType(books.__name__)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, books.__name__, broken)  # where its dataclasses look for it
        exec(compile(source.replace(old, new), module, "exec"), vars(broken))
    now, then = functions(books), functions(broken)
    changed = [name for name in now if now[name].__code__ != then[name].__code__]
    assert changed
    for name in changed:
        monkeypatch.setattr(now[name], "__code__", then[name].__code__)  # whoever has imported it has it changed

    with pytest.raises(AssertionError):
        test()


def functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """Those of a module and of its classes."""
    holders = [module, *(thing for thing in vars(module).values() if isinstance(thing, type))]
    return {
        thing.__qualname__: thing
        for holder in holders
        for thing in vars(holder).values()
        if isinstance(thing, types.FunctionType) and thing.__module__ == module.__name__
    }
