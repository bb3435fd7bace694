"""On a machine with a GPU: check that the books balance, to the millijoule, whatever happens.

    python tools/h200/books.py

Idle, one process alone, two sharing, one waiting beside one working, short ones, a kill -9. Twice a second all of
/metrics is added up: processes + retired + idle + unattributed must be the GPU. Exit code 1 when it once is not.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from urllib.request import urlopen

import placed

PORT = 9478
LINE = re.compile(r"^(gpu_\w*energy_joules_total)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


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
            found[f"of {of['process_name']}"] += round(float(value) * 1000)
    return found


def residual(found: Counter[str]) -> int:
    """What the parts lack to the GPU."""
    parts = sum(mj for account, mj in found.items() if account != "device" and not account.startswith("of "))
    return found["device"] - parts


class Phase:
    """Watches the books for some seconds and says who got what in them."""

    def __init__(self) -> None:
        self.wrong = 0

    def watch(self, title: str, seconds: float, during: Callable[[], None] = lambda: None) -> None:
        """Add up twice a second; then one line for each account that rose."""
        before = energies()
        end = time.monotonic() + seconds
        during()
        looks = 0
        while time.monotonic() < end:
            off = residual(energies())
            looks += 1
            if off:
                self.wrong += 1
                print(f"OUT OF BALANCE by {off} mJ")
            time.sleep(0.5)
        rose = energies()
        rose.subtract(before)
        device = rose.pop("device") or 1
        parts = ", ".join(f"{name} {100 * mj / device:.1f} %" for name, mj in sorted(rose.items()) if mj)
        print(f"{title}: {device / 1000:.1f} J, {looks} sums right: {parts}", flush=True)


def main() -> int:
    """All phases."""
    command = [sys.executable, "-m", "gpuledger", "serve", f"--web.listen-address=127.0.0.1:{PORT}"]
    server = subprocess.Popen([*command, "--environment=none", "--metric-retention=20s"])
    time.sleep(4)
    phase = Phase()
    running: list[subprocess.Popen[bytes]] = []
    groups = [f"system.slice/docker-{i:064x}.scope" for i in range(6)]
    try:
        phase.watch("idle", 6)
        running.append(placed.start(groups[0], "train", 300, "train"))
        phase.watch("one alone", 12)
        running.append(placed.start(groups[1], "decode", 300, "decode"))
        phase.watch("two sharing", 15)
        running[1].kill()
        running[1].wait()
        running.append(placed.start(groups[2], "hold", 300, "hold"))
        phase.watch("one waiting beside one working", 10)
        running[0].kill()
        running[0].wait()
        phase.watch("only one waiting", 8)

        def short() -> None:
            running.extend(placed.start(groups[3], "small", 1.0, f"short{i}") for i in range(6))

        phase.watch("six short ones", 12, short)
        for process in running:
            process.kill()
            process.wait()
        phase.watch("nobody", 6)
        phase.watch("after retention", 22)
    finally:
        server.terminate()
        server.wait()
        for process in running:
            process.kill()
            process.wait()
        for group in groups:
            placed.remove(group)
    return 1 if phase.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
