"""Whether the result of a query is in percent, by the names in it."""

from __future__ import annotations

import re

from gpuledger.catalog.dialects.dcgmnames import BY_OLD, PREFIX, RATIO, SAME, Unit

QUOTED = re.compile(r"""\{[^}]*\}|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")

MATCHED = re.compile(r"""__name__|\{(?:[^}]*,)?\s*["'`]""")
"""A selector without a plain name: `{__name__=~"DCGM_.*"}`, `{"DCGM_FI_DEV_GPU_UTIL"}`."""


def query_unit(query: str) -> Unit | None:
    """RATIO if the result of a query is in percent, SAME if it is from 0 to 1; None if its names do not tell.

    A query that calculates may have converted the unit itself. Metrics of others than dcgm-exporter are ratios.
    """
    text = QUOTED.sub("", query)
    units = {_unit(name) for name in re.findall(r"\b(?:DCGM_FI|dcgm)_\w+", text)}
    if MATCHED.search(query):
        return None
    if units and (len(units) > 1 or re.search("[*/]", text)):
        return None
    return units.pop() if units else SAME


def _unit(name: str) -> Unit | None:
    """The unit of a utilization; None for other fields."""
    if name.endswith("_RATIO") or (name.startswith(f"{PREFIX}PROF_") and name in BY_OLD):
        return SAME
    return RATIO if name in BY_OLD and BY_OLD[name].unit is RATIO else None
