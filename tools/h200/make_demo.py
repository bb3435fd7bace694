"""On a machine with a GPU: record the demo. Real CUDA processes in cgroups named as Kubernetes, Docker and systemd do.

    python tools/h200/make_demo.py OUT.jsonl.gz

Needs root and a writable cgroup v2 tree. The cgroups are removed at the end.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
WORK = Path(__file__).with_name("workloads.py")
KUBEPODS = "kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid}.slice/cri-containerd-{container}.scope"

# Where each process sits, what it does, from when to when (seconds), and the command name it shows.
CAST = (
    (
        KUBEPODS.format(qos="burstable", uid="7f2c1a9e_3b64_4d0f_9a51_c8e20d7b4f13", container="4be1" * 16),
        "train", 0, 80, "python3",
    ),
    (
        KUBEPODS.format(qos="burstable", uid="b91d5c02_8e7a_4f3c_b6d4_1a2f90c37e58", container="90ad" * 16),
        "decode", 8, 60, "vllm",
    ),
    ("system.slice/docker-" + "c3f7" * 16 + ".scope", "serve", 0, 80, "triton"),
    ("system.slice/ollama.service", "hold", 0, 80, "ollama"),
    ("user.slice/user-1000.slice/session-4.scope", "copy", 30, 45, "jupyter"),
)  # fmt: skip


def main() -> int:
    """Start the cast, record for 70 s, stop the cast."""
    out = sys.argv[1]
    running: list[subprocess.Popen[bytes]] = []
    started = time.monotonic()
    recorder = None
    try:
        for where, kind, begin, end, name in sorted(CAST, key=lambda row: row[2]):
            if recorder is None and begin > 0:
                recorder = _record(out)
                started = time.monotonic()
            time.sleep(max(0.0, begin - (time.monotonic() - started)))
            running.append(_start(where, kind, end - begin, name))
        assert recorder is not None  # noqa: S101 - some of the cast come later
        return recorder.wait(timeout=120)
    finally:
        for process in running:
            process.kill()
            process.wait()
        for where, *_ in CAST:
            _remove(CGROUPS / where)


def _record(out: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "gpuledger", "record", out, "--duration", "70s"])


def _start(where: str, kind: str, seconds: float, name: str) -> subprocess.Popen[bytes]:
    folder = CGROUPS / where
    folder.mkdir(parents=True, exist_ok=True)

    def enter() -> None:
        (folder / "cgroup.procs").write_text(str(os.getpid()))

    code = (
        f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0); "
        f"sys.argv = ['x', {kind!r}, '{seconds}']; "
        f"exec(compile(open({str(WORK)!r}).read(), 'workloads.py', 'exec'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], preexec_fn=enter, stdout=subprocess.PIPE)  # noqa: PLW1509
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    process.stdout.readline()  # ready
    return process


def _remove(folder: Path) -> None:
    while folder != CGROUPS:
        with suppress(OSError):
            folder.rmdir()
        folder = folder.parent


if __name__ == "__main__":
    ctypes.CDLL(None)
    sys.exit(main())
