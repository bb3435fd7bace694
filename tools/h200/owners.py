"""On a machine with a GPU: check that real CUDA processes get the right owner on /metrics.

    python tools/h200/owners.py

The processes run in cgroups (v2) named like those of containerd, CRI-O, Docker, Slurm and systemd. Then the exporter
runs in its own PID namespace and must report this problem. Exits with 1 if a check fails.
"""

from __future__ import annotations

import re
import subprocess
import sys

import placed
from scrape import metrics

CONTAINERD, CRIO, DOCKER = "4be1" * 16, "90ad" * 16, "c3f7" * 16
UID, UID2 = "7f2c1a9e-3b64-4d0f-9a51-c8e20d7b4f13", "b91d5c02-8e7a-4f3c-b6d4-1a2f90c37e58"
# Cgroup, and the labels that /metrics must have for the process in it.
CAST = (
    (placed.pod_cgroup(UID, f"cri-containerd-{CONTAINERD}"), {"container_id": CONTAINERD, "pod_uid": UID}),
    (placed.pod_cgroup(UID2, f"crio-{CRIO}", "besteffort"), {"container_id": CRIO, "pod_uid": UID2}),
    (f"system.slice/docker-{DOCKER}.scope", {"container_id": DOCKER, "pod_uid": ""}),
    ("system.slice/slurmstepd.scope/job_211/step_0/user/task_1", {"batch_job": "slurm/211", "batch_step": "0"}),
    ("system.slice/ollama.service", {"unit": "ollama.service", "container_id": ""}),
)
PORT = 9477


def exporter(*before: str) -> subprocess.Popen[str]:
    """An exporter on PORT, optionally started by another command."""
    words = [*before, sys.executable, "-m", "gpuledger", "serve", f"--web.listen-address=127.0.0.1:{PORT}"]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def main() -> int:
    """Run both checks."""
    wrong = 0
    running = [placed.start(where, "small", 90, f"work{i}") for i, (where, _) in enumerate(CAST)]
    try:
        server = exporter()
        body = metrics(PORT, f'gpu_process_sm_utilization_ratio{{pid="{running[-1].pid}"')
        for process, (where, expected) in zip(running, CAST, strict=True):
            line = next(x for x in body.splitlines() if x.startswith(f'gpu_process_info{{pid="{process.pid}"'))
            for label, value in expected.items():
                right = f'{label}="{value}"' in line
                wrong += not right
                print("right" if right else f"WRONG ({line})", where, label, value)
        print(*(x for x in body.splitlines() if x.startswith(("container_gpu_", "gpu_owner_info"))), sep="\n")
        for process in running[:1]:
            subprocess.run([sys.executable, "-m", "gpuledger", "explain", str(process.pid)], check=True)
        server.terminate()
        server.wait()
        wrong += nested()
    finally:
        for process in running:
            process.kill()
            process.wait()
        for where, _ in CAST:
            placed.remove(where)
    return 1 if wrong else 0


def nested() -> int:
    """In its own PID namespace the driver lists no processes although memory is used; the exporter must report it."""
    server = exporter("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        body = metrics(PORT, "gpu_processes")
        checks = {
            "host_pid_namespace is 0": "\ngpuledger_host_pid_namespace 0\n" in body,
            "no process is listed": re.search(r"^gpu_processes\{.*\} 0$", body, re.MULTILINE) is not None,
            "memory is used": re.search(r"^gpu_memory_used_bytes\{.*\} 0$", body, re.MULTILINE) is None,
        }
    finally:
        server.kill()  # also ends its child, which is the init of its namespace and ignores SIGTERM
        _, log = server.communicate(timeout=20)
    checks["the log names the fix"] = "hostPID: true" in log
    for check, right in checks.items():
        print("right" if right else "WRONG", "nested:", check)
    return sum(not right for right in checks.values())


if __name__ == "__main__":
    sys.exit(main())
