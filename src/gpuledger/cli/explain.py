"""`gpuledger explain`: how a process gets its owner, step by step, with the evidence."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gpuledger.cli import learned, logs, out
from gpuledger.cli.providers import providers
from gpuledger.config import Config
from gpuledger.errors import ConfigError
from gpuledger.model import Facts, Owner, Reading
from gpuledger.owners import cgroup, devices
from gpuledger.owners.access import probe
from gpuledger.owners.procfs import Procfs
from gpuledger.owners.provider import PolledProvider
from gpuledger.owners.resolver import Resolver
from gpuledger.owners.slurm import SlurmResolver

LARGEST_CGROUP_BYTES = 1 << 20
LONGEST_PID = 10
"""Digits. The kernel's have seven."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One of three questions."""
    parser.add_argument("pid", nargs="?", metavar="PID", help="the process to explain")
    parser.add_argument("--cgroup", metavar="FILE", help="show how the text of a /proc/PID/cgroup is read; - is stdin")
    parser.add_argument("--device-id", metavar="ID", help="show how a device id is read")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 1 when there is no such process."""
    asked = [arguments.pid, arguments.cgroup, arguments.device_id]
    if sum(question is not None for question in asked) != 1:
        raise ConfigError("explain takes one of PID, --cgroup FILE or --device-id ID")
    if arguments.cgroup is not None:
        return _show(cgroup.parse(_read(arguments.cgroup)).to_dict(), as_json=arguments.json)
    if arguments.device_id is not None:
        return _show(devices.parse(arguments.device_id).to_dict(), as_json=arguments.json)
    if not arguments.pid.isascii() or not arguments.pid.isdecimal() or len(arguments.pid) > LONGEST_PID:
        raise ConfigError(f"{arguments.pid[:60]!r} is not a pid; write a number, or --cgroup FILE")
    logs.set_up("error", settings.log_format)
    return _process(int(arguments.pid), settings, as_json=arguments.json)


def _read(name: str) -> str:
    try:
        if name == "-":
            return sys.stdin.buffer.read(LARGEST_CGROUP_BYTES).decode("utf-8", "replace")
        with Path(name).open("rb") as file:
            return file.read(LARGEST_CGROUP_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"--cgroup: cannot read {name}: {error.strerror}") from None


def _show(parsed: dict[str, object], *, as_json: bool) -> int:
    if as_json:
        out.line(json.dumps(parsed))
    else:
        width = max(map(len, parsed))
        for name, value in parsed.items():
            out.line(f"{name:{width}}  {'-' if value in (None, [], '') else value}")
    return 0


def _process(pid: int, settings: Config, *, as_json: bool) -> int:
    root = Path(settings.path_procfs)
    procfs = Procfs(root)
    facts = procfs.facts([pid]).get(pid)
    if facts is None:
        print(f"gpuledger: there is no process {pid} in {root}", file=sys.stderr)
        return 1
    asked = providers(settings, os.environ)
    for provider in asked:
        provider.refresh()
    resolver = Resolver(asked, jobs=SlurmResolver(root))
    ref, owner = resolver.explain(facts)
    for provider in asked:
        provider.stop()
    readings, trouble = _on_gpus(pid, settings)
    known = learned.ask(settings.web_listen_address)
    if as_json:
        out.line(json.dumps({
            "pid": pid, "boot_id": procfs.boot_id(), "facts": asdict(facts), "mapped_gpus": procfs.mapped_gpus(pid),
            "cgroup": ref.to_dict(), "owner": asdict(owner),
            "gpus": [reading.device.uuid for reading in readings],
            "alone": learned.tell(facts, owner, [reading.device for reading in readings], known),
            "providers": [asdict(provider.health) for provider in asked],
        }))  # fmt: skip
        return 0
    _tell_process(facts, owner)
    _tell_driver(readings, trouble, procfs.mapped_gpus(pid), root)
    _tell_cgroup(facts, ref.to_dict())
    _tell_asked(asked, owner)
    _tell_owner(owner)
    out.line("7. when it is alone on a GPU")
    for line in learned.tell(facts, owner, [reading.device for reading in readings], known):
        out.line(f"   {line}")
    return 0


def _on_gpus(pid: int, settings: Config) -> tuple[list[Reading], str]:
    """Where the driver lists the process; nowhere when the driver cannot be read, and then why."""
    from gpuledger.sources.nvml.source import NvmlSource

    source = NvmlSource(timeout_s=settings.driver_timeout)
    tick = source.read()
    source.close()
    readings = [r for r in tick.readings if any(resident.pid == pid for resident in r.residents or ())]
    return readings, "" if tick.driver.up else tick.driver.reason


def _tell_process(facts: Facts, owner: Owner) -> None:
    inside = f", pid {facts.inner_pid} inside its container" if facts.inner_pid is not None else ""
    out.line(f"1. the process    {facts.pid} {facts.name!r}, uid {facts.uid} {owner.user}{inside}")


def _tell_driver(readings: Sequence[Reading], trouble: str, mapped: tuple[int, ...] | None, root: Path) -> None:
    if readings:
        on = ", ".join(f"GPU {r.device.index} ({r.device.uuid})" for r in readings)
    elif trouble:
        on = f"cannot be read: {trouble}"
    elif probe(root).host_pid_namespace:
        on = "the driver lists it on no GPU"
    else:
        on = "not known: in a PID namespace of its own an exporter is shown no processes; use --pid=host or hostPID"
    out.line(f"2. the driver     {on}")
    if mapped is None:
        evidence = "may not be read (needs SYS_PTRACE)"
    else:
        evidence = ", ".join(f"names /dev/nvidia{minor}" for minor in mapped) or "names no GPU"
    out.line(f"   its memory map {evidence}")


def _tell_cgroup(facts: Facts, ref: dict[str, object]) -> None:
    out.line(f"3. its cgroup     {facts.cgroup.strip().replace(chr(10), ' | ')}")
    told = {name: value for name, value in ref.items() if value not in (None, [], False)}
    out.line(f"4. which says     {', '.join(f'{name} {value}' for name, value in told.items()) or 'nothing'}")


def _tell_asked(asked: Sequence[PolledProvider], owner: Owner) -> None:
    out.line("5. who was asked" + ("" if asked else "  nobody: no runtime, kubelet or API server was found"))
    for provider in asked:
        names, health = provider.names, provider.health
        if not health.up:
            out.line(f"   {health.name}: {health.reason}")
            continue
        knows = [f"container {owner.container_id[:12]}"] if owner.container_id in names.containers else []
        knows += [f"pod {owner.pod_uid}"] if owner.pod_uid in names.pods else []
        counted = f"{len(names.containers)} containers, {len(names.pods)} pods, {len(names.allocations)} allocations"
        out.line(
            f"   {health.name}: {counted}; {'knows ' + ' and '.join(knows) if knows else 'does not know this one'}"
        )


def _tell_owner(owner: Owner) -> None:
    out.line("6. so it is")
    for name, value in asdict(owner).items():
        if value and name not in ("reason", "labels"):
            out.line(f"   {name:14} {value}")
    if owner.reason:
        out.line(f"   missing        {owner.reason}")
