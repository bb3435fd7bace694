"""On a machine with a GPU: record the demo, with CUDA processes in cgroups like those of Kubernetes and Docker.

    python tools/h200/make_demo.py FOLDER OUT.jsonl.gz

Records four minutes of one GPU in FOLDER, unless they are there already, and combines them to one minute of a node with
four GPUs. The measurements are real; the uuids, the names of users, pods and images, and the allocations of the kubelet
are invented. For some seconds the driver lists a process that later is not listed; its samples are left out. Recording
needs root and a writable cgroup v2 hierarchy. Removes the cgroups at the end.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import placed

from gpuledger import __version__
from gpuledger.model import OUTSIDE, Allocation, Device, Entitlement, Facts, Holder, Owner, Owners, Tick
from gpuledger.recording.recording import Encoder, header, load, read_packed
from gpuledger.recording.replay import shifted

SECONDS = 60
SETTLE_S = 3.0
"""Between the processes of one minute and the next."""
NESTED = """
mkdir -p /run/host-proc && mount --rbind /proc /run/host-proc &&
exec unshare --pid --fork --mount-proc --kill-child {record} --path.procfs=/run/host-proc --environment=none
"""
"""Records in a PID namespace of its own, where the driver lists no processes."""

FINETUNE, CHAT, EMBED = "4be1" * 16, "90ad" * 16, "d20c" * 16
TRITON = "c3f7" * 16
FINETUNE_POD, CHAT_POD, EMBED_POD = (
    "7f2c1a9e-3b64-4d0f-9a51-c8e20d7b4f13",
    "b91d5c02-8e7a-4f3c-b6d4-1a2f90c37e58",
    "05a4c6f1-92d7-4b3e-8c60-e17f5b9d2a84",
)


@dataclass(frozen=True, slots=True)
class Part:
    """A process: its cgroup, kind of work, first and last second, command name, and invented owner."""

    cgroup: str
    kind: str
    begin: float
    end: float
    name: str
    owner: Owner


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the node: the processes on it, and the pods it is allocated to."""

    parts: tuple[Part, ...] = ()
    allocated: tuple[tuple[str, str, str], ...] = ()
    part: float = 1.0
    """The part of the GPU that each of these pods asked for."""
    """Namespace, pod and container."""
    listed: bool = True
    """Whether the driver lists the processes."""


GPUS = (
    # A pod that is alone at first, then shares the GPU with another; a service that holds memory; a user's process
    # that exits.
    Gpu(
        (
            Part(
                placed.pod_cgroup(FINETUNE_POD, f"cri-containerd-{FINETUNE}"), "transformer", 0, 60, "python3",
                Owner(
                    container="trainer", namespace="ml", pod="llama-finetune-0", image="ml/trainer:2.4",
                    workload_kind="StatefulSet", workload_name="llama-finetune", user="carol",
                ),
            ),
            Part(
                placed.pod_cgroup(CHAT_POD, f"cri-containerd-{CHAT}"), "decode", 16, 60, "vllm",
                Owner(
                    container="vllm", namespace="serving", pod="chat-7c9d8f6b5d-x2x4z",
                    image="vllm/vllm-openai:v0.11.0", workload_kind="Deployment", workload_name="chat", user="vllm",
                ),
            ),
            Part("system.slice/ollama.service", "hold", 0, 60, "ollama", Owner(user="ollama")),
            Part("user.slice/user-1000.slice/session-4.scope", "copy", 26, 36, "jupyter", Owner(user="alice")),
        ),
        allocated=(("ml", "llama-finetune-0", "trainer"), ("serving", "chat-7c9d8f6b5d-x2x4z", "vllm")),
        part=0.5,
    ),
    # A pod that has the GPU to itself.
    Gpu(
        (
            Part(
                placed.pod_cgroup(EMBED_POD, f"cri-containerd-{EMBED}"), "embed", 0, 60, "python3",
                Owner(
                    container="embed", namespace="search", pod="embed-28841", image="search/embed:1.9",
                    workload_kind="Job", workload_name="embed", user="bob",
                ),
            ),
        ),
        allocated=(("search", "embed-28841", "embed"),),
    ),
    # Allocated, but not used.
    Gpu(allocated=(("research", "notebook-dana-0", "notebook"),)),
    # A Docker container that holds memory; the driver does not list its process.
    Gpu(
        (
            Part(
                f"system.slice/docker-{TRITON}.scope", "hold", 18, 42, "triton",
                Owner(container="triton", image="tritonserver:25.09-py3", user="triton"),
            ),
        ),
        listed=False,
    ),
)  # fmt: skip


def record(gpu: Gpu, path: Path) -> None:
    """Start the processes, record for a minute, stop the processes."""
    command = [sys.executable, "-m", "gpuledger", "record", str(path), f"--duration={SECONDS}s"]
    if not gpu.listed:
        command = ["unshare", "--mount", "sh", "-c", NESTED.format(record=" ".join(command))]
    running: list[subprocess.Popen[bytes]] = []
    try:
        # A process takes some seconds to load, so those that are there from the beginning start first.
        running += [_start(part) for part in gpu.parts if not part.begin]
        recorder = subprocess.Popen(command)
        started = time.monotonic()
        for part in sorted((part for part in gpu.parts if part.begin), key=lambda part: part.begin):
            time.sleep(max(0.0, part.begin - (time.monotonic() - started)))
            running.append(_start(part))
        if recorder.wait(timeout=SECONDS + 60):
            raise RuntimeError(f"{command} failed")
    finally:
        for process in running:
            process.kill()
            process.wait()
        for part in gpu.parts:
            placed.remove(part.cgroup)


def _start(part: Part) -> subprocess.Popen[bytes]:
    seconds = part.end - part.begin if part.end < SECONDS else 10 * SECONDS
    return placed.start(part.cgroup, part.kind, seconds, part.name)


def allocations(device: Device, gpu: Gpu, total_bytes: int) -> tuple[Allocation, ...]:
    """As the kubelet lists them, with what each pod asked for."""
    source = "device" if gpu.part == 1 else "kai"
    asked = Entitlement(source, gpu.part, int(gpu.part * total_bytes))
    return tuple(Allocation(device, _pod(*place), "nvidia.com/gpu", "", asked) for place in gpu.allocated)


def named(ticks: Sequence[Tick], gpu: Gpu, index: int) -> list[Tick]:
    """The ticks of one GPU with invented names, uuid and allocations."""
    owners = {part.name: part.owner for part in gpu.parts}
    uuid = f"GPU-{index}0b5c08c-0d3d-71c4-8837-9db8e2f5a776"
    result = []
    for tick in ticks if gpu.listed else map(_unlisted, ticks):
        device = replace(
            tick.readings[0].device, index=index, minor=index, uuid=uuid, serial=f"165000000000{index}",
            pci_bus_id=f"00000000:{0x18 + 0x20 * index:02X}:00.0",
        )  # fmt: skip
        by_pid = {pid: _named(owners[tick.facts[pid].name], owner) for pid, owner in tick.owners.by_pid.items()}
        facts = {pid: _of_user(facts, owners[facts.name]) for pid, facts in tick.facts.items()}
        total = tick.readings[0].memory_total_bytes
        granted = allocations(device, gpu, total or 0)
        holders = tuple(_holder(holder, device, gpu) for holder in tick.owners.holders if holder.evidence == "maps")
        result.append(
            replace(
                tick,
                readings=(replace(tick.readings[0], device=device),),
                facts=facts,
                owners=Owners(by_pid=by_pid, allocations=granted, holders=holders),
            )
        )
    return result


def _pod(namespace: str, pod: str, container: str) -> Owner:
    return Owner(namespace=namespace, pod=pod, container=container)


def _unlisted(tick: Tick) -> Tick:
    (reading,) = tick.readings
    samples = None if reading.samples is None else ()
    owners = Owners(holders=tick.owners.holders)
    return replace(tick, readings=(replace(reading, samples=samples),), facts={}, owners=owners)


def _named(invented: Owner, owner: Owner) -> Owner:
    return replace(
        invented,
        container_id=owner.container_id,
        pod_uid=owner.pod_uid,
        runtime=owner.runtime,
        unit=owner.unit,
        reason=OUTSIDE if owner.reason == OUTSIDE else "",
    )


def _of_user(facts: Facts, owner: Owner) -> Facts:
    users = sorted({part.owner.user for gpu in GPUS for part in gpu.parts})
    return replace(facts, user=owner.user, uid=1000 + users.index(owner.user))


def _holder(holder: Holder, device: Device, gpu: Gpu) -> Holder:
    (part,) = gpu.parts
    return replace(holder, device=device, owner=_named(part.owner, holder.owner))


def combined(gpus: Sequence[Sequence[Tick]]) -> list[Tick]:
    """The ticks of one node. All GPUs are moved to the time of the first one."""
    moved = [[shifted(tick, gpus[0][0].time_ns - gpu[0].time_ns) for tick in gpu] for gpu in gpus]
    return [
        replace(
            ticks[0],
            readings=tuple(reading for tick in ticks for reading in tick.readings),
            facts={pid: facts for tick in ticks for pid, facts in tick.facts.items()},
            owners=Owners(
                by_pid={pid: owner for tick in ticks for pid, owner in tick.owners.by_pid.items()},
                allocations=tuple(found for tick in ticks for found in tick.owners.allocations),
                holders=tuple(holder for tick in ticks for holder in tick.owners.holders),
            ),
        )
        for ticks in zip(*moved, strict=False)
    ]


def main() -> int:
    """Record every GPU and write the node."""
    folder, out = map(Path, sys.argv[1:])
    gpus = []
    for index, gpu in enumerate(GPUS):
        path = folder / f"gpu{index}.jsonl.gz"
        if not path.exists():
            print(f"GPU {index} ...", flush=True)
            record(gpu, path)
            time.sleep(SETTLE_S)
        gpus.append(named(list(load(read_packed(path), path)), gpu, index))
    encoder = Encoder()
    lines = [json.dumps(header(made_by=f"gpuledger {__version__}", interval_s=1.0))]
    lines += [encoder.line(tick) for tick in combined(gpus)]
    out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
