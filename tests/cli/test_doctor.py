"""`gpuledger doctor`, as a real process: each fault that a host can have is found, and no other with it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuledger.storage.journalfile import JournalFile
from gpuledger.tools.doctor.finding import LEVELS, exit_code
from tests import fakedcgm, fakedriver
from tests.cli.examinations import FAST, FOUND_HERE, examined, examined_in, healthy, only
from tests.cli.running import COMMAND, gpuledger, serving, surroundings
from tests.components import NAMESPACE
from tests.fakedriver import Mig, Scenario
from tests.owners.providers.api_server import ApiServer, status
from tests.owners.providers.docker_server import FakeDocker, http, listed
from tests.owners.providers.kubelet_server import CriServer, KubeletServer
from tests.waiting import free_port

LISTS = [f"error nvmlDeviceGet{kind}RunningProcesses*" for kind in ("Compute", "Graphics", "MPSCompute")]
C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
NO_SUCH_PID = (1 << 22) + 7
"""More than the kernel gives out."""


def test_a_healthy_host_is_clean(tmp_path: Path) -> None:
    """Nothing is made up: no warning, no problem, exit code 0."""
    code, faults = examined(healthy(), tmp_path)

    assert faults == {}
    assert code == exit_code(FOUND_HERE)


def _set_clock(scenario: Scenario, seconds: float) -> None:
    """Stop the driver's clock there; a counter would stand still, too."""
    scenario.clock = seconds
    for gpu in scenario.gpus:
        gpu.energy_mj = "none"


def _forbid_instances(scenario: Scenario) -> None:
    scenario.gpus[1].mig = 1
    scenario.migs = [Mig(1, gi=1)]
    scenario.extra += [f"{one} gpu=1 code=4" for one in LISTS]


@pytest.mark.parametrize(
    ("change", "name", "level", "fix"),
    [
        (lambda s: s.extra.append("unloaded"), "driver", "problem", "sudo modprobe nvidia"),
        (lambda s: s.extra.append("error nvmlInit* code=18"), "driver", "problem", "sudo rmmod nvidia_uvm"),
        (lambda s: s.extra.append("hang nvmlInit*"), "driver", "problem", "sudo dmesg"),
        (lambda s: s.extra.append("latency nvmlInit* us=2600000"), "driver start", "warning", "nvidia-smi -pm 1"),
        (lambda s: s.gpus.clear(), "driver", "problem", "nvidia-smi -L"),
        (lambda s: s.extra.append("lost 1"), "gpu 1", "problem", "nvidia-smi --gpu-reset -i 1"),
        (lambda s: s.extra.append("error nvmlDeviceGetUUID gpu=1 code=16"), "gpu 1", "problem", "--gpu-reset -i 1"),
        (lambda s: s.extra.append("hang nvmlDeviceGetMemoryInfo_v2 gpu=0"), "gpu 0", "problem", "sudo dmesg"),
        (lambda s: s.extra.extend(f"{one} gpu=1 code=3" for one in LISTS), "gpu 1", "warning", "nvidia-smi --query"),
        (
            lambda s: s.extra.append("error nvmlDeviceGetTotalEnergyConsumption gpu=1 code=999"),
            "driver", "warning", "nvidia-smi",
        ),
        (lambda s: setattr(s.gpus[1], "memory_used", 3 << 30), "gpu 1", "warning", "sudo fuser -v"),
        (lambda s: setattr(s.processes[0], "memory", "na"), "memory", "warning", "nvidia-smi"),
        (lambda s: setattr(s.processes[0], "pid", NO_SUCH_PID), "processes", "warning", "--path.procfs=/host/proc"),
        (lambda s: setattr(s, "driver", "470.57.02"), "versions", "warning", "R510"),
        (lambda s: _set_clock(s, 1_700_000_000.5), "clock", "warning", "timedatectl"),
        (lambda s: _set_clock(s, time.time() + 3600), "clock", "warning", "timedatectl"),
        (lambda s: setattr(s.gpus[1], "energy_at", 4e9), "gpu 1", "warning", "reset the GPU"),
        (lambda s: setattr(s.gpus[1], "mig", 1), "mig of gpu 1", "warning", "nvidia-smi mig -lgi"),
        (
            _forbid_instances,
            "mig of gpu 1", "problem", "NVIDIA_MIG_MONITOR_DEVICES=all",
        ),
    ],
    ids=[
        "unloaded", "replaced", "init-hangs", "init-slow", "no-gpu", "lost", "reset-required", "call-hangs", "no-lists",
        "call-fails", "unknown-memory", "memory-not-told", "not-in-proc", "old-driver", "clock-behind", "clock-ahead",
        "counter-stuck", "mig-empty", "mig-rights",
    ],
)  # fmt: skip
def test_faults_of_the_driver(
    change: Callable[[Scenario], object], name: str, level: str, fix: str, tmp_path: Path
) -> None:
    """Each is found under its name, with the command that helps, and nothing else is."""
    scenario = healthy()
    change(scenario)

    code, faults = examined(scenario, tmp_path)

    found, how_bad, _, remedy = only(faults)
    assert (found, how_bad) == (name, level)
    assert fix in remedy
    assert code == max(exit_code(FOUND_HERE), LEVELS.index(level))


def test_instances_that_can_be_read_are_fine(tmp_path: Path) -> None:
    """MIG with all rights."""
    scenario = healthy()
    scenario.gpus[1].mig = 1
    scenario.migs = [Mig(1, gi=1), Mig(1, gi=2)]

    assert examined(scenario, tmp_path)[1] == {}


def test_no_library(tmp_path: Path) -> None:
    """A container without its GPUs."""
    code, faults = examined(None, tmp_path)

    assert only(faults)[:2] == ("driver", "problem")
    assert "docker run --gpus all" in only(faults)[3]
    assert code == 2


def dcgm_env(scenario: Scenario, folder: Path, *lines: str) -> dict[str, str]:
    """Both libraries."""
    driver = fakedriver.environment(scenario.write(folder / "scenario"))
    both = fakedcgm.environment(fakedcgm.write(folder / "dcgm", *lines), driver["LD_LIBRARY_PATH"])
    return surroundings(None, **(driver | both))


def test_dcgm(tmp_path: Path) -> None:
    """Accounting mode off is a warning where DCGM needs it, and its library missing a problem."""
    lines = ("gpu 0 GPU-a", "gpu 1 GPU-b", f"pid {os.getpid()} gpu=0 energy_mj=5")
    scenario = healthy()
    scenario.gpus[0].accounting = scenario.gpus[1].accounting = 1
    _, fine = examined_in(dcgm_env(scenario, tmp_path, *lines), "--collector.dcgm")
    _, missing = examined(scenario, tmp_path, "--collector.dcgm", "--dcgm.library=/nowhere/libdcgm.so.4")
    scenario.gpus[1].accounting = 0
    _, off = examined_in(dcgm_env(scenario, tmp_path, *lines), "--collector.dcgm")

    assert fine == {}
    assert only(missing)[:2] == ("dcgm", "problem")
    assert "--dcgm.library" in only(missing)[3]
    assert only(off)[:2] == ("accounting", "warning")
    assert "on GPU 1," in only(off)[2]
    assert "sudo nvidia-smi -am 1" in only(off)[3]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """By another program it is a problem, by a gpuledger that runs it is not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, faults = examined(healthy(), tmp_path, f"--web.listen-address=127.0.0.1:{port}")
    with serving("serve", "--environment=none", env=surroundings(healthy().write(tmp_path / "scenario"))) as running:
        running.metrics("^gpuledger_up 1")
        _, ours = examined(healthy(), tmp_path, f"--web.listen-address={running.url.removeprefix('http://')}")

    assert only(faults)[:3] == (
        f"listen 127.0.0.1:{port}", "problem", f"cannot listen on 127.0.0.1:{port}: address already in use",
    )  # fmt: skip
    assert f"ss -ltnp 'sport = :{port}'" in only(faults)[3]
    assert code == 2
    assert ours == {}


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short name, since the path of a socket has 107 characters at most."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextlib.contextmanager
def talking(path: Path, answer: bytes | None) -> Iterator[Path]:
    """A server on a socket that sends this to every client, or never anything."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        kept = []

        def talk() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    kept.append(connection)
                    if answer is not None:
                        connection.recv(65536)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in kept:
            connection.close()


SOCKETS = [
    ("--docker.host={}", "docker"),
    ("--cri.socket={}", "container runtime"),
    ("--pod-resources-socket={}", "kubelet"),
]


def on_a_node(flag: str, folder: Path) -> list[str]:
    """The flag, and what else is needed so that only this provider is used and everything else is well."""
    return [flag, "--environment=kubernetes", f"--cri.socket={folder}/c.sock"] if "pod-resources" in flag else [flag]


@pytest.fixture
def runtime(folder: Path) -> Iterator[Path]:
    """A container runtime that is well."""
    with CriServer(folder / "c.sock"):
        yield folder


@pytest.mark.parametrize(("flag", "name"), SOCKETS)
def test_sockets_that_are_missing(flag: str, name: str, runtime: Path, tmp_path: Path) -> None:
    """StateLog with how to start whoever should be there."""
    _, faults = examined(healthy(), tmp_path, *on_a_node(flag.format("/nowhere/x.sock"), runtime))

    found, level, text, fix = only(faults)
    assert (found, level) == (name, "problem")
    assert "/nowhere/x.sock: No such" in text
    assert "sudo systemctl start" in fix


@pytest.mark.parametrize(("flag", "name"), SOCKETS)
@pytest.mark.parametrize("answer", [b"\x00\xff garbage \r\n\r\n" * 20, None], ids=["garbage", "hangs"])
def test_sockets_that_talk_nonsense_or_not_at_all(
    flag: str, name: str, answer: bytes | None, runtime: Path, tmp_path: Path
) -> None:
    """Whoever never answers does not keep the doctor."""
    with talking(runtime / "x.sock", answer) as path:
        _, faults = examined(healthy(), tmp_path, *on_a_node(flag.format(path), runtime))

    found, level, text, _ = only(faults)
    assert (found, level) == (name, "problem")
    assert ("answer" in text) if answer is None else ("did not answer in HTTP" in text or "not speak gRPC" in text)


@pytest.mark.needs("root", "setpriv")
@pytest.mark.parametrize(("flag", "name"), SOCKETS)
def test_sockets_of_another_user(flag: str, name: str, runtime: Path, tmp_path: Path) -> None:
    """Root without its capabilities on files stands for any user."""
    limit = ["setpriv", "--bounding-set=-dac_override"]
    runtime.chmod(0o755)
    with talking(runtime / "x.sock", b"") as path:
        os.chown(path, 65534, 65534)
        path.chmod(0o600)
        _, faults = examined(healthy(), tmp_path, *on_a_node(flag.format(path), runtime), before=limit)

    found, level, text, fix = only(faults)
    assert (found, level) == (name, "problem")
    assert "Permission denied" in text
    assert "usermod -aG docker" in fix or "run as root" in fix


def test_a_node_that_is_well(runtime: Path, tmp_path: Path) -> None:
    """Docker, the runtime, the kubelet and the API server answer."""
    docker = FakeDocker(runtime, {"/version": http({"ApiVersion": "1.45"}), "/containers/json": http([])})
    with KubeletServer(runtime / "k.sock"), contextlib.closing(ApiServer()) as api, contextlib.closing(docker):
        kubeconfig = write_kubeconfig(runtime, api)
        _, faults = examined(
            healthy(), tmp_path, "--environment=kubernetes", f"--docker.host={docker.path}",
            f"--cri.socket={runtime}/c.sock", f"--pod-resources-socket={runtime}/k.sock",
            "--kubernetes.api", f"--kubernetes.kubeconfig={kubeconfig}", "--kubernetes.node-name=n1",
        )  # fmt: skip

    assert faults == {}


def write_kubeconfig(folder: Path, api: ApiServer, token: str = "t") -> Path:
    """For this server."""
    path = folder / "kubeconfig"
    path.write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
        f"clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{api.port}'}}}}]\n"
        f"users: [{{name: u, user: {{token: {token}}}}}]\n"
    )
    return path


def test_rights_at_the_api_server(tmp_path: Path) -> None:
    """Refused, it says what to ask kubectl; without a cluster, what `serve` would say, and all else is checked."""
    with contextlib.closing(ApiServer()) as api:
        api.answers.extend([status(403, "pods is forbidden")] * 20)
        flags = (f"--kubernetes.kubeconfig={write_kubeconfig(tmp_path, api)}", "--kubernetes.node-name=n1")
        _, refused = examined(healthy(), tmp_path, "--kubernetes.api", *flags)
    _, nowhere = examined(healthy(), tmp_path, "--kubernetes.api")

    assert only(refused)[:2] == ("api server", "problem")
    assert "kubectl auth can-i watch pods" in only(refused)[3]
    assert only(nowhere) == (
        "settings", "problem", "KUBERNETES_SERVICE_HOST is not set, so this is not a pod", "give a kubeconfig file",
    )  # fmt: skip


def test_a_container_without_a_name(tmp_path: Path) -> None:
    """Its socket is not mounted, so no provider is down: the process without a name shows it."""
    _, faults = examined(healthy(), tmp_path, f"--path.procfs={put_proc(tmp_path / 'proc')}")

    assert only(faults)[:3] == ("owners", "warning", "1 process: container has no name yet")
    assert "gpuledger explain PID" in only(faults)[3]


def test_a_node_of_minikube(tmp_path: Path) -> None:
    """A process on a GPU in a pod of minikube, which is a container of Docker: the flag makes the pod the owner."""
    inside = f"/kubepods.slice/kubepods-pod{C[:32]}.slice/docker-{C[::-1]}.scope"
    flags = [f"--path.procfs={put_proc(tmp_path / 'proc', inside)}"]
    (tmp_path / "proc" / str(os.getpid()) / "root").mkdir()

    _, by_default = examined(healthy(), tmp_path, *flags)
    _, inner = examined(healthy(), tmp_path, *flags, "--owners.nested=inner")

    assert by_default["nested"][1] == f"container {C[:12]} is a node of Kubernetes: it owns the processes of its pods"
    assert "--owners.nested=inner" in by_default["nested"][2]
    assert only(inner)[:3] == ("owners", "warning", "1 process: pod has no name yet")


def put_proc(root: Path, inside: str = "") -> Path:
    """A /proc in which this process is in a container of Docker, or `inside` it."""
    for pid in (1, os.getpid()):
        place = root / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} (train.py) S {' '.join(['0'] * 18)} 500 0 0\n")
        (place / "status").write_text("Name:\ttrain.py\nUid:\t0\t0\t0\t0\n")
        (place / "cgroup").write_text(f"0::/system.slice/docker-{C}.scope{inside}\n" if pid > 1 else "0::/init.scope\n")
        (place / "cmdline").write_text("train.py\0--password\0on-the-command-line\0")
        (place / "environ").write_text("NVIDIA_VISIBLE_DEVICES=all\0KEY=in-the-environment\0")
    (root / "stat").write_text("btime 1700000000\n")
    return root


def test_an_invalid_procfs(tmp_path: Path) -> None:
    """A folder that is no /proc, and one without the host's first process."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text("btime 1700000000\n")

    _, none = examined(healthy(), tmp_path, f"--path.procfs={empty}")
    _, other = examined(healthy(), tmp_path, f"--path.procfs={tmp_path}/proc")

    assert only(none)[:2] == ("settings", "problem")
    assert only(other)[:2] == ("proc cgroup", "problem")


@pytest.mark.needs("ptrace", "host-pids", "pid-namespaces", "setpriv")
@pytest.mark.parametrize(
    ("before", "name", "level", "fix"),
    [
        ([*NAMESPACE], "pid namespace", "problem", "docker run --pid=host"),
        (["setpriv", "--bounding-set=-sys_ptrace"], "proc maps", "warning", "--cap-add SYS_PTRACE"),
        (["setpriv", "--bounding-set=-dac_read_search"], "proc environ", "warning", "--cap-add DAC_READ_SEARCH"),
    ],
)
def test_what_a_container_runtime_takes_away(
    before: list[str], name: str, level: str, fix: str, tmp_path: Path
) -> None:
    """For real, and nothing else is found wrong for it."""
    code, faults = examined(healthy(), tmp_path, before=before)

    assert only(faults)[:2] == (name, level)
    assert fix in only(faults)[3]
    assert code == (2 if level == "problem" else 1)


def test_journals(tmp_path: Path) -> None:
    """One that cannot be written, one that is damaged, one of another gpuledger; a good one leaves nothing behind."""
    place = tmp_path / "run"
    place.mkdir()
    good = place / "journal"
    _, fine = examined(healthy(), tmp_path, f"--journal.path={good}")
    left = list(place.iterdir())
    _, unwritable = examined(healthy(), tmp_path, "--journal.path=/nowhere/gpuledger/journal")
    _, folder = examined(healthy(), tmp_path, f"--journal.path={place}")
    good.write_text("half")
    _, damaged = examined(healthy(), tmp_path, f"--journal.path={good}")
    other = JournalFile(str(good))
    other.lock()
    _, locked = examined(healthy(), tmp_path, f"--journal.path={good}")
    other.close()

    assert (fine, left) == ({}, [])
    assert only(unwritable)[:2] == ("journal", "problem")
    assert "sudo install -d -o" in only(unwritable)[3]
    assert only(folder)[:2] == ("journal", "problem")
    assert only(damaged)[:2] == ("journal", "warning")
    assert only(locked)[:2] == ("journal", "problem")
    assert good.read_text() == "half"


def test_journal_and_port_of_the_exporter_that_runs(tmp_path: Path) -> None:
    """The doctor is mostly called beside a running exporter, which is no fault."""
    flags = ("--environment=none", f"--journal.path={tmp_path}/journal")
    with serving("serve", *flags, env=surroundings(healthy().write(tmp_path / "scenario"))) as running:
        running.metrics("^gpuledger_up 1")
        address = running.url.removeprefix("http://")
        _, faults = examined(healthy(), tmp_path, *flags, f"--web.listen-address={address}")

    assert faults == {}


def test_dcgm_exporter(folder: Path, tmp_path: Path) -> None:
    """Reachable or not, by page and by file."""
    port = free_port()
    _, closed = examined(healthy(), tmp_path, f"--dcgm-exporter.url=http://127.0.0.1:{port}/metrics")
    file = folder / "dcgm.prom"
    file.write_text('# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 5\n')
    _, fine = examined(healthy(), tmp_path, f"--dcgm-exporter.url={file}")
    _, missing = examined(healthy(), tmp_path, f"--dcgm-exporter.url={folder}/none.prom")
    _, short = examined(healthy(), tmp_path, f"--dcgm-exporter.url={file}", "--dcgm-exporter.max-age=5s")

    assert fine == {}
    assert only(closed)[:2] == only(missing)[:2] == only(short)[:2] == ("dcgm-exporter", "problem")
    assert f"curl -i http://127.0.0.1:{port}/metrics" in only(closed)[3]
    assert "max-age" in only(short)[2]


def test_dcgm_exporter_that_hangs(tmp_path: Path) -> None:
    """However long it may take while serving, the doctor does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        _, faults = examined(healthy(), tmp_path, f"--dcgm-exporter.url={url}", "--dcgm-exporter.timeout=60s")

    assert only(faults)[:2] == ("dcgm-exporter", "problem")


def test_everything_hangs_at_once(runtime: Path, tmp_path: Path) -> None:
    """The driver, a socket and a page, with the longest timeouts: three findings, in time."""
    scenario = healthy()
    scenario.extra.append("hang nvmlInit*")
    with talking(runtime / "x.sock", None) as path, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        code, faults = examined(
            scenario, tmp_path, f"--docker.host={path}", f"--dcgm-exporter.url={url}",
            "--dcgm-exporter.timeout=60s", "--driver.timeout=60s",
        )  # fmt: skip

    assert set(faults) == {"driver", "docker", "dcgm-exporter"}
    assert code == 2


def test_recordings(tmp_path: Path) -> None:
    """The driver is not looked at; a recording that is none is a problem."""
    (tmp_path / "not.jsonl.gz").write_text("no")
    demo = Path(__file__).parents[2] / "src" / "gpuledger" / "demo.jsonl.gz"

    code, fine = examined(None, tmp_path, f"--source=replay:{demo}")
    _, none = examined(None, tmp_path, f"--source=replay:{tmp_path}/not.jsonl.gz")

    assert (code, fine) == (0, {})
    assert only(none)[:2] == ("source", "problem")


def test_lines_for_people(tmp_path: Path) -> None:
    """Level, name and text in columns, the fix below, the count at the end; no colour into a pipe."""
    scenario = healthy()
    scenario.extra.append("lost 1")
    done = gpuledger("doctor", *FAST, env=surroundings(scenario.write(tmp_path / "scenario")))

    lines = done.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("problem  gpu 1 ")]
    assert lines[at].endswith("cannot be read: GPU is lost")
    assert lines[at + 1].strip().startswith("fix: `sudo nvidia-smi --gpu-reset -i 1`")
    assert re.fullmatch(r"\d+ ok, \d+ warnings?, \d+ problems?", lines[-1])
    assert "\x1b" not in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_colour_on_a_terminal(variables: dict[str, str], *, coloured: bool, tmp_path: Path) -> None:
    """As no-color.org has it."""
    ours, theirs = pty.openpty()
    env = surroundings(healthy().write(tmp_path / "scenario"), **variables)
    with subprocess.Popen([*COMMAND, "doctor", *FAST], env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while data := os.read(ours, 65536):
                said += data
        process.wait(timeout=20)
    os.close(ours)

    assert (b"\x1b[32mok" in said) is coloured
    assert b" ok, " in said


SECRETS = ("hunter2", "s3cr3t-query", "kube-token-77", "in-the-environment", "on-the-command-line")
NAMES = ("payroll-llm", C, "secret-registry.example/llm", "GPU-5eed5eed", "node-of-acme", "train.py")


def unpacked(path: Path) -> dict[str, str]:
    """The files of an archive."""
    with tarfile.open(path) as archive:
        files: dict[str, Any] = {one.name: archive.extractfile(one) for one in archive}
        return {name.rpartition("/")[2]: file.read().decode() for name, file in files.items()}


def test_bundle_tells_no_secrets_and_no_names(folder: Path, tmp_path: Path) -> None:
    """Whatever was planted is nowhere in it; what is the same stays the same, and what helps is there."""
    names = {
        "/version": http({"ApiVersion": "1.45"}),
        "/containers/json": http([listed(C, "payroll-llm") | {"Image": "secret-registry.example/llm"}]),
        "/containers/": http({}),
    }
    scenario = healthy()
    scenario.gpus[0].uuid = "GPU-5eed5eed"
    scenario.extra.append("lost 1")
    env = surroundings(scenario.write(tmp_path / "scenario"), MY_PASSWORD="in-the-environment",
                       DOCKER_HOST="tcp://me:hunter2@127.0.0.1:9")  # fmt: skip
    bundle = tmp_path / "bundle.tar.gz"
    with (
        contextlib.closing(FakeDocker(folder, names)) as docker,
        contextlib.closing(ApiServer()) as api,
    ):
        api.answers.extend([status(403, "User system:serviceaccount:payroll-llm:x, token=kube-token-77")] * 20)
        done = gpuledger(
            "doctor", *FAST, f"--bundle={bundle}", f"--path.procfs={put_proc(tmp_path / 'proc')}",
            f"--docker.host={docker.path}",
            "--dcgm-exporter.url=http://127.0.0.1:9/metrics?key=s3cr3t-query", "--kubernetes.api",
            f"--kubernetes.kubeconfig={write_kubeconfig(folder, api, 'kube-token-77')}",
            "--kubernetes.node-name=node-of-acme", env=env,
        )  # fmt: skip

    files = unpacked(bundle)
    assert done.returncode == 2
    assert set(files) == {"doctor.json", "config.yaml", "versions.json", "metrics.prom", "log.txt"}
    for name, text in files.items():
        assert [planted for planted in (*SECRETS, *NAMES) if planted in text] == [], name
        assert re.search(rf"\b{re.escape(os.uname().nodename)}\b", text) is None, name
    series = [line for line in files["metrics.prom"].splitlines() if line.startswith("gpu_process_memory_used_bytes")]
    (token,) = {part.split('"')[1] for line in series for part in line.split(",") if part.startswith("container=")}
    assert f'container_gpu_memory_bytes{{container="{token}"' in files["metrics.prom"]
    assert json.loads(files["versions.json"])["driver"] == "580.159.04"
    assert "GPU is lost" in files["doctor.json"]
    assert "GPU 1 is down" in files["log.txt"]
    assert "pod-resources-socket" in files["config.yaml"]


def test_tokens_are_of_one_bundle(tmp_path: Path) -> None:
    """Else one could try likely names."""
    env = surroundings(healthy().write(tmp_path / "scenario"))
    for name in ("a", "b"):
        gpuledger("doctor", *FAST, f"--bundle={tmp_path}/{name}", env=env)

    first, second = (
        next(line for line in unpacked(tmp_path / name)["metrics.prom"].splitlines() if line.startswith("gpu_up"))
        for name in ("a", "b")
    )
    assert first != second


def test_bundle_that_cannot_be_written(tmp_path: Path) -> None:
    """The findings are told all the same; one line says why, and nothing is left."""
    done = gpuledger("doctor", *FAST, "--bundle=/nowhere/b.tar.gz", env=surroundings())

    assert done.returncode == 2
    assert "problem  driver" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("gpuledger: cannot write /nowhere/b.tar.gz")
    assert list(tmp_path.iterdir()) == []
