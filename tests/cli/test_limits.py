"""Too much of everything, and runtimes on their worst days: the exporter as a user runs it, on the fake driver."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families
from prometheus_client.samples import Sample

from tests.cli.running import Running, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.providers.docker_server import Answer, FakeDocker, http, listed

MIB = 1 << 20
GPUS, PROCESSES, SHOWN = 8, 5000, 1000
FIRST_PID = 100_000
CONTAINERS = [f"{number:064x}" for number in range(1, 5)]
NOBODY = "--environment=none"
PROMPT_S = 1.8
"""For a scrape: less than the 2 s that a daemon has. It takes milliseconds, but other tests may be running."""


def put_process(root: Path, pid: int, container_id: str) -> None:
    """A process in a Docker container, as /proc shows it."""
    place = root / str(pid)
    place.mkdir(parents=True)
    (root / "stat").write_text("btime 1700000000\n")
    (place / "stat").write_text(f"{pid} (python3) S {' '.join(['0'] * 18)} 500 0 0\n")
    (place / "status").write_text("Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\n")
    (place / "cgroup").write_text(f"0::/system.slice/docker-{container_id}.scope\n")


class Crowd:
    """5,000 processes on 8 GPUs. The 400 with least memory are in 4 containers, all others are gone already."""

    def __init__(self, folder: Path) -> None:
        self.procfs = folder / "proc"
        self.memory: Counter[str] = Counter()
        """By container."""
        processes = []
        for number in range(PROCESSES):
            process = Process(gpu=number % GPUS, pid=FIRST_PID + number, memory=(number + 1) * MIB, sm=number % 2)
            processes.append(process)
            if number < 400:
                container_id = CONTAINERS[number % len(CONTAINERS)]
                put_process(self.procfs, process.pid, container_id)
                self.memory[container_id] += (number + 1) * MIB
        scenario = Scenario([Gpu(index) for index in range(GPUS)], processes)
        self.env = surroundings(scenario.write(folder / "scenario"))

    def once(self, *flags: str) -> dict[str, list[Sample]]:
        """All series by the name of their family, after two ticks."""
        flags = (f"--path.procfs={self.procfs}", NOBODY, "--tick.interval=100ms", *flags)
        done = gpuledger("once", *flags, env=self.env)
        assert done.returncode == 0, done.stderr
        return families(done.stdout)


def families(text: str) -> dict[str, list[Sample]]:
    """All series by the name of their family; fails on what Prometheus would refuse, duplicates too."""
    found = {family.name: list(family.samples) for family in text_families(text)}
    series = [(s.name, tuple(sorted(s.labels.items()))) for samples in found.values() for s in samples]
    assert len(series) == len(set(series))
    return found


def one(found: dict[str, list[Sample]], name: str) -> float:
    """The value of a family with one series."""
    (sample,) = found[name]
    return sample.value


@pytest.fixture
def crowd(tmp_path: Path) -> Crowd:
    """Too many for the default."""
    return Crowd(tmp_path)


def check_containers(crowd: Crowd, found: dict[str, list[Sample]]) -> None:
    """Their sums are right, whatever is shown of their processes."""
    memory: Counter[str] = Counter()
    processes: Counter[str] = Counter()
    for sample in found["container_gpu_memory_bytes"]:
        memory[sample.labels["container_id"]] += int(sample.value)
    for sample in found["container_gpu_processes"]:
        processes[sample.labels["container_id"]] += int(sample.value)
    assert memory == crowd.memory
    assert processes == dict.fromkeys(CONTAINERS, 100)


def test_processes_are_bounded_and_sums_are_not(crowd: Crowd) -> None:
    """The thousand that work, and hold most memory, are shown; the others are counted, and are in the sums."""
    found = crowd.once()

    shown = found["gpu_process_memory_used_bytes"]
    assert len(shown) == SHOWN
    assert {int(sample.labels["pid"]) for sample in shown} == set(range(FIRST_PID + 3001, FIRST_PID + 5000, 2))
    for name, samples in found.items():
        if name.startswith("gpu_process_"):
            assert len({(sample.labels["pid"], sample.labels["gpu"]) for sample in samples}) <= SHOWN, name
    assert one(found, "gpuledger_processes_dropped") == 4000 * one(found, "gpuledger_ticks")
    assert sum(sample.value for sample in found["gpu_processes"]) == PROCESSES
    assert {s.labels["reason"]: s.value for s in found["gpuledger_processes_unresolved"]} == {
        "process is gone": 4600, "container has no name yet": 400,
    }  # fmt: skip
    check_containers(crowd, found)


def test_limit_can_be_set(crowd: Crowd) -> None:
    """Lower, or so high that all are shown."""
    few, all_of_them = crowd.once("--process.max=10"), crowd.once("--process.max=10000")

    assert len(few["gpu_process_active"]) == 10
    assert len(all_of_them["gpu_process_active"]) == PROCESSES
    assert one(all_of_them, "gpuledger_processes_dropped") == 0
    check_containers(crowd, few)
    check_containers(crowd, all_of_them)


def test_processes_can_be_left_out(crowd: Crowd) -> None:
    """Not one series of a process, and containers as before."""
    found = crowd.once("--no-collector.process")

    assert [name for name in found if name.startswith("gpu_process_")] == []
    check_containers(crowd, found)


def test_crowd_is_served(crowd: Crowd) -> None:
    """Scrapes are answered while ticks go on; how long a tick takes is told, and no stage fails."""
    with serving("serve", f"--path.procfs={crowd.procfs}", NOBODY, env=crowd.env) as server:
        body = server.metrics("^gpuledger_ticks_total [2-9]")

        began = time.monotonic()
        server.get("/metrics")
        took_s = time.monotonic() - began

    found = families(body)
    assert took_s < PROMPT_S
    assert 0 < one(found, "gpuledger_tick_duration_seconds") < 5
    assert {s.labels["stage"]: s.value for s in found["gpuledger_stage_success"]} == {
        "read": 1, "resolve": 1, "book": 1,
    }  # fmt: skip
    check_containers(crowd, found)


def test_living_processes_among_many_dead_ones(tmp_path: Path) -> None:
    """On the real /proc: those that are there have a name and a start, those that are gone have their numbers."""
    dead = [Process(number % GPUS, 4_200_000 + number, memory=MIB) for number in range(PROCESSES)]
    living = [Process(0, pid, memory=1 << 40) for pid in (os.getpid(), os.getppid())]
    scenario = Scenario([Gpu(index) for index in range(GPUS)], dead + living).write(tmp_path / "scenario")

    done = gpuledger("once", NOBODY, "--tick.interval=100ms", env=surroundings(scenario))

    found = families(done.stdout)
    named = {sample.labels["pid"] for sample in found["gpu_process_active"] if sample.labels["process_name"]}
    assert named == {str(os.getpid()), str(os.getppid())}
    assert {sample.labels["pid"] for sample in found["gpu_process_start_time_seconds"]} == named
    assert len(found["gpu_process_active"]) == SHOWN


@pytest.mark.parametrize("pid", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_pids_that_no_process_has(pid: int, tmp_path: Path) -> None:
    """A driver may list such ones, for processes it may not show; they cost the others nothing."""
    processes = [Process(0, pid, memory=MIB), Process(0, os.getpid(), memory=MIB)]
    scenario = Scenario([Gpu(0)], processes).write(tmp_path / "scenario")

    done = gpuledger("once", NOBODY, "--tick.interval=100ms", env=surroundings(scenario))

    found = families(done.stdout)
    assert {s.labels["stage"]: s.value for s in found["gpuledger_stage_success"]}["resolve"] == 1
    assert str(os.getpid()) in {s.labels["pid"] for s in found["gpu_process_start_time_seconds"]}


# A Docker daemon that lies, hangs or babbles.

Daemon = Callable[..., FakeDocker]
NO_EVENTS = http({}, 403)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """Starts one that gives these answers."""
    with tempfile.TemporaryDirectory() as folder:
        servers: list[FakeDocker] = []

        def start(containers: Answer, events: Answer = NO_EVENTS) -> FakeDocker:
            answers = {
                "/events": events,
                "/version": http({"ApiVersion": "1.45"}),
                "/containers/json": containers,
                "/containers/": http({}),
            }
            servers.append(FakeDocker(Path(folder), answers))
            return servers[0]

        yield start
        for server in servers:
            server.close()


class Node:
    """One GPU, with a process of each container on it."""

    def __init__(self, folder: Path, containers: list[str]) -> None:
        self.procfs = folder / "proc"
        processes = []
        for pid, container_id in enumerate(containers, start=FIRST_PID):
            put_process(self.procfs, pid, container_id)
            processes.append(Process(0, pid, memory=MIB))
        self.env = surroundings(Scenario([Gpu(0)], processes).write(folder / "scenario"))

    def flags(self, docker: FakeDocker) -> list[str]:
        """With that daemon and no other."""
        return [NOBODY, f"--docker.host={docker.path}", f"--path.procfs={self.procfs}", "--tick.interval=200ms"]


HOSTILE = {
    "quotes and lines": ('quotes"} 1\nevil 1\n# HELP "\\', 'quotes"} 1\ufffdevil 1\ufffd# HELP "\\'),
    "newlines": ("\n\r\n\x0b\u2028", "\ufffd\ufffd\ufffd\ufffd\ufffd"),
    "zeros and escapes": ("a\0b\x1b[2J", "a\ufffdb\ufffd[2J"),
    "10 kB": ("x" * 10_000, "x" * 511),
    "half a character": ("\ud800a", "\ufffda"),
    "the end of a label": ("\\", "\\"),
    "other alphabets": ("模型-ü-🚀", "模型-ü-🚀"),
    "nothing": ("", ""),
}
"""Of each the name in Docker's list, where a slash stands before it, and as it is shown."""


def hostile_list() -> tuple[bytes, dict[str, str]]:
    """Docker's list of containers with all these names and one that is no UTF-8; the names as shown, by id."""
    shown, entries = {}, []
    for number, (name, expected) in enumerate(HOSTILE.values()):
        container_id = f"{number:064x}"
        shown[container_id] = expected
        entries.append(listed(container_id, name, Image=name, Labels={"com.docker.compose.project": name}))
    invalid = f"{len(HOSTILE):064x}"
    shown[invalid] = "raw-\ufffd\ufffd-bytes"
    body = json.dumps([*entries, listed(invalid, "raw-??-bytes")]).encode()
    return http(body.replace(b"??", b"\xff\xfe")), shown


@pytest.mark.parametrize("form", ["text/plain", "application/openmetrics-text"])
def test_hostile_names(form: str, tmp_path: Path, daemon: Daemon) -> None:
    """Whatever containers call themselves, both formats parse, and every name is on its own container."""
    answer, shown = hostile_list()
    docker, node = daemon(answer), Node(tmp_path, list(shown))

    with serving("serve", *node.flags(docker), env=node.env) as server:
        server.metrics('^container_gpu_processes{container="raw-')
        with urlopen(Request(f"{server.url}/metrics", headers={"Accept": form}), timeout=10) as response:
            assert response.headers["Content-Type"].startswith(form)
            body = response.read().decode()

    parsed = text_families(body) if form == "text/plain" else openmetrics_families(body)  # type: ignore[no-untyped-call]
    samples = {family.name: family.samples for family in parsed}
    assert {s.labels["container_id"]: s.labels["container"] for s in samples["container_gpu_processes"]} == shown
    assert not any(name.startswith("evil") for name in samples)


def hang(connection: socket.socket) -> None:
    """Say nothing until the other side has had enough."""
    with suppress(OSError):
        connection.recv(1)


def drip(connection: socket.socket) -> None:
    """A byte now and then, for ever."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


def babble(connection: socket.socket) -> None:
    """Chunks without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n[")
    while True:
        connection.sendall(b"100000\r\n" + b" " * MIB + b"\r\n")


def ordinary(name: str = "web") -> bytes:
    """What a healthy daemon would list."""
    return http([listed(CONTAINERS[0], name)])


TERRIBLE: dict[str, Answer] = {
    "hangs": hang,
    "hangs up": b"",
    "drips": drip,
    "garbage": bytes(range(256)) * 100,
    "not JSON": http(b"<html>Bad Gateway</html>"),
    "other JSON": http({"message": "no"}),
    "half a message": ordinary()[:-20],
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "50 MB": http(b"[" + b" " * 50_000_000 + b"]"),
    "without end": babble,
    "deep JSON": http(b"[" * 1_000_000),
    "500": http({"message": "on\nfire"}, 500),
}


@pytest.mark.parametrize("answer", TERRIBLE.values(), ids=TERRIBLE.keys())
def test_terrible_daemon(answer: Answer, tmp_path: Path, daemon: Daemon) -> None:
    """Scrapes and ticks keep their pace, the metric says that the daemon is down, and the container keeps its id."""
    docker, node = daemon(answer), Node(tmp_path, CONTAINERS[:1])

    with serving("serve", *node.flags(docker), env=node.env) as server:
        server.metrics("^gpuledger_ticks_total ")
        body, slowest_s = _until_it_failed(server)
        log = server.log.read_text()

    found = families(body)
    assert slowest_s < PROMPT_S
    assert one(found, "gpuledger_provider_up") == 0
    assert one(found, "gpuledger_tick_duration_seconds") < PROMPT_S
    assert one(found, "process_resident_memory_bytes") < 150 * MIB
    (container,) = found["container_gpu_processes"]
    assert (container.labels["container_id"], container.labels["container"]) == (CONTAINERS[0], "")
    (line,) = [line for line in log.splitlines() if "source=owners.provider" in line]
    assert "level=warn" in line
    assert len(line) < 1000


def _until_it_failed(server: Running) -> tuple[str, float]:
    """The metrics once they count a failure, and the seconds that the slowest scrape took until then."""
    slowest_s, deadline = 0.0, time.monotonic() + 15
    while (began := time.monotonic()) < deadline:
        body = server.get("/metrics")
        slowest_s = max(slowest_s, time.monotonic() - began)
        if re.search(r'^gpuledger_provider_failures_total\{provider="docker"\} [1-9]', body, re.MULTILINE):
            return body, slowest_s
        time.sleep(0.02)
    raise AssertionError(f"no failure is counted in:\n{body}")


def test_daemon_that_recovers_and_fails_again(tmp_path: Path, daemon: Daemon) -> None:
    """Its names come when it does, and stay when it goes; the log has a line for each of the three."""
    changed = threading.Event()

    def events(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        changed.wait(10)
        connection.sendall(b"2\r\n{}\r\n")
        hang(connection)

    docker, node = daemon(TERRIBLE["garbage"], events), Node(tmp_path, CONTAINERS[:1])

    with serving("serve", *node.flags(docker), env=node.env) as server:
        server.metrics('^gpuledger_provider_failures_total{provider="docker"} [1-9]')
        docker.answers["/containers/json"] = ordinary("web")
        server.metrics('^container_gpu_processes{container="web"')
        docker.answers["/containers/json"] = TERRIBLE["garbage"]
        changed.set()
        body = server.metrics('^gpuledger_provider_up{provider="docker"} 0')
        log = server.log.read_text()

    assert 'container_gpu_processes{container="web"' in body
    told = [line for line in log.splitlines() if "source=owners.provider" in line]
    assert [("answers again" in line, "level=warn" in line) for line in told] == [
        (False, True), (True, False), (False, True),
    ]  # fmt: skip


def test_hanging_stream_of_events_costs_no_names(tmp_path: Path, daemon: Daemon) -> None:
    """A daemon whose events never come is asked all the same."""
    docker, node = daemon(ordinary("web"), events=hang), Node(tmp_path, CONTAINERS[:1])

    with serving("serve", *node.flags(docker), env=node.env) as server:
        server.metrics('^container_gpu_processes{container="web"')
        body = server.metrics(r"^gpuledger_ticks_total ([5-9]|\d{2,})$")

    found = families(body)
    assert one(found, "gpuledger_provider_up") == 1


def test_ten_thousand_containers(tmp_path: Path, daemon: Daemon) -> None:
    """More than a host can run; the one on the GPU has its name, soon, whatever can be learnt of the others."""
    entries = [listed(f"{number:064x}", f"c{number}") for number in range(9_999)]
    docker, node = daemon(http(entries)), Node(tmp_path, [f"{4711:064x}"])

    with serving("serve", *node.flags(docker), env=node.env) as server:
        body = server.metrics('^container_gpu_processes{container="c4711"')

    found = families(body)
    assert one(found, "gpuledger_tick_duration_seconds") < PROMPT_S
    assert {s.labels["stage"]: s.value for s in found["gpuledger_stage_success"]}["resolve"] == 1
