"""Tenants that want another one to pay: nothing that a tenant can choose decides a bill."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Running
from tests.components import USER_NAMESPACE, program
from tests.hostile.tenants import ATTACKER, VICTIM, cgroup, exporter, nested, process
from tests.owners.providers.docker_server import FakeDocker, http, listed
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("root", "cgroups")

LINE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
POD = "7f2c1a9e-3b64-4d0f-9a51-c8e20d7b4f13"
SERVER = "nvidia-cuda-mps-server"
SECRET = "hunter2"


def series(body: str, name: str, **wanted: object) -> list[tuple[dict[str, str], float]]:
    """The series of a metric with these labels."""
    found = [(dict(LABEL.findall(line["labels"])), float(line["value"]))
             for line in LINE.finditer(body) if line["name"] == name]  # fmt: skip
    return [(labels, value) for labels, value in found if all(labels.get(k) == str(v) for k, v in wanted.items())]


def billed(running: Running, pid: int, least_j: float = 200.0) -> tuple[dict[str, str], str]:
    """The owner of a process after it was billed this many joules, and all metrics."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        body = running.metrics(rf'^gpu_process_energy_joules_total\{{.*pid="{pid}"')
        bills = series(body, "gpu_process_energy_joules_total", pid=pid)
        if sum(value for _, value in bills) >= least_j:
            return series(body, "gpu_process_info", pid=pid)[0][0], body
        time.sleep(0.1)
    raise AssertionError(f"{pid} is not billed:\n{body}")


@contextmanager
def daemon(uid: int, *containers: dict[str, Any]) -> Iterator[str]:
    """A Docker daemon in a directory of this user that lists these containers: its URL."""
    with tempfile.TemporaryDirectory(prefix="daemon-") as text:
        os.chown(text, uid, uid)
        lists = {"/version": http({"ApiVersion": "1.45"}), "/containers/json": http(list(containers))}
        server = FakeDocker(Path(text), lists | {"/json": http({})})
        try:
            yield f"unix://{server.path}"
        finally:
            server.close()


@pytest.mark.parametrize(
    "kind",
    [
        "user",
        "root in a container",
        pytest.param("root in a user namespace", marks=pytest.mark.needs("user-namespaces")),
    ],
)
def test_mps_server_by_name(kind: str) -> None:
    """A process takes the name of the MPS server: it keeps its energy, and other tenants get none of it."""
    dropped = (program("setpriv"), "--bounding-set=-sys_admin", "--inh-caps=-all")
    in_namespace = (*dropped, *USER_NAMESPACE)
    uid, prefix = {"user": (ATTACKER, ()), "root in a container": (0, dropped)}.get(kind, (0, in_namespace))
    with (
        cgroup(f"docker/{secrets.token_hex(32)}") as folder,
        process(folder, uid=uid, name=SERVER, prefix=prefix) as attacker,
        process(uid=VICTIM) as victim,
        exporter(**{f"p{attacker}": 90, f"p{victim}": 0}) as running,
    ):
        _, body = billed(running, attacker)

    methods = {labels["method"] for labels, _ in series(body, "gpu_process_energy_joules_total", pid=victim)}
    assert methods <= {"parked"}


def test_mps_server_of_root() -> None:
    """Root starts an MPS server: its clients get its energy."""
    with (
        process(name=SERVER) as server,
        process(uid=VICTIM) as client,
        exporter(**{f"p{server}": 90, f"p{client}": 0}) as running,
    ):
        billed(running, client)
        body = running.metrics(rf'^gpu_process_energy_joules_total\{{pid="{client}".*method="mps"')

    assert not series(body, "gpu_process_energy_joules_total", pid=server, method="sm_time")


@pytest.mark.parametrize(
    "forged",
    [
        "docker-{victim}.scope",
        "docker/{victim}",
        f"kubepods/burstable/pod{POD}/{{victim}}",
        "slurm/uid_1/job_88/step_0",
        "victim.service",
    ],
)
def test_forged_cgroup_in_a_delegated_directory(forged: str) -> None:
    """A user names cgroups in an own directory like those of a container, pod, job or unit: they do not count."""
    victim, delegated = secrets.token_hex(32), f"delegated-{secrets.token_hex(4)}"
    path = f"{delegated}/{forged.format(victim=victim)}"
    with (
        cgroup(path, owned=delegated, uid=ATTACKER) as folder,
        process(folder, uid=ATTACKER) as attacker,
        exporter(**{f"p{attacker}": 90}) as running,
    ):
        labels, body = billed(running, attacker)

    assert victim not in body
    assert 'batch_job="slurm/88"' not in body
    assert "victim.service" not in body
    assert POD not in body
    assert (labels["uid"], labels["container_id"], labels["unit"]) == (str(ATTACKER), "", "")


@pytest.mark.parametrize("forged", ["docker/{victim}", f"kubepods/pod{POD}/{{victim}}", "slurm/uid_1/job_88/step_0"])
def test_forged_cgroup_in_a_container(forged: str) -> None:
    """Root in a container names cgroups in its own one like those of another tenant: the container keeps the bill."""
    own, victim = secrets.token_hex(32), secrets.token_hex(32)
    with (
        cgroup(f"docker/{own}/{forged.format(victim=victim)}") as folder,
        process(folder) as attacker,
        exporter(**{f"p{attacker}": 90}) as running,
    ):
        labels, body = billed(running, attacker)

    assert labels["container_id"] == own
    assert victim not in body
    assert POD not in body
    assert 'batch_job="slurm/88"' not in body


def test_cgroup_too_deep_to_print() -> None:
    """A user hides in a cgroup whose path is too long for the kernel: the user is still known and billed."""
    delegated = f"delegated-{secrets.token_hex(4)}"
    with (
        cgroup(delegated, owned=delegated, uid=ATTACKER) as folder,
        nested(folder, "x" * 250, 20) as procs,
        process(uid=ATTACKER) as attacker,
    ):
        os.write(procs, str(attacker).encode())
        with exporter(**{f"p{attacker}": 90}) as running:
            labels, _ = billed(running, attacker)

    assert labels["uid"] == str(ATTACKER)


def test_daemon_of_a_user_renames_a_container() -> None:
    """A user's daemon lists the container of another user, with more fields: only the daemon of root names it."""
    victim = secrets.token_hex(32)
    evil = listed(victim, "evil", Labels={"com.docker.compose.project": "evil"})
    with (
        daemon(ATTACKER, evil) as theirs,
        daemon(0, listed(victim, "good", Image="")) as ours,
        cgroup(f"docker/{victim}") as folder,
        process(folder) as pid,
        exporter(f"--docker.host={theirs}", f"--docker.host={ours}", **{f"p{pid}": 90}) as running,
    ):
        running.metrics(r'container="good"')
        labels, body = billed(running, pid)

    assert (labels["container"], labels["container_id"]) == ("good", victim)
    assert "evil" not in body


def test_daemon_of_a_user_confirms_its_own_containers() -> None:
    """A user invents a container next to a real one: it counts only if the user's own daemon lists it."""
    own, hidden, delegated = secrets.token_hex(32), secrets.token_hex(32), f"delegated-{secrets.token_hex(4)}"
    with (
        daemon(ATTACKER, listed(own, "mine")) as theirs,
        cgroup(f"{delegated}/docker-{own}.scope", owned=delegated, uid=ATTACKER) as confirmed,
        cgroup(f"{delegated}/docker-{hidden}.scope", owned=delegated, uid=ATTACKER) as invented,
        process(confirmed, uid=ATTACKER) as first,
        process(invented, uid=ATTACKER) as second,
        exporter(f"--docker.host={theirs}", **{f"p{first}": 40, f"p{second}": 40}) as running,
    ):
        running.metrics(r'container="\d+/mine"')
        labels, _ = billed(running, first)
        _, body = billed(running, second)

    assert (labels["container"], labels["container_id"]) == (f"{ATTACKER}/mine", f"{ATTACKER}/{own}")
    assert hidden not in body


def test_daemon_of_a_user_claims_a_container() -> None:
    """A user creates a cgroup with the id of another user's container, and the own daemon lists it: both stay apart."""
    victim, delegated = secrets.token_hex(32), f"delegated-{secrets.token_hex(4)}"
    with (
        daemon(ATTACKER, listed(victim, "web")) as theirs,
        daemon(0, listed(victim, "web")) as ours,
        cgroup(f"{delegated}/docker-{victim}.scope", owned=delegated, uid=ATTACKER) as forged,
        cgroup(f"docker/{victim}") as folder,
        process(forged, uid=ATTACKER) as attacker,
        process(folder) as pid,
        exporter(f"--docker.host={theirs}", f"--docker.host={ours}", **{f"p{attacker}": 90, f"p{pid}": 0}) as running,
    ):
        running.metrics(r'container="\d+/web"')
        billed(running, attacker)
        body = running.metrics(rf'^container_gpu_energy_joules_total{{container="web",container_id="{victim}"')

    bills = series(body, "container_gpu_energy_joules_total", container_id=victim)
    assert {labels["method"] for labels, _ in bills} == {"parked"}


def test_link_to_a_socket_of_root() -> None:
    """A user's socket is a link to a socket of root: its daemon names only containers of the user."""
    victim = secrets.token_hex(32)
    with (
        daemon(0, listed(victim, "evil")) as service,
        tempfile.TemporaryDirectory(prefix="user-") as text,
        cgroup(f"docker/{victim}") as folder,
        process(folder) as pid,
    ):
        os.chown(text, ATTACKER, ATTACKER)
        link = Path(text) / "docker.sock"
        link.symlink_to(service.removeprefix("unix://"))
        with exporter(f"--docker.host=unix://{link}", **{f"p{pid}": 90}) as running:
            running.metrics(r'^gpuledger_provider_up{provider="docker"} 1')
            labels, body = billed(running, pid)

    assert (labels["container"], labels["container_id"]) == ("", victim)
    assert "evil" not in body


@pytest.mark.parametrize(
    "answer",
    [http({"message": SECRET}, 404), http(SECRET.encode(), 500), http(SECRET.encode()), SECRET.encode()],
    ids=["refusal", "text of an error", "no JSON", "no HTTP"],
)
def test_link_to_another_service_of_root(answer: bytes) -> None:
    """A user's socket is a link to another service of root: no page and no log shows the answers of that service."""
    with tempfile.TemporaryDirectory(prefix="root-") as root, tempfile.TemporaryDirectory(prefix="user-") as text:
        os.chown(text, ATTACKER, ATTACKER)
        link = Path(text) / "docker.sock"
        link.symlink_to(Path(root) / "d.sock")
        with (
            closing(FakeDocker(Path(root), {"/version": answer})) as service,
            exporter(f"--docker.host=unix://{link}", "--log.level=debug") as running,
        ):
            wait_until(lambda: service.asked)
            running.metrics(r'^gpuledger_provider_up{provider="docker"} 0')
            shown = running.get("/metrics") + running.get("/api/v1/snapshot") + running.stop()[2]

    assert SECRET not in shown


def test_docker_labels_of_a_pod() -> None:
    """A container gets the labels of a pod without its cgroup: it is a container of Docker."""
    container = secrets.token_hex(32)
    labels = {"io.kubernetes.pod.name": "victim-0", "io.kubernetes.pod.namespace": "victims",
              "io.kubernetes.pod.uid": POD, "io.kubernetes.container.name": "main"}  # fmt: skip
    with (
        daemon(0, listed(container, "evil", Labels=labels)) as url,
        cgroup(f"docker/{container}") as folder,
        process(folder) as pid,
        exporter(f"--docker.host={url}", **{f"p{pid}": 90}) as running,
    ):
        running.metrics(r'container="evil"')
        _, body = billed(running, pid)

    assert "victim" not in body
    assert POD not in body


def test_slurm_variables() -> None:
    """A job sets the variables of another job: its cgroup gives the job, and the prolog's file gives the account."""
    variables = {"SLURM_JOB_ID": "88", "SLURM_JOB_ACCOUNT": "victims", "SLURM_JOB_USER": "victim"}
    with (
        tempfile.TemporaryDirectory() as jobs,
        cgroup("slurm/uid_1/job_77/step_0") as folder,
        process(folder, uid=ATTACKER, environment=variables) as inside,
        process(uid=ATTACKER, environment=variables) as outside,
    ):
        (Path(jobs) / "account.77").write_text("payers\n")
        (Path(jobs) / "account.88").write_text("victims\n")
        with exporter(f"--slurm.job-mapping-dir={jobs}", **{f"p{inside}": 40, f"p{outside}": 40}) as running:
            running.metrics(r'batch_account="payers"')
            labels, _ = billed(running, inside)
            _, body = billed(running, outside)

    assert labels["batch_job"] == "slurm/77"
    assert "victim" not in body
