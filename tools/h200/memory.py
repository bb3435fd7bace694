"""On a machine with a GPU: check that unlisted memory is inferred to the containers that hold it.

    python tools/h200/memory.py

The exporter runs in its own PID namespace, where the driver lists no processes, with the host's /proc mounted. The
inferred memory is compared with the list of the driver outside of the namespace. Exits with 1 if it differs by more
than 2 %.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

import placed
import pynvml
from scrape import metrics

PORT = 9479
HOLDERS = {"hold": "c3f7" * 16, "small": "4be1" * 16}
OFF = 0.02
NESTED = """
mkdir -p /run/host-proc && mount --rbind /proc /run/host-proc &&
exec unshare --pid --fork --mount-proc --kill-child {python} -m gpuledger serve \
  --path.procfs=/run/host-proc --environment=none --web.listen-address=127.0.0.1:{port}
"""


def listed() -> dict[int, int]:
    """Bytes by pid, as listed by the driver outside of the namespace."""
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {row.pid: row.usedGpuMemory for row in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}


def inferred(body: str) -> dict[str, float]:
    """Inferred bytes by container id."""
    line = re.compile(r'^container_gpu_memory_bytes\{.*container_id="(\w+)".*method="inference"\} (\S+)$', re.MULTILINE)
    return {container: float(value) for container, value in line.findall(body)}


def show(body: str, *names: str) -> None:
    """Lines of these metrics."""
    print(*(line for line in body.splitlines() if line.startswith(names)), sep="\n")


def main() -> int:
    """Check one container, then two."""
    wrong = 0
    groups = {kind: f"system.slice/docker-{container}.scope" for kind, container in HOLDERS.items()}
    running = {"hold": placed.start(groups["hold"], "hold", 120, "hold")}
    words = ["unshare", "--mount", "sh", "-c", NESTED.format(python=sys.executable, port=PORT)]
    server = subprocess.Popen(words)
    try:
        body = metrics(PORT, f'container_gpu_memory_bytes{{.*{HOLDERS["hold"]}.*method="inference"')
        held = listed()[running["hold"].pid]
        found = inferred(body)[HOLDERS["hold"]]
        wrong += not abs(found - held) <= OFF * held
        print(f"one holder: listed {held}, inferred {found:.0f}: {100 * (found - held) / held:+.2f} %")
        wrong += 'evidence="maps"' not in body
        print(
            *(x for x in body.splitlines() if x.startswith(("gpu_memory", "gpu_infer", "container_gpu", "gpu_in_use"))),
            sep="\n",
        )
        running["small"] = placed.start(groups["small"], "small", 120, "small")
        body = metrics(PORT, r"gpu_inference_candidates\{.*\} 2$")
        time.sleep(2)
        body = metrics(PORT, r"gpu_inference_candidates\{.*\} 2$")
        both, parts = sum(listed().values()), inferred(body)
        wrong += not abs(sum(parts.values()) - both) <= OFF * both
        wrong += len(parts) != len(HOLDERS) or max(parts.values()) - min(parts.values()) > 1
        print(f"two holders: listed {both}, inferred {parts}: {100 * (sum(parts.values()) - both) / both:+.2f} %")
        print(
            *(x for x in body.splitlines() if x.startswith(("gpu_process_energy", "gpu_unattr", "gpu_idle_energy"))),
            sep="\n",
        )
    finally:
        server.kill()
        server.wait()
        for process in running.values():
            process.kill()
            process.wait()
        for group in groups.values():
            placed.remove(group)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
