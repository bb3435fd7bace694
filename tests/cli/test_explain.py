"""`gpuledger explain`: each question, its evidence, and every way to ask it wrongly."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuledger.cli import main
from gpuledger.cli.demo import RECORDING
from tests.cli.running import COMMAND, gpuledger, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.providers.docker_server import FakeDocker, http, listed
from tests.owners.providers.kubelet_node import GPU, TRAIN, kubelet_node

VECTORS = Path(__file__).parents[1] / "owners" / "kernel" / "vectors"
CGROUPS = json.loads((VECTORS / "cgroup.json").read_text())
DEVICE_IDS = json.loads((VECTORS / "device_ids.json").read_text())["device_ids"]

C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
NOBODY = "--environment=none"
PID = 7
HOSTILE = "x\x1b]0;mine\x07\x1b[2J"
"""Would rename and clear a terminal."""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A host with two GPUs; this process is on the second, and pid 7 is on both."""
    processes = [Process(1, os.getpid()), Process(0, PID), Process(1, PID)]
    scenario = Scenario([Gpu(0, uuid="GPU-a"), Gpu(1, uuid="GPU-b")], processes)
    return surroundings(scenario.write(tmp_path / "scenario"))


def put_process(root: Path, cgroup: str) -> Path:
    """A /proc in which pid 7 is in this cgroup."""
    place = root / str(PID)
    place.mkdir(parents=True)
    (root / "stat").write_text("btime 1700000000\n")
    (place / "stat").write_text(f"{PID} (python3) S {' '.join(['0'] * 18)} 500 0 0\n")
    (place / "status").write_text("Name:\tpython3\nUid:\t0\t0\t0\t0\n")
    (place / "cgroup").write_text(cgroup)
    return root


@pytest.fixture
def docker() -> Iterator[FakeDocker]:
    """A daemon that knows one container."""
    with tempfile.TemporaryDirectory() as folder:
        server = FakeDocker(
            Path(folder),
            {
                "/version": http({"ApiVersion": "1.45"}),
                "/containers/json": http([listed(C, "ollama")]),
                "/containers/": http({}),
            },
        )
        yield server
        server.close()


def steps(text: str) -> dict[str, str]:
    """The numbered lines by their number."""
    return {line[0]: line[18:] for line in text.splitlines() if line[0].isdigit()}


def test_process_on_the_host(env: dict[str, str]) -> None:
    """Every step from the process to what is known of it, in order; nothing is on standard error."""
    done = gpuledger("explain", str(os.getpid()), NOBODY, env=env)

    told = steps(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(told) == ["1", "2", "3", "4", "5", "6", "7"]
    assert told["1"].startswith(f"{os.getpid()} ")
    assert f"uid {os.getuid()}" in told["1"]
    assert told["2"] == "GPU 1 (GPU-b)"
    assert told["3"] == Path("/proc/self/cgroup").read_text().strip().replace("\n", " | ")
    assert told["5"].startswith("none")
    assert told["6"]


def test_process_on_the_host_as_json(env: dict[str, str]) -> None:
    """The same in one object on one line."""
    done = gpuledger("explain", str(os.getpid()), "--json", NOBODY, env=env)

    (line,) = done.stdout.splitlines()
    said = json.loads(line)
    assert (said["pid"], said["gpus"], said["providers"]) == (os.getpid(), ["GPU-b"], [])
    assert said["facts"]["uid"] == os.getuid()
    assert said["facts"]["cgroup"] == Path("/proc/self/cgroup").read_text()
    assert {"runtime", "container_id", "unit", "job"} <= said["cgroup"].keys()
    assert {"container", "pod", "user", "reason"} <= said["owner"].keys()


def test_process_in_a_container(env: dict[str, str], tmp_path: Path, docker: FakeDocker) -> None:
    """The providers, what each of them reports, and the resulting owner."""
    root = put_process(tmp_path / "proc", f"0::/system.slice/docker-{C}.scope\n")
    flags = [f"--path.procfs={root}", NOBODY, f"--docker.host={docker.path}"]

    done = gpuledger("explain", str(PID), *flags, env=env)
    said = json.loads(gpuledger("explain", str(PID), "--json", *flags, env=env).stdout)

    assert steps(done.stdout)["2"] == "GPU 0 (GPU-a), GPU 1 (GPU-b)"
    assert f"container_id {C}" in steps(done.stdout)["4"]
    assert f"   docker: 1 containers, 0 pods, 0 allocations; knows container {C[:12]}\n" in done.stdout
    assert "   container      ollama\n" in done.stdout
    assert "missing" not in done.stdout
    assert (said["owner"]["container"], said["owner"]["image"], said["owner"]["reason"]) == ("ollama", "nginx:1", "")
    assert [(one["name"], one["up"]) for one in said["providers"]] == [("docker", True)]
    assert docker.count("/events") == 0


def test_process_of_a_recording() -> None:
    """Its owner, cgroup and GPU are those of the recording, also if this host has a process with the same number."""
    source = f"--source=replay:{RECORDING}"
    shown, missing = gpuledger("explain", "447", source), gpuledger("explain", "1", source)
    found = json.loads(gpuledger("explain", "447", source, "--json").stdout)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "1. the process    447 'python3'" in shown.stdout
    assert "2. the driver     GPU 0 (GPU-0" in shown.stdout
    assert "its memory map is not in a recording" in shown.stdout
    assert "5. providers      none: the names are in the recording" in shown.stdout
    assert "6. its owner      ml/llama-finetune-0/trainer" in shown.stdout
    assert found["owner"]["workload_name"] == "llama-finetune"
    assert len(found["gpus"]) == 1
    assert (missing.returncode, missing.stderr) == (1, f"gpuledger: there is no process 1 in {RECORDING}\n")


def test_container_inside_another(env: dict[str, str], tmp_path: Path, docker: FakeDocker) -> None:
    """With --owners.nested=inner the innermost container is the owner, and the one around it is shown."""
    inside = "7" * 64
    root = put_process(tmp_path / "proc", f"0::/system.slice/docker-{C}.scope/docker/{inside}\n")
    flags = [f"--path.procfs={root}", NOBODY, f"--docker.host={docker.path}"]

    by_default = gpuledger("explain", str(PID), *flags, env=env)
    done = gpuledger("explain", str(PID), *flags, "--owners.nested=inner", env=env)
    said = json.loads(gpuledger("explain", str(PID), "--json", *flags, "--owners.nested=inner", env=env).stdout)

    assert steps(by_default.stdout)["6"] == "ollama"
    assert steps(done.stdout)["6"] == inside[:12]
    assert "   outer          ollama\n" in done.stdout
    assert (said["cgroup"]["container_id"], said["cgroup"]["outer"]) == (inside, [C])
    assert said["owner"]["outer"]["container"] == "ollama"


def test_cgroup_of_a_container_inside_another(tmp_path: Path) -> None:
    """`--cgroup FILE` shows the outermost container, or the innermost with the ids around it."""
    file = tmp_path / "cgroup"
    file.write_text(f"0::/docker/{'5' * 64}/docker/{'6' * 64}/docker/{C}\n")

    outer, inner = (
        json.loads(gpuledger("explain", "--cgroup", str(file), "--json", f"--owners.nested={level}").stdout)
        for level in ("outer", "inner")
    )

    assert (outer["container_id"], outer["outer"]) == ("5" * 64, [])
    assert (inner["container_id"], inner["outer"]) == (C, ["5" * 64, "6" * 64])


def test_an_unknown_container(env: dict[str, str], tmp_path: Path, docker: FakeDocker) -> None:
    """A provider without the container and a provider that is down are told apart; what is missing is shown."""
    root = put_process(tmp_path / "proc", f"0::/system.slice/docker-{'0' * 64}.scope\n")

    done = gpuledger(
        "explain", str(PID), f"--path.procfs={root}", NOBODY, f"--docker.host={docker.path}",
        "--docker.host=/nowhere/podman.sock", env=env,
    )  # fmt: skip

    assert done.returncode == 0
    assert "   docker: 1 containers, 0 pods, 0 allocations; does not know it\n" in done.stdout
    assert "   podman: cannot open /nowhere/podman.sock: No such file or directory; `sudo systemctl" in done.stdout
    assert "   missing        container has no name yet\n" in done.stdout


def test_pod_from_the_kubelet_alone() -> None:
    """The pod is named by its device; explain shows which provider reports it, and what the name depends on."""
    with kubelet_node("llama-0") as node:
        done = gpuledger("explain", str(TRAIN), *node.flags, env=node.env)
        said = json.loads(gpuledger("explain", str(TRAIN), "--json", *node.flags, env=node.env).stdout)

    certain = f"by device: the kubelet allocated {GPU} to this pod alone; certain unless a process uses a GPU that was"
    assert steps(done.stdout)["6"] == "ml/llama-0/main"
    assert "   podresources: 0 containers, 0 pods, 1 allocations; knows the devices of pod ml/llama-0\n" in done.stdout
    assert f"   pod name       {certain} not allocated to its pod\n" in done.stdout
    assert said["pod_certainty"] == f"{certain} not allocated to its pod"


def test_two_pods_hold_the_gpu() -> None:
    """Neither is named, and explain tells why."""
    with kubelet_node("a", "b") as node:
        done = gpuledger("explain", str(TRAIN), *node.flags, env=node.env)

    assert "2 allocations; knows pods by their devices, not by uid\n" in done.stdout
    assert f"   pod name       unknown: 2 pods hold {GPU} (ml/a, ml/b); no name is guessed\n" in done.stdout
    assert "   missing        pod has no name yet\n" in done.stdout


def test_without_a_driver(tmp_path: Path) -> None:
    """Without a driver, explain does not claim that a process is on no GPU."""
    root = put_process(tmp_path / "proc", "0::/system.slice/ssh.service\n")

    done = gpuledger("explain", str(PID), f"--path.procfs={root}", NOBODY)

    assert done.returncode == 0
    assert steps(done.stdout)["2"].startswith("cannot be read: nvmlInit")
    assert "   unit           ssh.service\n" in done.stdout


def test_names_cannot_command_a_terminal(env: dict[str, str], tmp_path: Path) -> None:
    """Whoever may create a cgroup may call it anything; what is shown has no control characters in it."""
    root = put_process(tmp_path / "proc", f"0::/user.slice/{HOSTILE}\n")

    done = gpuledger("explain", str(PID), f"--path.procfs={root}", NOBODY, env=env)

    assert "\x1b" not in done.stdout
    assert r"x\x1b]0;mine\x07\x1b[2J" in steps(done.stdout)["3"]


@pytest.mark.parametrize("stdout", ["ascii", "utf-8:strict"])
def test_any_terminal_will_do(stdout: str) -> None:
    """An id that is no UTF-8, and a terminal that knows only ASCII, are no reason for a traceback."""
    words: list[str | bytes] = [*COMMAND, "explain", "--device-id", "gpü".encode() + b"\xff"]
    env = surroundings(PYTHONIOENCODING=stdout)

    done = subprocess.run(words, env=env, capture_output=True, timeout=30, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert "gpü\\udcff".encode() in done.stdout


def test_reader_that_left() -> None:
    """`explain | true` ends without a word."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "explain", "--device-id=0"], env=surroundings(), stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (1, b"")


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON of a question that must succeed."""
    assert main(["explain", "--json", *words]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    parsed: dict[str, Any] = json.loads(said.out)
    return parsed


@pytest.mark.parametrize("vector", [*CGROUPS["paths"][::6], *CGROUPS["files"]], ids=lambda v: str(v.get("n", "file")))
def test_cgroup_of_a_file(vector: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text of another host's /proc/PID/cgroup is parsed as on that host."""
    file = tmp_path / "cgroup"
    file.write_text(vector.get("content") or f"0::{vector['path']}\n")

    said = explained(capsys, "--cgroup", str(file))

    assert {key: said[key] for key in vector["expect"]} == vector["expect"]


@pytest.mark.parametrize("vector", DEVICE_IDS, ids=lambda v: str(v["id"]))
def test_device_id(vector: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Every form of device id that is known."""
    said = explained(capsys, f"--device-id={vector['id']}")

    assert {key: said[key] for key in vector["expect"]} == vector["expect"]
    assert said["raw"] == vector["id"]


def test_cgroup_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each thing that it may say; a dash for what it does not."""
    file = tmp_path / "cgroup"
    file.write_text(f"0::/system.slice/docker-{C}.scope\n")

    assert main(["explain", "--cgroup", str(file)]) == 0

    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["runtime"], lines["container_id"], lines["pod_uid"]) == ("docker", C, "-")


def test_device_id_as_text_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An id with a newline in it cannot pretend to say more than it does."""
    assert main(["explain", "--device-id", "a\nuuid  GPU-b"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("uuid")] == ["uuid        -"]
    assert r"a\nuuid  GPU-b" in lines[0]


def test_cgroup_of_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`ssh node cat /proc/7/cgroup | gpuledger explain --cgroup -`."""
    text = f"0::/docker/{C}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert explained(capsys, "--cgroup", "-")["container_id"] == C


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\n\n", b"\0" * 100_000, bytes(range(256)) * 400, b"0::" + b"/" * 3_000_000, b"0::/a\n" * 500_000],
    ids=["empty", "newlines", "zeros", "binary", "slashes", "lines"],
)
def test_files_that_are_no_cgroup(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They say nothing, soon, and nothing breaks."""
    file = tmp_path / "cgroup"
    file.write_bytes(data)

    assert explained(capsys, "--cgroup", str(file))["container_id"] is None


def test_huge_file_is_read_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    """One without end, even."""
    assert explained(capsys, "--cgroup", "/dev/zero")["container_id"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "explain takes exactly one of PID, --cgroup FILE or --device-id ID"),
        (["1", "--device-id=0"], "explain takes exactly one of PID, --cgroup FILE or --device-id ID"),
        (
            ["--cgroup=/proc/self/cgroup", "--device-id="],
            "explain takes exactly one of PID, --cgroup FILE or --device-id ID",
        ),
        (["1", "2"], "unexpected argument '2'; see gpuledger explain --help"),
        (["python"], "'python' is not a pid; pass a number, or --cgroup FILE"),
        ([""], "'' is not a pid; pass a number, or --cgroup FILE"),
        (["-1"], "'-1' is not a pid; pass a number, or --cgroup FILE"),
        (["1.5"], "'1.5' is not a pid; pass a number, or --cgroup FILE"),
        (["٣"], "'٣' is not a pid; pass a number, or --cgroup FILE"),
        (["9" * 5000], f"'{'9' * 60}' is not a pid; pass a number, or --cgroup FILE"),
        (["--cgroup"], "argument --cgroup: expected one argument; see gpuledger explain --help"),
        (["--cgroup", "/nowhere"], "--cgroup: cannot read /nowhere: No such file or directory"),
        (["--cgroup", "/proc"], "--cgroup: cannot read /proc: Is a directory"),
        (["--cgroup", "/" + "a" * 300], f"--cgroup: cannot read /{'a' * 300}: File name too long"),
        (["1", "--kubernetes.api"], "KUBERNETES_SERVICE_HOST is not set, so this is not a pod; give a kubeconfig file"),
    ],
)
def test_wrong_questions(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that says what would be right."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert main(["explain", *words]) == 2

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"gpuledger: {message}\n")


@pytest.mark.needs("setpriv")
def test_file_that_may_not_be_read(tmp_path: Path) -> None:
    """The error says why. Root reads everything, so it gives up that capability."""
    file = tmp_path / "cgroup"
    file.touch(mode=0)
    limit = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []

    done = subprocess.run(
        [*limit, *COMMAND, "explain", "--cgroup", str(file)], env=surroundings(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpuledger: --cgroup: cannot read {file}: Permission denied\n"


@pytest.mark.parametrize("pid", ["0", "2147483647", "4294967295"])
def test_no_such_process(pid: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, since the question was right: it may have ended a moment ago."""
    assert main(["explain", pid, NOBODY]) == 1

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"gpuledger: there is no process {pid} in /proc\n")
