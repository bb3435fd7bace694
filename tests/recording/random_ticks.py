"""Any ticks that a driver might give, for property tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gpuledger.model import Allocation, Device, Driver, Facts, Holder, Owners, Reading, Tick

# Few texts and devices, so that they come again; cgroup-like ones, odd ones and any.
TEXTS = st.sampled_from(["", "a", "NVIDIA H200", "0::/a\n", "größe", "\u2028", '"\\', "\0"]) | st.text(max_size=5)
WHOLE = st.integers(0, 9) | st.integers(0, (1 << 64) - 1)


def _of(hint: Any) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple and inner[-1] is ...:
        return st.lists(_of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_of, inner))
    if inner:
        return st.none() | _of(inner[0])
    if hasattr(hint, "__dataclass_fields__"):
        return st.deferred(lambda: records(hint))  # an owner may have an outer owner
    return {
        bool: st.booleans(),
        int: WHOLE,
        float: st.floats(0, 1e9),
        str: TEXTS,
    }[hint]


def records(kind: Any, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Records of a kind of the model: every field any value of its type, most of them left at their defaults."""
    hints = get_type_hints(kind)
    required = {f.name: _of(hints[f.name]) for f in fields(kind) if f.default is f.default_factory}
    optional = {name: _of(hint) for name, hint in hints.items() if name not in required and name not in given}
    some = st.sets(st.sampled_from(sorted(optional)), max_size=6).flatmap(
        lambda names: st.fixed_dictionaries({name: optional[name] for name in names} | required | given)
    )
    return some.map(lambda values: kind(**values))


DEVICES = st.builds(Device, st.integers(0, 2), st.sampled_from(["GPU-a", "GPU-b"])) | records(Device)
FACTS = st.builds(Facts, st.integers(1, 5), st.integers(0, 2), st.integers(0, 2)) | records(Facts)


@st.composite
def recordings(draw: st.DrawFn) -> list[Tick]:
    """Ticks one after the other."""
    ticks = []
    time_ns = draw(st.integers(0, 1 << 60))
    for _ in range(draw(st.integers(1, 4))):
        facts = draw(st.lists(FACTS, max_size=3))
        ticks.append(
            Tick(
                time_ns=time_ns,
                driver=draw(records(Driver)),
                readings=tuple(draw(st.lists(records(Reading, device=DEVICES), max_size=3))),
                facts={one.pid: one for one in facts},
                owners=Owners(
                    allocations=tuple(draw(st.lists(records(Allocation, device=DEVICES), max_size=2))),
                    holders=tuple(draw(st.lists(records(Holder, device=DEVICES), max_size=2))),
                    job_uids=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
                    running=draw(st.frozensets(TEXTS, max_size=2)),
                ),
            )
        )
        time_ns += draw(st.integers(1, 10**10))
    return ticks
