"""On a machine with a GPU: record the demo, with CUDA processes in cgroups like those of Kubernetes and Docker.

    python tools/h200/make_demo.py OUT.jsonl.gz

Needs root and a writable cgroup v2 hierarchy. Removes the cgroups at the end.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import placed

from gpuledger import __version__
from gpuledger.model import Owner, Owners
from gpuledger.owners.resolver import Resolver
from gpuledger.sources.recording import Encoder, header, load, read_packed

# For each process: cgroup, kind of work, start and end in seconds, and command name.
TRAINING, SERVING = "7f2c1a9e-3b64-4d0f-9a51-c8e20d7b4f13", "b91d5c02-8e7a-4f3c-b6d4-1a2f90c37e58"
CAST = (
    (placed.pod_cgroup(TRAINING, f"cri-containerd-{'4be1' * 16}"), "train", 0, 80, "python3"),
    (placed.pod_cgroup(SERVING, f"cri-containerd-{'90ad' * 16}"), "decode", 8, 60, "vllm"),
    ("system.slice/docker-" + "c3f7" * 16 + ".scope", "serve", 0, 80, "triton"),
    ("system.slice/ollama.service", "hold", 0, 80, "ollama"),
    ("user.slice/user-1000.slice/session-4.scope", "copy", 30, 45, "jupyter"),
)  # fmt: skip


# Names that a kubelet and Docker would have reported.
NAMED = {
    "python3": Owner(
        container="trainer", namespace="ml", pod="llama-finetune-0", image="ml/trainer:2.4",
        workload_kind="StatefulSet", workload_name="llama-finetune",
    ),
    "vllm": Owner(
        container="vllm", namespace="serving", pod="chat-7c9d8f6b5d-x2x4z", image="vllm/vllm-openai:v0.11.0",
        workload_kind="Deployment", workload_name="chat",
    ),
    "triton": Owner(container="triton", image="tritonserver:25.09-py3"),
}  # fmt: skip


def name_them(path: Path) -> None:
    """Add the names to the recording, and remove the serial number of the board."""
    resolver, encoder = Resolver(), Encoder()
    lines = [json.dumps(header(made_by=f"gpuledger {__version__}", interval_s=1.0))]
    for tick in load(read_packed(path), path):
        resolved = resolver.resolve(tick)
        owners = {pid: _named(tick.facts[pid].name, owner) for pid, owner in resolved.owners.by_pid.items()}
        readings = tuple(replace(r, device=replace(r.device, serial="1650000000000")) for r in tick.readings)
        lines.append(encoder.line(replace(tick, readings=readings, owners=Owners(by_pid=owners))))
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))


def _named(process: str, owner: Owner) -> Owner:
    known = NAMED.get(process)
    if known is None:
        return owner
    return replace(
        known,
        container_id=owner.container_id,
        pod_uid=owner.pod_uid,
        runtime=owner.runtime,
        user=owner.user,
        unit=owner.unit,
    )


def main() -> int:
    """Start the processes, record for 70 s, stop the processes."""
    running: list[subprocess.Popen[bytes]] = []
    recorder = None
    started = time.monotonic()
    try:
        for where, kind, begin, end, name in sorted(CAST, key=lambda row: row[2]):
            if recorder is None and begin > 0:
                recorder = subprocess.Popen(
                    [sys.executable, "-m", "gpuledger", "record", sys.argv[1], "--duration=70s"]
                )
                started = time.monotonic()
            time.sleep(max(0.0, begin - (time.monotonic() - started)))
            running.append(placed.start(where, kind, end - begin, name))
        assert recorder is not None  # noqa: S101 - some processes start later
        code = recorder.wait(timeout=120)
        name_them(Path(sys.argv[1]))
        return code
    finally:
        for process in running:
            process.kill()
            process.wait()
        for where, *_ in CAST:
            placed.remove(where)


if __name__ == "__main__":
    sys.exit(main())
