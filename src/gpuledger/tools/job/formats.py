"""A job as one screen, as one line for a comment of Slurm, and as JSON. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gpuledger.model.plaintext import plain
from gpuledger.tools.job.use import DeviceUse, JobUse
from gpuledger.tools.prices import Prices
from gpuledger.tools.text import BOLD, JOULES_PER_KWH, UNKNOWN, aligned, fixed, gib, moment, percent, span, styled

LONGEST_SHORT = 200
"""Characters of the short form."""
RIGHT = {"allocated", "busy", "idle", "unknown", "kWh", "memory GiB", "peak GiB", "idle tail"}


def screen(use: JobUse, prices: Prices, *, colour: bool) -> str:
    """Totals, one line per device, and notes."""
    title = plain(f"job {use.job}: {_devices(use)}{_period(use)}")
    bold = BOLD if colour else ""
    lines = [styled(title, bold), ""]
    facts = _facts(use, prices)
    wide, tall = max(len(name) for name, _, _ in facts), max(len(value) for _, value, _ in facts)
    lines += [plain(f"  {name:<{wide}}  {value:>{tall}}  {about}").rstrip() for name, value, about in facts]
    lines += ["", *aligned([_head(use), *map(_row, use.devices)], RIGHT, [bold])]
    return "\n".join(lines) + "\n" + "".join(f"\nnote: {note}\n" for note in use.notes)


def short(use: JobUse, prices: Prices) -> str:
    """One line of at most 200 ASCII characters, without the separator of sacct."""
    parts = [f"{len(use.devices)} GPU{_s(use)}", f"{fixed(use.gpu_hours, 2)} GPU-h"]
    parts += [f"busy {_percent(use.busy_share)}", f"{fixed(use.kwh, 3)} kWh"]
    if use.memory_bytes is not None:
        parts.append(f"{_memory_name(use)} {gib(use.memory_bytes)} GiB")
    parts.append(f"idle tail {span(use.tail_s)}")
    if (cost := use.cost(prices)) is not None:
        parts.append(f"cost {_money(cost, prices)}")
    if (busy_cost := use.cost_if_always_busy(prices)) is not None:
        parts.append(f"if always busy {_money(busy_cost, prices)}")
    text = plain(", ".join(parts)).replace("|", "/")
    return text.encode("ascii", "replace").decode()[:LONGEST_SHORT] + "\n"


def to_json(use: JobUse, prices: Prices) -> str:
    """One object; unknown values are null."""
    tree = {
        "job": use.job,
        "source": use.source,
        "prices": asdict(prices),
        "gpus": len(use.devices),
        "gpu_hours": use.gpu_hours,
        "busy_hours": use.hours("busy_s"),
        "idle_hours": use.hours("idle_s"),
        "unknown_hours": use.hours("unknown_s"),
        "busy_share": use.busy_share,
        "kwh": use.kwh,
        **_memory_fields(use.memory_bytes, use),
        "idle_tail_seconds": use.tail_s,
        "idle_tail_gpu_hours": use.hours("tail_s"),
        "cost": use.cost(prices),
        "cost_if_always_busy": use.cost_if_always_busy(prices),
        "devices": [_device(device, use) for device in use.devices],
        "notes": list(use.notes),
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _device(device: DeviceUse, use: JobUse) -> dict[str, Any]:
    return {
        "node": device.node,
        "gpu": device.gpu,
        "uuid": device.uuid,
        "start": device.start,
        "end": device.end,
        "allocated_seconds": device.allocated_s,
        "busy_seconds": device.busy_s,
        "idle_seconds": device.idle_s,
        "unknown_seconds": device.unknown_s,
        "joules": device.joules,
        **_memory_fields(device.memory_bytes, use),
        "idle_since": device.idle_since,
        "idle_tail_seconds": device.tail_s,
    }


def _memory_fields(amount: int | None, use: JobUse) -> dict[str, int | None]:
    return {"peak_memory_bytes": amount if use.has_peak else None, "memory_bytes": None if use.has_peak else amount}


def _facts(use: JobUse, prices: Prices) -> list[tuple[str, str, str]]:
    """Name, value and explanation of each total."""
    parts = [(name, use.hours(f"{name}_s")) for name in ("busy", "idle", "unknown")]
    hours = ", ".join(f"{name} {hours:.2f} h" for name, hours in parts if hours is not None)
    idle_h = use.hours("tail_s")
    tail = "" if idle_h is None else f"no GPU worked until the end; {idle_h:.2f} h counted for each GPU"
    facts = [
        ("GPU-hours", fixed(use.gpu_hours, 2), "allocated; each GPU or MIG instance counts in full"),
        ("busy share", _percent(use.busy_share), hours),
        ("energy", fixed(use.kwh, 3), "kWh"),
        (_memory_name(use), gib(use.memory_bytes), "GiB, largest of its GPUs"),
        ("idle tail", span(use.tail_s), tail),
    ]
    if prices.kwh is not None or prices.gpu_hour is not None:
        about = "what the same work costs if the GPUs are busy all the time"
        facts += [
            ("cost", fixed(use.cost(prices), 2), prices.currency),
            ("cost if always busy", fixed(use.cost_if_always_busy(prices), 2), f"{prices.currency} {about}".strip()),
        ]
    return facts


def _head(use: JobUse) -> list[str]:
    memory = "peak GiB" if use.has_peak else "memory GiB"
    return ["node", "GPU", "allocated", "busy", "idle", "unknown", "kWh", memory, "idle tail"]


def _row(device: DeviceUse) -> list[str]:
    seconds = (device.allocated_s, device.busy_s, device.idle_s, device.unknown_s)
    kwh = None if device.joules is None else device.joules / JOULES_PER_KWH
    memory = gib(device.memory_bytes)
    return [device.node or UNKNOWN, device.gpu, *map(span, seconds), fixed(kwh, 3), memory, span(device.tail_s)]


def _devices(use: JobUse) -> str:
    nodes = list(dict.fromkeys(device.node for device in use.devices if device.node))
    where = "" if not nodes else f" on {nodes[0]}" if len(nodes) == 1 else f" on {len(nodes)} nodes"
    return f"{len(use.devices)} GPU{_s(use)}{where}"


def _period(use: JobUse) -> str:
    starts = [device.start for device in use.devices if device.start is not None]
    end = moment(max(device.end for device in use.devices))
    return f", {moment(min(starts))} to {end}" if starts else f", up to {end}"


def _memory_name(use: JobUse) -> str:
    return "peak memory" if use.has_peak else "memory now" if use.source == "exporter" else "last memory"


def _money(value: float, prices: Prices) -> str:
    return f"{value:.2f} {prices.currency}".rstrip()


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{percent(share)}%"


def _s(use: JobUse) -> str:
    return "" if len(use.devices) == 1 else "s"
