"""`gpuledger explain`: how a process gets its owner, step by step, with the evidence."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gpuledger.cli import logs
from gpuledger.cli.providers import providers
from gpuledger.config import Config
from gpuledger.errors import ConfigError
from gpuledger.model import Facts, Owner, Reading
from gpuledger.owners import cgroup, devices
from gpuledger.owners.access import probe
from gpuledger.owners.procfs import Procfs
from gpuledger.owners.provider import Background
from gpuledger.owners.resolver import Resolver
from gpuledger.owners.slurm import SlurmResolver

LARGEST_CGROUP_BYTES = 1 << 20


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
    if not arguments.pid.isascii() or not arguments.pid.isdecimal():
        raise ConfigError(f"{arguments.pid!r} is not a pid; write a number, or --cgroup FILE")
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
        print(json.dumps(parsed))
    else:
        width = max(map(len, parsed))
        for name, value in parsed.items():
            print(f"{name:{width}}  {'-' if value in (None, [], '') else value}")
    return 0


def _process(pid: int, settings: Config, *, as_json: bool) -> int:
    root = Path(settings.path_procfs)
    facts = Procfs(root).facts([pid]).get(pid)
    if facts is None:
        print(f"gpuledger: there is no process {pid} in {root}", file=sys.stderr)
        return 1
    asked = providers(settings, os.environ)
    for provider in asked:
        provider.ask()
    resolver = Resolver(asked, jobs=SlurmResolver(root))
    ref, owner = resolver.explain(facts)
    readings = _on_gpus(pid, settings)
    if as_json:
        print(json.dumps({
            "pid": pid, "facts": asdict(facts), "cgroup": ref.to_dict(), "owner": asdict(owner),
            "gpus": [reading.device.uuid for reading in readings],
            "providers": [asdict(provider.health) for provider in asked],
        }))  # fmt: skip
        return 0
    _tell_process(facts, ref.to_dict(), owner, readings, root)
    _tell_asked(asked, owner)
    _tell_owner(owner)
    return 0


def _on_gpus(pid: int, settings: Config) -> list[Reading]:
    """Where the driver lists the process; nowhere when there is no driver."""
    from gpuledger.sources.nvml.source import NvmlSource

    source = NvmlSource(timeout_s=settings.driver_timeout)
    tick = source.read()
    source.close()
    return [r for r in tick.readings if any(resident.pid == pid for resident in r.residents or ())]


def _tell_process(facts: Facts, ref: dict[str, object], owner: Owner, readings: Sequence[Reading], root: Path) -> None:
    print(f"1. the process    {facts.pid} {facts.name!r}, uid {facts.uid} {owner.user}")
    if readings:
        on = ", ".join(f"GPU {r.device.index} ({r.device.uuid})" for r in readings)
    elif probe(root).host_pid_namespace:
        on = "the driver lists it on no GPU"
    else:
        on = "not known: in a PID namespace of its own an exporter is shown no processes; use --pid=host or hostPID"
    print(f"2. the driver     {on}")
    print(f"3. its cgroup     {facts.cgroup.strip().replace(chr(10), ' | ')}")
    told = {name: value for name, value in ref.items() if value not in (None, [], False)}
    print(f"4. which says     {', '.join(f'{name} {value}' for name, value in told.items()) or 'nothing'}")


def _tell_asked(asked: Sequence[Background], owner: Owner) -> None:
    print("5. who was asked" + ("" if asked else "  nobody: no runtime, kubelet or API server was found"))
    for provider in asked:
        names, health = provider.names, provider.health
        if not health.up:
            print(f"   {health.name}: {health.reason}")
            continue
        knows = [f"container {owner.container_id[:12]}"] if owner.container_id in names.containers else []
        knows += [f"pod {owner.pod_uid}"] if owner.pod_uid in names.pods else []
        counted = f"{len(names.containers)} containers, {len(names.pods)} pods, {len(names.allocations)} allocations"
        print(f"   {health.name}: {counted}; {'knows ' + ' and '.join(knows) if knows else 'does not know this one'}")


def _tell_owner(owner: Owner) -> None:
    print("6. so it is")
    for name, value in asdict(owner).items():
        if value and name not in ("reason", "labels"):
            print(f"   {name:14} {value}")
    if owner.reason:
        print(f"   missing        {owner.reason}")
