"""What OpenMetrics 1.0 writes differently from the text format: the lines above a family, and the end."""

from __future__ import annotations

from gpuledger.catalog import Family, Type

END = b"# EOF\n"
SUFFIX = {Type.COUNTER: "_total", Type.INFO: "_info", Type.GAUGE: ""}


def can_write(family: Family) -> bool:
    """Whether the name ends as its type demands; those of other exporters often do not."""
    return family.name.endswith(SUFFIX[family.type])


def header(family: Family, help_text: str) -> str:
    """TYPE, UNIT and HELP; the family's name goes without the suffix its samples carry."""
    name = family.name.removesuffix(SUFFIX[family.type])
    text = help_text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
    return f"# TYPE {name} {family.type.value}\n{unit}# HELP {name} {text}\n"
