"""On a machine with a GPU: joules per token of two servers, alone and together, and the energy of prefill and decode.

    python tools/h200/tokens.py --output FILE [--scale X]

Starts two servers of small transformers (`tokenserver.py`) and the exporter with --tokens.scrape, for less than 150 s:

1. server-a alone, with requests of changing length; then its prefill alone, and its decode alone
2. server-b alone, while server-a waits
3. both together

Prints, and writes as JSON, joules per token of each server alone and together (the same tokens within 10 %), the
exporter's estimate of prefill and decode next to the truth of the phases that ran separately, and whether tokens x
joules per token + parked + idle is the energy of the GPU. Energy per token is above parked power. Exits with 1 if a
check fails; FILE has what was measured until then. Needs PyTorch and the PID namespace of the host. `--engine sleep`
rehearses the servers and the schedule without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from gpuledger.integrations.tokens.phases import Window, fit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = ("server-a", "server-b")
ENGINES = ("wide", "deep")
LINE = re.compile(r"^(gpu\w*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
UNITS = ("sm", "tensor", "dram")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
DEADLINE_S = 140.0
"""All phases end within this time after the start; they become shorter if loading takes long."""
LEAST_S = 50.0
"""Least time for all phases; in less, nothing is measured well."""
PART_S = 1.5
"""Seconds of each half of a cycle: requests with short and with long answers."""
LOAD_S = 70.0
"""Maximum time to load PyTorch and a model."""
SCRAPE_S = 0.5
EDGE_S = 1.5
"""Seconds at the start of a phase that are not evaluated: the exporter books what was before."""
MOST_OFF = 0.10
"""Maximum difference of joules per token together and alone."""
MOST_UNBALANCED = 0.005
"""Maximum part of the GPU's energy that is in no term of the balance."""

PLAN = (
    ("parked", 5.0, {"server-a": "wait"}),
    ("a alone", 23.0, {"server-a": "mix"}),
    ("a prefill", 10.0, {"server-a": "prefill"}),
    ("a decode", 10.0, {"server-a": "decode"}),
    ("load b", 0.0, {"server-a": "wait"}),
    ("b alone", 23.0, {"server-b": "mix"}),
    ("together", 38.0, {"server-a": "mix", "server-b": "mix"}),
    ("end", 3.0, {"server-a": "wait", "server-b": "wait"}),
)
"""Name and seconds of each phase, and what the servers do; the others wait."""


@dataclass
class Ledger:
    """What one scrape of the exporter says; energies in joules."""

    tick_s: float
    device: float
    idle: float
    unattributed: float
    retired: float
    processes: float
    parked_w: float
    activity: dict[str, float]
    """Of the GPU, by unit."""
    servers: dict[str, dict[str, float]]
    """By server: work, parked, and the published energies of tokens and phases."""


@dataclass
class Run:
    """All that was measured."""

    started: float = 0.0
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Begin and end by name."""
    ledgers: list[Ledger] = field(default_factory=list)
    tokens: dict[str, list[list[float]]] = field(default_factory=lambda: {name: [] for name in NAMES})
    """By server: time, prompt tokens, output tokens."""
    cycles: dict[str, list[list[float]]] = field(default_factory=lambda: {name: [] for name in NAMES})
    """By server: the same at the end of each cycle."""
    loaded: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str = ""


def parse(body: str, servers: dict[str, str]) -> Ledger:
    """Read one answer of /metrics; `servers` has the names by the label `server`."""
    sums: dict[str, float] = {}
    found: dict[str, dict[str, float]] = {name: {} for name in servers.values()}
    for name, text, value in LINE.findall(body):
        labels = dict(LABEL.findall(text))
        if labels.get("server") in servers:
            key = name.removeprefix("gpu_server_") + (f" {labels['phase']}" if "phase" in labels else "")
            mine = found[servers[labels["server"]]]
            mine[key] = mine.get(key, 0.0) + float(value)
        elif labels.get("reason") != "before":
            sums[name] = sums.get(name, 0.0) + float(value)
    before = sum(float(v) for n, t, v in LINE.findall(body) if "unattributed" in n and 'reason="before"' in t)
    return Ledger(
        tick_s=sums.get("gpuledger_tick_timestamp_seconds", 0.0),
        device=sums.get("gpu_energy_joules_total", 0.0) - before,
        idle=sums.get("gpu_idle_energy_joules_total", 0.0),
        unattributed=sums.get("gpu_unattributed_energy_joules_total", 0.0),
        retired=sums.get("gpu_retired_energy_joules_total", 0.0),
        processes=sums.get("gpu_process_energy_joules_total", 0.0),
        parked_w=sums.get("gpu_parked_power_watts", 0.0),
        activity={unit: sums.get(f"gpu_{unit}_active_ratio", 0.0) for unit in UNITS},
        servers=found,
    )


# -- Evaluation. Pure.


def at(series: Sequence[Sequence[float]], time_s: float, column: int) -> float:
    """A column of a time series, interpolated; its first or last value outside of it."""
    number = bisect_left([row[0] for row in series], time_s)
    if number == 0:
        return series[0][column]
    if number == len(series):
        return series[-1][column]
    before, after = series[number - 1], series[number]
    part = (time_s - before[0]) / (after[0] - before[0])
    return before[column] + part * (after[column] - before[column])


def energies(run: Run, name: str) -> list[list[float]]:
    """Tick time, work and parked energy of a server, and the energy and parked power of the GPU, once per tick."""
    rows = {
        ledger.tick_s: [
            ledger.tick_s,
            ledger.servers[name].get("work_energy_joules_total", 0.0),
            ledger.servers[name].get("parked_energy_joules_total", 0.0),
            ledger.device,
            ledger.parked_w,
        ]
        for ledger in run.ledgers
    }
    return [rows[tick_s] for tick_s in sorted(rows)]


def measure(run: Run, name: str, begin: float, end: float) -> dict[str, float]:
    """Tokens and energy of a server in a span of time."""
    energy, tokens = energies(run, name), run.tokens[name]
    work, parked, device = (at(energy, end, n) - at(energy, begin, n) for n in (1, 2, 3))
    prompt, output = (at(tokens, end, n) - at(tokens, begin, n) for n in (1, 2))
    parked_w = at(energy, end, 4)
    result = {
        "seconds": end - begin, "prompt_tokens": prompt, "output_tokens": output, "work_j": work, "parked_j": parked,
        "gpu_w": device / (end - begin), "parked_w": parked_w,
        "gpu_above_parked_j": device - parked_w * (end - begin),
    }  # fmt: skip
    if output:
        result["j_per_output_token"] = work / output
    if prompt + output:
        result["j_per_token"] = work / (prompt + output)
    return result


def whole_cycles(run: Run, name: str, phase: str) -> tuple[float, float] | None:
    """The first and the last end of a cycle in a phase, so that prompt and output tokens have the same ratio."""
    begin, end = run.phases[phase]
    first = begin + min(EDGE_S, (end - begin) / 4)
    ends = [row[0] for row in run.cycles[name] if first <= row[0] <= end]
    return (ends[0], ends[-1]) if len(ends) > 1 else None


def evaluate(run: Run) -> dict[str, Any]:
    """All results that the measurements allow, and the checks by name."""
    results: dict[str, Any] = {"problem": run.problem, "loaded": run.loaded, "servers": {}, "checks": {}}
    for name, alone in zip(NAMES, ("a alone", "b alone"), strict=True):
        mine: dict[str, Any] = {}
        results["servers"][name] = mine
        for title, phase in (("alone", alone), ("together", "together")):
            span = whole_cycles(run, name, phase) if phase in run.phases and run.ledgers else None
            if span is not None:
                mine[title] = measure(run, name, *span)
        fitted = refit(run, name, alone) if alone in run.phases and run.ledgers else None
        mine["ratio"] = _over_alone(mine, fitted)
        right = None if mine["ratio"] is None else abs(mine["ratio"] - 1) <= MOST_OFF
        results["checks"][f"{name} together within 10 % of alone"] = right
    results["phases"] = _phases(run, results["checks"])
    mixed = [(NAMES[0], "a alone"), (NAMES[1], "b alone"), (NAMES[0], "together"), (NAMES[1], "together")]
    results["refitted"] = {
        f"{name}, {phase}": refit(run, name, phase) for name, phase in mixed if phase in run.phases and run.ledgers
    }
    if len(run.ledgers) > 1:
        results["balance"] = _balance(run, results["checks"])
    return results


def _over_alone(mine: dict[str, Any], fitted: dict[str, float] | None) -> float | None:
    """Energy together over that of the same tokens alone; None if it was not measured.

    Requests mix prompt and output tokens differently in each phase. If the mix never changes, nothing can be fitted,
    and energy per token can be compared.
    """
    alone, together = mine.get("alone", {}), mine.get("together", {})
    if fitted is not None and together:
        alone_j = fitted["prompt_j"] * together["prompt_tokens"] + fitted["output_j"] * together["output_tokens"]
        return float(together["work_j"] / alone_j)
    if alone.get("j_per_token") and together.get("j_per_token"):
        return float(together["j_per_token"] / alone["j_per_token"])
    return None


def _phases(run: Run, checks: dict[str, bool | None]) -> dict[str, Any]:
    """The exporter's estimate at the end of the mixed load, and the truth of the phases that ran separately."""
    name, result = NAMES[0], dict[str, Any]()
    for title, phase, tokens in (("prefill", "a prefill", "prompt_tokens"), ("decode", "a decode", "output_tokens")):
        if phase not in run.phases or not run.ledgers:
            continue
        begin, end = run.phases[phase]
        found = measure(run, name, begin + min(EDGE_S, (end - begin) / 4), end - 0.2)
        result[title] = {"truth_j": found["work_j"] / found[tokens] if found[tokens] else None, **found}
    if "a alone" in run.phases:
        end = run.phases["a alone"][1]
        inside = [ledger for ledger in run.ledgers if ledger.tick_s <= end + 0.5]
        published = inside[-1].servers[name] if inside else {}
        for title in result:
            estimate = published.get(f"phase_token_energy_joules {title}")
            error = published.get(f"phase_token_energy_error_joules {title}")
            result[title] |= {"estimate_j": estimate, "error_j": error}
            truth = result[title]["truth_j"]
            if estimate is not None and error is not None and truth:
                result[title] |= {
                    "ratio": estimate / truth,
                    "errors_off": (estimate - truth) / error if error else None,
                }
            checks[f"{title} is estimated"] = estimate is not None
    return result


def refit(run: Run, name: str, phase: str) -> dict[str, float] | None:
    """The exporter's estimate of prefill and decode, from the ticks of one phase in windows of about two seconds."""
    begin, end = run.phases[phase]
    ticks = [row[0] for row in energies(run, name) if begin <= row[0] <= end][::2]
    spans = [measure(run, name, first, last) for first, last in itertools.pairwise(ticks) if last > first]
    fitted = fit([Window(span["work_j"], span["prompt_tokens"], span["output_tokens"]) for span in spans])
    return None if fitted is None else asdict(fitted)


def _balance(run: Run, checks: dict[str, bool | None]) -> dict[str, float]:
    """Tokens x joules per token, parked, idle and the rest, next to the energy of the GPU."""
    first, last = run.ledgers[0], run.ledgers[-1]
    rose = {key: getattr(last, key) - getattr(first, key) for key in ("device", "idle", "unattributed", "retired")}
    for name in NAMES:
        for key in ("work", "parked"):
            family = f"{key}_energy_joules_total"
            rose[f"{name} {key}"] = last.servers[name].get(family, 0.0) - first.servers[name].get(family, 0.0)
    rose["missing"] = 2 * rose["device"] - sum(rose.values())
    checks["tokens x joules + parked + idle is the energy of the GPU"] = (
        abs(rose["missing"]) <= MOST_UNBALANCED * rose["device"] if rose["device"] else None
    )
    return rose


# -- The run.


class Child:
    """A server process; ends with this one."""

    def __init__(self, name: str, engine: str, part_s: float) -> None:
        words = [sys.executable, str(HERE / "tokenserver.py"), name, engine, str(part_s)]
        self.name = name
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        hello = self.answer(20.0)
        self.pid, self.url = int(hello["pid"]), f"http://127.0.0.1:{hello['port']}"

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def send(self, command: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def answer(self, within_s: float) -> dict[str, Any]:
        """The next line of JSON."""
        try:
            line = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise RuntimeError(f"{self.name} did not answer within {within_s:.0f} s") from None
        if not line:
            raise RuntimeError(f"{self.name} exited with {self.process.wait()}: see the output above")
        return dict(json.loads(line))

    def poll(self) -> list[float]:
        """Time, prompt tokens and output tokens."""
        began = time.time()
        body = get(f"{self.url}/metrics")
        values = [float(line.rpartition(" ")[2]) for line in body.splitlines() if not line.startswith("#")]
        return [(began + time.time()) / 2, *values]

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def get(url: str) -> str:
    """The body of a page."""
    with urlopen(url, timeout=3) as answer:  # noqa: S310 - on this host
        return str(answer.read().decode())


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_exporter(children: Sequence[Child], url: str) -> subprocess.Popen[bytes]:
    """The exporter, which reads both servers; its package is that of this checkout."""
    words = ["serve", f"--web.listen-address={url.removeprefix('http://')}", "--environment=none"]
    words += [f"--tokens.scrape=pid:{child.pid}={child.url}/metrics" for child in children]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen([sys.executable, "-m", "gpuledger", *words, "--tokens.interval=1s"], env=environment)


class Observer:
    """Runs the phases, and records exporter and servers meanwhile."""

    def __init__(
        self, run: Run, children: dict[str, Child], exporter: subprocess.Popen[bytes] | None, url: str
    ) -> None:
        self._run, self._children, self._exporter, self._url = run, children, exporter, url
        self._servers = {f"pid:{child.pid}": name for name, child in children.items()}

    def wait_for_exporter(self) -> None:
        """Return when the exporter reports the energy of the GPU."""
        end = time.time() + 30
        while time.time() < end:
            self._look()
            if self._run.ledgers and self._run.ledgers[-1].device:
                return
            time.sleep(0.3)
        raise RuntimeError("the exporter reports no energy: see the output above")

    def phase(self, name: str, seconds: float, modes: dict[str, str]) -> None:
        """Run a phase, and record it."""
        for child in self._children.values():
            child.send(modes.get(child.name, "wait"))
        begin = time.time()
        print(f"{begin - self._run.started:6.1f} s  {name}, {seconds:.1f} s", flush=True)
        while time.time() < begin + seconds:
            self._look()
            time.sleep(max(0.0, min(SCRAPE_S, begin + seconds - time.time())))
        self._look()
        self._run.phases[name] = (begin, time.time())

    def cycles(self) -> None:
        """Collect the cycles of all servers."""
        for name, child in self._children.items():
            self._run.cycles[name] = json.loads(get(f"{child.url}/cycles"))

    def _look(self) -> None:
        if self._exporter is not None and self._exporter.poll() is not None:
            raise RuntimeError(f"the exporter exited with {self._exporter.returncode}: see the output above")
        for name, child in self._children.items():
            try:
                self._run.tokens[name].append(child.poll())
            except OSError as error:
                print(f"no answer from {name}: {error}", flush=True)
        if self._exporter is not None:
            try:
                self._run.ledgers.append(parse(get(f"{self._url}/metrics"), self._servers))
            except OSError as error:
                print(f"no answer from the exporter: {error}", flush=True)


def record(
    run: Run,
    engines: Sequence[str],
    scale: float,
    *,
    exporting: bool = True,
    prepare: Callable[[Sequence[Child]], None] = lambda _: None,
) -> None:
    """Run all phases; `run` has what was measured so far even if this fails.

    `prepare` is called with the servers before the exporter starts.
    """
    run.started = time.time()
    children: dict[str, Child] = {}
    exporter = None
    try:
        for name, engine in zip(NAMES, engines, strict=True):
            children[name] = Child(name, engine, PART_S * scale)
        prepare(list(children.values()))
        url = f"http://127.0.0.1:{free_port()}"
        exporter = start_exporter(list(children.values()), url) if exporting else None
        observer = Observer(run, children, exporter, url)
        if exporting:
            observer.wait_for_exporter()
        load(run, children[NAMES[0]])
        left_s = DEADLINE_S - (time.time() - run.started) - 10  # to load server-b
        if left_s < LEAST_S:
            raise RuntimeError(f"loading took so long that only {left_s:.0f} s are left")
        scale = min(scale, left_s / sum(seconds for _, seconds, _ in PLAN))
        for name, seconds, modes in PLAN:
            observer.phase(name, seconds * scale, modes)
            if name == "load b":
                load(run, children[NAMES[1]])
                observer.phase("both parked", 2 * scale, {})
            observer.cycles()
    finally:
        if exporter is not None:
            exporter.kill()
            exporter.wait()
        for child in children.values():
            child.kill()


def load(run: Run, child: Child) -> None:
    """Load the model of a server."""
    print(f"{time.time() - run.started:6.1f} s  loading {child.name} ...", flush=True)
    child.send("load")
    run.loaded[child.name] = child.answer(LOAD_S)


def show(results: dict[str, Any]) -> None:
    """Print the results for people."""
    if results["problem"]:
        print(f"\nFAILED: {results['problem']}")
    print(
        f"\n{'joules per token':22} {'alone':>10} {'together':>10} {'ratio of the same tokens':>7}   per output token"
    )
    for name, mine in results["servers"].items():
        cells = [mine.get(title, {}).get("j_per_token") for title in ("alone", "together")]
        outputs = [mine.get(title, {}).get("j_per_output_token") for title in ("alone", "together")]
        numbers = " ".join(f"{_text(cell):>10}" for cell in cells)
        print(f"{name:22} {numbers} {_text(mine.get('ratio')):>7}   {' '.join(map(_text, outputs))}")
    for title, found in results.get("phases", {}).items():
        print(
            f"{title:8} truth {_text(found['truth_j'])} J, estimate {_text(found.get('estimate_j'))} "
            f"+- {_text(found.get('error_j'))} J, ratio {_text(found.get('ratio'))}"
        )
    for title, fitted in results.get("refitted", {}).items():
        parts = [] if fitted is None else [f"{key} {_text(value)}" for key, value in fitted.items()]
        print(f"fit of {title}: {', '.join(parts) or 'none'}")
    for name, joules in results.get("balance", {}).items():
        print(f"  {name:20} {joules:12.1f} J")
    for name, right in results["checks"].items():
        print(f"{'right' if right else 'WRONG' if right is False else 'NOT MEASURED'}: {name}")


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main() -> int:
    """Run, evaluate, write and print."""
    parser = argparse.ArgumentParser(description="joules per token of two servers, alone and together")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="write results and readings as JSON")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="multiply the length of all phases")
    parser.add_argument("--engine", choices=("torch", "sleep"), default="torch", help="sleep rehearses without a GPU")
    arguments = parser.parse_args()
    run = Run()
    try:
        record(run, ENGINES if arguments.engine == "torch" else ("sleep", "sleep"), arguments.scale,
               exporting=arguments.engine == "torch")  # fmt: skip
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        run.problem = f"{type(error).__name__}: {error}"
    results: dict[str, Any] = {"problem": run.problem, "checks": {}, "servers": {}}
    try:
        results = evaluate(run)
    finally:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps({"results": results, "run": asdict(run)}, separators=(",", ":")))
    show(results)
    return 0 if results["checks"] and all(results["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
