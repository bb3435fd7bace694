"""On a machine with a GPU: check that the books balance to the millijoule in all situations.

    python tools/h200/books.py

Phases: idle, one process alone, two processes sharing, a waiting process next to a working one, twenty short
processes, MPS, and kill -9 of a workload and of the exporter. Twice a second /metrics is summed up: processes +
retired + idle + unattributed must equal the device, and no total may decrease. Exits with 1 if a check fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import placed

PORT = 9478
LINE = re.compile(r"^(gpu_\w*energy_joules_total)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
STEADY = 0.01
"""Maximum share of unattributed energy in a steady phase."""
RETENTION_S = 15


def energies() -> Counter[str]:
    """Millijoules by account, from one scrape."""
    with urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
        body = str(answer.read().decode())
    found: Counter[str] = Counter()
    for name, labels, value in LINE.findall(body):
        of = dict(LABEL.findall(labels))
        account = name.removeprefix("gpu_").removesuffix("energy_joules_total").rstrip("_") or "device"
        detail = of.get("reason") or of.get("method") or ""
        found[f"{account} {detail}".strip()] += round(float(value) * 1000)
        if account == "process":
            found[f"of {of['process_name'] or 'nameless'}"] += round(float(value) * 1000)
    return found


def residual(found: Counter[str]) -> int:
    """Difference between the device and the sum of its accounts."""
    parts = sum(mj for account, mj in found.items() if account != "device" and not account.startswith("of "))
    return found["device"] - parts


class Exporter:
    """gpuledger with a journal; tests may kill it."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.start()

    def start(self) -> None:
        """Start or restart; returns when the exporter answers."""
        words = ["serve", f"--web.listen-address=127.0.0.1:{PORT}", "--environment=none"]
        words += [f"--metric-retention={RETENTION_S}s", f"--journal.path={self._journal}"]
        self.process = subprocess.Popen([sys.executable, "-m", "gpuledger", *words])
        for _ in range(100):
            time.sleep(0.2)
            with suppress(OSError):
                if energies()["device"]:
                    return
        raise AssertionError("the exporter does not answer")

    def kill(self) -> None:
        """Kill with SIGKILL."""
        self.process.kill()
        self.process.wait()


class Watch:
    """Observes the books during a phase and prints the energy by account."""

    def __init__(self) -> None:
        self.wrong = 0
        self._highest: Counter[str] = Counter()

    def check(self, right: bool, what: str) -> None:
        """Print the result of a check, and count failures."""
        self.wrong += not right
        print("  right:" if right else "  WRONG:", what, flush=True)

    def look(self) -> Counter[str]:
        """Read and check one sum."""
        found = energies()
        if off := residual(found):
            self.check(False, f"out of balance by {off} mJ")
        lasting = {name: mj for name, mj in found.items() if name.startswith(("device", "idle", "retired", "unattr"))}
        for name, mj in lasting.items():
            if mj < self._highest[name]:
                self.check(False, f"{name} fell from {self._highest[name]} to {mj} mJ")
        self._highest.update({name: mj - self._highest[name] for name, mj in lasting.items()})
        return found

    def without(self, exporter: Exporter, seconds: float) -> tuple[Counter[str], Counter[str]]:
        """Kill the exporter for some seconds; return the increases and the totals before."""
        before = energies()
        exporter.kill()
        time.sleep(seconds)
        exporter.start()
        rose = self.look()
        rose.subtract(before)
        return rose, before

    def phase(
        self, title: str, seconds: float, during: Callable[[], None] = lambda: None, *, steady: bool = True
    ) -> Counter[str]:
        """Check the sums twice a second, print the energy by account, and return the increases."""
        before = self.look()
        end = time.monotonic() + seconds
        during()
        looks = 0
        while time.monotonic() < end or looks < 4:
            self.look()
            looks += 1
            time.sleep(0.5)
        rose = self.look()
        rose.subtract(before)
        device = rose["device"] or 1
        parts = ", ".join(f"{n} {100 * mj / device:.1f} %" for n, mj in sorted(rose.items()) if mj and n != "device")
        print(f"{title}: {device / 1000:.1f} J, {looks} sums: {parts}", flush=True)
        nobody = sum(mj for name, mj in rose.items() if name.startswith("unattributed")) / device
        if steady:
            self.check(nobody < STEADY, f"{100 * nobody:.2f} % is nobody's")
        return rose


def main() -> int:  # noqa: PLR0915 - the phases are easier to read in one function
    """Run all phases."""
    folder = Path(tempfile.mkdtemp())
    exporter = Exporter(folder / "journal")
    watch = Watch()
    running: list[subprocess.Popen[bytes]] = []
    groups = [f"system.slice/docker-{i:064x}.scope" for i in range(6)]

    def begin(group: int, kind: str, **environment: str) -> subprocess.Popen[bytes]:
        running.append(placed.start(groups[group], kind, 300, kind, **environment))
        return running[-1]

    def end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    try:
        watch.phase("idle", 5)
        train = begin(0, "train")
        watch.phase("one comes", 2)
        rose = watch.phase("one alone", 8)
        watch.check(rose["process exclusive"] > 0.95 * rose["device"], "more than 95 % is exclusive")

        rose, down = watch.without(exporter, 4)
        watch.check(rose["process gap"] > 0.5 * rose["device"] > 0, "it was alone while the exporter was down: its own")
        watch.check(energies()["unattributed before"] == down["unattributed before"], "nothing is counted twice")

        decode = begin(1, "decode")
        watch.phase("two sharing", 12)
        rose, _ = watch.without(exporter, 3)
        watch.check(rose["unattributed gap"] > 0.5 * rose["device"] > 0, "two were there: nobody's, for the gap")

        end(decode)
        begin(2, "hold")
        rose = watch.phase("one waiting beside one working", 8)
        held = watch.phase("the same, for the waiting one's part", 4)
        watch.check(held["of hold"] < 0.2 * held["device"], f"it has {100 * held['of hold'] / held['device']:.1f} %")
        end(train)
        watch.phase("only one waiting, the other killed", 6)
        short = subprocess.Popen([sys.executable, str(placed.SHORT), str(placed.CGROUPS / groups[3])])
        rose = watch.phase("twenty short ones", 26, steady=False)
        short.wait(timeout=60)
        watch.check(short.returncode == 0, "all twenty have worked")
        nobody = sum(mj for name, mj in rose.items() if name.startswith("unattributed"))
        watch.check(nobody < STEADY * rose["device"], f"{100 * nobody / rose['device']:.2f} % is nobody's")
        for process in running:
            end(process)
        watch.phase("nobody", 4)
        with placed.mps(folder) as environment:
            begin(4, "small", **environment)
            begin(5, "small", **environment)
            rose = watch.phase("two clients of MPS", 10)
            watch.check(rose["process mps"] > 0.3 * rose["device"], "they share what their server did")
            for process in running:
                end(process)
        watch.phase("after retention", RETENTION_S + 3, steady=False)
        watch.check(not [name for name in energies() if name.startswith("of ")], "all are retired")
        watch.check(bool(energies()["retired"]), "and their joules are kept")
    finally:
        exporter.kill()
        for process in running:
            end(process)
        for group in groups:
            placed.remove(group)
    print(f"{watch.wrong} wrong")
    return 1 if watch.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    sys.exit(main())
