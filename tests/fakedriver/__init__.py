"""A fake NVIDIA driver: a real `libnvidia-ml.so.1` that answers from a scenario file.

    scenario = Scenario(gpus=[Gpu(index=0, watts=290)], processes=[Process(gpu=0, pid=42, memory=1 << 30, sm=40)])
    scenario.write(path)
    subprocess.run([...], env=os.environ | environment(path))

Rewrite the file while a program runs and the next call it makes sees the change.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.components import compiler

LIBRARY = "libnvidia-ml.so.1"

# A value a call answers, or "none" for NOT_SUPPORTED; None leaves the library's own default.
Value = int | float | str | None

_SOURCE = Path(__file__).parent
_NOT_IN_LINE = {"index", "gpu", "extra"}


def build(directory: Path | None = None) -> Path:
    """Compile the library unless this very source was compiled before; return the directory that holds it."""
    sources = sorted(_SOURCE.glob("*.[ch]"))
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    if directory is None:
        directory = Path(tempfile.gettempdir()) / f"fakedriver-{os.getuid()}-{key}"
    library, stamp = directory / LIBRARY, directory / "source"
    if library.exists() and stamp.exists() and stamp.read_text() == key:
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    # Two test processes may build at once: each links its own file, and the rename is atomic.
    unfinished = directory / f"{LIBRARY}.{os.getpid()}"
    flags = ["-O2", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}"]
    c_files = [str(source) for source in sources if source.suffix == ".c"]
    done = subprocess.run(
        [*compiler(), *flags, "-o", str(unfinished), *c_files], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"cannot build the fake driver:\n{done.stderr}")
    unfinished.replace(library)
    stamp.write_text(key)
    return directory


def environment(scenario: Path, calls: Path | None = None) -> dict[str, str]:
    """What a program needs in its environment to find the fake driver and its scenario.

    `calls` names a file in which the library keeps `function calls nanoseconds` lines.
    """
    found = {"LD_LIBRARY_PATH": str(build()), "FAKE_NVML_SCENARIO": str(scenario)}
    return found if calls is None else found | {"FAKE_NVML_CALLS": str(calls)}


def load(scenario: Path) -> None:
    """Make the fake driver the one that pynvml finds in this process, reading `scenario`.

    The loader takes a library of the same soname that is already there for the one asked for. The
    first driver loaded stays for the life of the process; the scenario path may change.
    """
    os.environ["FAKE_NVML_SCENARIO"] = str(scenario)
    ctypes.CDLL(str(build() / LIBRARY), mode=ctypes.RTLD_GLOBAL)


def _words(item: object, extra: dict[str, Value]) -> str:
    given = {f.name: getattr(item, f.name) for f in fields(item) if f.name not in _NOT_IN_LINE}  # type: ignore[arg-type]
    words = []
    for name, value in (given | extra).items():
        if value is not None:
            shown = f"{value:.6f}" if isinstance(value, float) else str(value)
            words.append(f'{name}="{shown}"' if " " in shown else f"{name}={shown}")
    return " ".join(words)


@dataclass
class Gpu:
    """One GPU; `extra` takes any other key of the grammar, such as `{"gpm.sm": 41.5, "remapped_pending": 1}`."""

    index: int
    uuid: str | None = None
    name: str | None = None
    bus: str | None = None
    watts: float = 80.0
    energy_mj: Value = 0
    energy_at: float | None = None  # when the counter stood at energy_mj; the first write of the scenario if None
    memory_total: Value = None
    memory_used: Value = None
    memory_reserved: Value = None
    util: Value = None
    memutil: Value = None
    temperature: Value = None
    throttle: Value = None
    mig: Value = None
    accounting: Value = None
    extra: dict[str, Value] = field(default_factory=dict)

    def set_watts(self, watts: float, at: float) -> None:
        """Draw `watts` from Unix time `at` on; what was counted until then stays counted."""
        if isinstance(self.energy_mj, int) and self.energy_at is not None:
            self.energy_mj += round(max(0.0, at - self.energy_at) * self.watts * 1000)
        self.watts, self.energy_at = watts, at

    def line(self) -> str:
        """The line of this GPU, as the scenario file has it."""
        return f"gpu {self.index} {_words(self, self.extra)}"


@dataclass
class Process:
    """A process in one list of one GPU; give it again with another `kind` to have it in two lists."""

    gpu: int
    pid: int
    kind: str = "compute"  # or graphics, mps
    memory: int | str = 1 << 30  # bytes, or "na" for a driver that cannot tell
    sm: int = 0
    mem: int = 0
    enc: int = 0
    dec: int = 0
    gi: int | None = None
    ci: int | None = None
    name: str | None = None

    def line(self) -> str:
        """The line of this process, as the scenario file has it."""
        return f"process {self.gpu} {_words(self, {})}"


@dataclass
class Mig:
    """A MIG device on a GPU that has `mig=1`."""

    gpu: int
    gi: int
    ci: int = 0
    uuid: str | None = None
    profile: str = "1g.18gb"
    memory_total: Value = None
    memory_used: Value = None
    sms: Value = 16
    extra: dict[str, Value] = field(default_factory=dict)

    def line(self) -> str:
        """The line of this MIG device, as the scenario file has it."""
        return f"mig {self.gpu} {_words(self, self.extra)}"


@dataclass
class Scenario:
    """All that the driver says. Change it and `write` it again: readers see the old or the new one, never a mixture."""

    gpus: list[Gpu] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    migs: list[Mig] = field(default_factory=list)
    clock: float | None = None  # Unix seconds at which the library's time stands still
    profile: str | None = None  # "h200": the latencies of the real one
    driver: str = "580.159.04"
    extra: list[str] = field(default_factory=list)  # error, latency, hang, lost, xid, sample, ... lines

    def now(self) -> float:
        """The Unix time that the library goes by."""
        return time.time() if self.clock is None else self.clock

    def set_watts(self, gpu: int, watts: float, at: float | None = None) -> None:
        """Change the power of one GPU from `at` (now if None) on, without a jump of its energy counter."""
        next(g for g in self.gpus if g.index == gpu).set_watts(watts, self.now() if at is None else at)

    def text(self) -> str:
        """The scenario file; a GPU that has no start of its energy counter gets one now."""
        for gpu in self.gpus:
            if gpu.energy_at is None:
                gpu.energy_at = self.now()
        lines = [f"driver version={self.driver} nvml=13.{self.driver}"]
        if self.clock is not None:
            lines.append(f"clock {self.clock:.6f}")
        if self.profile is not None:
            lines.append(f"profile {self.profile}")
        lines += [item.line() for group in (self.gpus, self.migs, self.processes) for item in group]
        return "\n".join(lines + self.extra) + "\n"

    def write(self, path: Path) -> Path:
        """Put the scenario in place of the one at `path`, all at once."""
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        unfinished.write_text(self.text())
        unfinished.replace(path)
        time.sleep(0.002)  # the library looks at most once a millisecond: now every later call sees this one
        return path


def h200_node(gpus: int = 8, processes: int = 4, pids: list[int] | None = None, latency: bool = False) -> Scenario:
    """A busy node of H200s: `processes` on each GPU, pid by pid from `pids` or counted up from 1000."""
    wanted = gpus * processes
    chosen = list(range(1000, 1000 + wanted)) if pids is None else pids
    if len(chosen) < wanted:
        raise ValueError(f"{gpus} GPUs with {processes} processes each need {wanted} pids, got {len(chosen)}")
    return Scenario(
        gpus=[
            Gpu(index=g, watts=290.0 + 10 * g, temperature=45 + g, extra={"gpm.occupancy": 21.5, "gpm.dram": 12.25})
            for g in range(gpus)
        ],
        processes=[
            Process(gpu=g, pid=chosen[g * processes + p], memory=(p + 1) << 32, sm=10 + 5 * p, mem=3 + p)
            for g in range(gpus)
            for p in range(processes)
        ],
        profile="h200" if latency else None,
    )
