"""Write docs/metrics.md from the catalog."""

from __future__ import annotations

from pathlib import Path

from gpuledger.catalog import CATALOG, Of

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
KINDS = {
    Of.EXPORTER: ("The exporter itself", "No labels but those named."),
    Of.GPU: ("GPUs", "One series a GPU."),
    Of.MIG: (
        "MIG instances",
        "One series an instance, in families of their own, so that a sum over GPUs counts nothing twice. `gpu` is the "
        + "index of the GPU they are cut from.",
    ),
    Of.PROCESS: ("Processes", "One series a process and device; `uuid` is the MIG instance's where there is one."),
}


def page() -> str:
    """The whole page."""
    parts = [
        "# Metrics",
        "",
        "Generated from `src/gpuledger/catalog.py` by `make docs`; do not edit.",
        "",
        "A number the GPU or driver does not tell is absent, never 0. Nothing carries a timestamp: a series that is no",
        "longer there is stale at the next scrape. Readings are taken once per `--tick.interval` (1 s), however often",
        "Prometheus scrapes; a scrape only writes the last one out.",
    ]
    for of, (title, about) in KINDS.items():
        labels = ", ".join(f"`{label}`" for label in of.value)
        parts += ["", f"## {title}", "", about + (f" Labels: {labels}." if labels else ""), ""]
        parts += ["| metric | type | more labels | what it is | from |", "|---|---|---|---|---|"]
        for family in CATALOG:
            if family.of is of:
                more = ", ".join(f"`{label}`" for label in family.labels)
                parts.append(f"| `{family.name}` | {family.type.value} | {more} | {family.help} | {family.origin} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
