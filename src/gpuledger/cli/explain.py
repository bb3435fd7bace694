"""`gpuledger explain`: how the owner of a process is determined, step by step, with the evidence."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpuledger.cli import logs, terminal
from gpuledger.cli.providers import providers
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError, HttpError
from gpuledger.model import Device, Facts, Owner, Reading, Tick
from gpuledger.net.address import Address, parse_listen_address
from gpuledger.net.answers import load_json
from gpuledger.net.http import Client
from gpuledger.owners.kernel import cgroup, devices
from gpuledger.owners.kernel.access import probe
from gpuledger.owners.kernel.cgroupfs import CgroupTree
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.owners.kernel.slurm import SlurmNumbers
from gpuledger.owners.names import Names
from gpuledger.owners.podmatch import certainty
from gpuledger.owners.providers.provider import PolledProvider
from gpuledger.owners.resolver import Resolver
from gpuledger.recording.replay import Replay
from gpuledger.runtime.threads import Lookups
from gpuledger.shares.fingerprint import workload_of
from gpuledger.shares.units import POPULATIONS

MAX_CGROUP_BYTES = 1 << 20
EXPORTER_TIMEOUT_S = 1.0
LOOKUP_S = 5.0
"""How long to wait for the name of the user and for the memory map: each may block."""
MAX_RESPONSE_BYTES = 8 << 20
MAX_PID_DIGITS = 10
"""The kernel's pids have seven digits at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not settings."""
    parser.add_argument("pid", nargs="?", metavar="PID", help="the process to explain")
    parser.add_argument("--cgroup", metavar="FILE", help="show how a /proc/PID/cgroup file is parsed; - is stdin")
    parser.add_argument("--device-id", metavar="ID", help="show how a device id is parsed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 1 if the process does not exist."""
    subjects = [arguments.pid, arguments.cgroup, arguments.device_id]
    if sum(subject is not None for subject in subjects) != 1:
        raise ConfigError("explain takes exactly one of PID, --cgroup FILE or --device-id ID")
    nested = settings.owners_nested == "inner"
    if arguments.cgroup is not None:
        return _show(cgroup.parse(_read(arguments.cgroup), nested=nested).to_dict(), as_json=arguments.json)
    if arguments.device_id is not None:
        return _show(devices.parse(arguments.device_id).to_dict(), as_json=arguments.json)
    if not arguments.pid.isascii() or not arguments.pid.isdecimal() or len(arguments.pid) > MAX_PID_DIGITS:
        raise ConfigError(f"{arguments.pid[:60]!r} is not a pid", "pass a number, or --cgroup FILE")
    logs.set_up("error", settings.log_format)
    return _process(int(arguments.pid), settings, nested=nested, as_json=arguments.json)


def _read(name: str) -> str:
    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_CGROUP_BYTES).decode("utf-8", "replace")
        with Path(name).open("rb") as file:
            return file.read(MAX_CGROUP_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"--cgroup: cannot read {name}: {error.strerror}") from None


def _show(parsed: dict[str, object], *, as_json: bool) -> int:
    if as_json:
        terminal.write_line(json.dumps(parsed))
    else:
        width = max(map(len, parsed))
        for name, value in parsed.items():
            terminal.write_line(f"{name:{width}}  {'-' if value in (None, [], '') else value}")
    return 0


def _process(pid: int, settings: Config, *, nested: bool, as_json: bool) -> int:
    root = Path(settings.path_procfs)
    procfs = Procfs(root)
    recording = settings.source.removeprefix("replay:") if settings.source != "nvml" else ""
    recorded = _recorded(pid, Path(recording)) if recording else None
    facts = recorded.facts.get(pid) if recorded else procfs.look(pid, timeout_s=LOOKUP_S)
    if facts is None:
        print(f"gpuledger: there is no process {pid} in {recording or root}", file=sys.stderr)
        return 1
    name_providers = [] if recorded else providers(settings, os.environ)
    for provider in name_providers:
        provider.once()
    cgroups = CgroupTree(root)
    parse_cgroup = partial(cgroups.parse, nested=nested)
    resolver = Resolver(name_providers, parse_cgroup=parse_cgroup, slurm=SlurmNumbers(cgroups, root))
    tick = recorded or _read_driver(settings)
    if not recorded:
        tick = replace(tick, facts=procfs.facts(tick.resident_pids()) | {pid: facts})
    ref, tick = resolver.explain(tick, pid)
    owner = tick.owners.by_pid[pid]
    for provider in name_providers:
        provider.stop()
    readings = [r for r in tick.readings if any(resident.pid == pid for resident in r.residents or ())]
    maps: Lookups[int, tuple[int, ...] | None] = Lookups("maps")
    mapped = None if recorded else maps.get(pid, lambda: procfs.mapped_gpus(pid), timeout_s=LOOKUP_S)
    fingerprints = fetch_fingerprints(settings.web_listen_address)
    alone = _describe_fingerprint(facts, owner, [reading.device for reading in readings], fingerprints)
    if as_json:
        terminal.write_line(json.dumps({
            "pid": pid, "boot_id": procfs.boot_id(), "facts": asdict(facts), "mapped_gpus": mapped,
            "cgroup": ref.to_dict(), "owner": {**asdict(owner), "display_name": owner.display_name},
            "pod_certainty": certainty(tick, owner),
            "gpus": [reading.device.uuid for reading in readings],
            "alone": alone,
            "providers": [{**asdict(p.health), "reason": p.health.reason} for p in name_providers],
        }))  # fmt: skip
        return 0
    inside = f", pid {facts.inner_pid} inside its container" if facts.inner_pid is not None else ""
    for line in (
        f"1. the process    {facts.pid} {facts.name!r}, uid {facts.uid} {owner.user}{inside}",
        *_driver(readings, tick, mapped, root),
        *_cgroup(facts, ref.to_dict()),
        *_providers(name_providers, owner, is_recorded=recorded is not None),
        *_owner(owner, certainty(tick, owner)),
        "7. its fingerprint",
        *(f"   {line}" for line in alone),
    ):
        terminal.write_line(line)
    return 0


def _recorded(pid: int, path: Path) -> Tick:
    """The first tick of a recording that has the process, or its last tick."""
    replay = Replay(path, paced=False)
    tick = replay.read()
    while pid not in tick.facts and not replay.ended:
        tick = replay.read()
    return tick


def _read_driver(settings: Config) -> Tick:
    from gpuledger.driver.source import NvmlSource

    source = NvmlSource(timeout_s=settings.driver_timeout)
    try:
        return source.read()
    finally:
        source.close()


def _driver(readings: Sequence[Reading], tick: Tick, mapped: tuple[int, ...] | None, root: Path) -> Iterator[str]:
    if readings:
        on = ", ".join(f"GPU {r.device.index} ({r.device.uuid})" for r in readings)
    elif not tick.driver.up and tick.driver.reason:
        on = f"cannot be read: {tick.driver.reason}"
    elif probe(root).host_pid_namespace:
        on = "the driver lists it on no GPU"
    else:
        on = "unknown: the driver lists no processes in a separate PID namespace; use --pid=host or hostPID"
    yield f"2. the driver     {on}"
    if tick.source == "replay":
        evidence = "is not in a recording"
    elif mapped is None:
        evidence = "cannot be read (needs SYS_PTRACE)"
    else:
        evidence = ", ".join(f"names /dev/nvidia{minor}" for minor in mapped) or "names no GPU"
    yield f"   its memory map {evidence}"


def _cgroup(facts: Facts, ref: dict[str, object]) -> Iterator[str]:
    yield f"3. its cgroup     {facts.cgroup.strip().replace(chr(10), ' | ')}"
    parsed = {name: value for name, value in ref.items() if value not in (None, [], False)}
    parts = ", ".join(f"{name} {value}" for name, value in parsed.items())
    yield f"4. parsed as      {parts or 'no container, pod, unit or job'}"


def _providers(name_providers: Sequence[PolledProvider], owner: Owner, *, is_recorded: bool) -> Iterator[str]:
    none = "the names are in the recording" if is_recorded else "no runtime, kubelet or API server was found"
    yield "5. providers" + ("" if name_providers else f"      none: {none}")
    for provider in name_providers:
        names, health = provider.names, provider.health
        counted = f"{len(names.containers)} containers, {len(names.pods)} pods, {len(names.allocations)} allocations"
        yield f"   {health.name}: " + (f"{counted}; {_knowledge(names, owner)}" if health.up else health.reason)


def _knowledge(names: Names, owner: Owner) -> str:
    """What a provider knows of this owner."""
    knows = [f"container {owner.container_id[:12]}"] if owner.container_id in names.containers else []
    knows += [f"pod {owner.pod_uid}"] if owner.pod_uid in names.pods else []
    if owner.pod and any((row.namespace, row.pod) == (owner.namespace, owner.pod) for row in names.allocations):
        knows.append(f"the devices of pod {owner.namespace}/{owner.pod}")
    if knows:
        return f"knows {' and '.join(knows)}"
    return "knows pods by their devices, not by uid" if owner.pod_uid and names.allocations else "does not know it"


def _owner(owner: Owner, pod_certainty: str) -> Iterator[str]:
    yield f"6. its owner      {owner.display_name}"
    shown = {name: value for name, value in asdict(owner).items() if name not in ("reason", "labels", "pod_match")}
    shown["outer"] = owner.outer and owner.outer.display_name
    for name, value in {**shown, "pod name": pod_certainty, "missing": owner.reason}.items():
        if value:
            yield f"   {name:14} {value}"


def fetch_fingerprints(addresses: Sequence[str]) -> list[dict[str, Any]] | None:
    """The fingerprints of the first exporter that responds at one of these addresses; None if none does."""
    for address in addresses:
        try:
            status, body = _client(address).get("/api/v1/fingerprints", EXPORTER_TIMEOUT_S, MAX_RESPONSE_BYTES)
            if status == 200:
                return list(load_json(body)["fingerprints"])
        except (HttpError, ValueError, KeyError, TypeError):
            continue  # another program, or no program
    return None


def is_guarded(address: str) -> bool:
    """Whether a server there requires TLS or a password, as an exporter with a web configuration does."""
    try:
        status, body = _client(address).get("/api/v1/", EXPORTER_TIMEOUT_S, MAX_RESPONSE_BYTES)
    except HttpError:
        return False
    return status == 401 or b"to an HTTPS server" in body


def _client(address: str) -> Client:
    host, port = parse_listen_address(address)
    return Client(Address(host=host or "127.0.0.1", port=port))


def _describe_fingerprint(
    facts: Facts, owner: Owner, devices: Iterable[Device], fingerprints: list[dict[str, Any]] | None
) -> list[str]:
    """Lines about what was learned of the workload of a process."""
    if fingerprints is None:
        return ["unknown: no exporter responds at --web.listen-address, or it requires TLS or a password"]
    workloads = [
        dict(workload)
        for device in devices
        for signals in POPULATIONS
        if (workload := workload_of(device, facts, owner, signals)) is not None
    ]
    matching = [fingerprint for fingerprint in fingerprints if fingerprint.get("workload") in workloads]
    return [_fingerprint(fingerprint) for fingerprint in matching] or ["the exporter has learned nothing of it yet"]


def _fingerprint(fingerprint: dict[str, Any]) -> str:
    activity = ", ".join(f"{part} {share:.2f}" for part, share in fingerprint["activity"].items() if share)
    ratio, seconds = fingerprint["power_ratio"], fingerprint["seconds"]
    return f"{100 * ratio:.0f} % of the power limit above parked while working; {activity} (seen for {seconds:.0f} s)"
