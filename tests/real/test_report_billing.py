"""Bills from samples that were worked out by hand, in a real Prometheus and a real VictoriaMetrics."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus
from tests.real.scriptednode import BEGAN, Minutes, Node, column, report, run_report

pytestmark = pytest.mark.needs("prometheus", "victoria-metrics")

BACKENDS = ("prometheus", "victoria-metrics")
ALWAYS = (-30.0, 90.0)


def job(node: Node, number: str, names: tuple[str, str], allocated: Minutes, used: Minutes, *, watts: float) -> None:
    """A batch job with one process; its user and account are known one minute after the process."""
    user, account = names
    allocation = {**node.gpu, "batch_job": number, "batch_account": account}
    node.add("gpu_job_allocation_info", lambda _: 1, allocation, allocated)
    process = {**node.gpu, "pid": number, "process_name": "job"}
    node.add("gpu_process_active", lambda _: 1, process, used)
    energy = {**process, "method": "exclusive"}
    node.add("gpu_process_energy_joules_total", lambda m: 60 * watts * (m - max(used[0], -30)), energy, used)
    known = {**process, "uid": f"100{number}", "batch_job": number}
    node.add("gpu_process_info", lambda _: 1, known, (used[0], used[0] + 1))
    node.add("gpu_process_info", lambda _: 1, {**known, "user": user, "batch_account": account}, (used[0] + 1, used[1]))


def entitled(node: Node, pod: str, ratio: float, within: Minutes = ALWAYS, **more: str) -> None:
    """What a pod asked for of the GPU, or of an instance."""
    labels = {**node.gpu, "namespace": pod, "pod": f"{pod}-0", "container": "main", **more}
    node.add("gpu_entitlement_compute_ratio", lambda _: ratio, labels, within)


def idle(minute: float) -> float:
    """Joules of a GPU without processes since minute 30."""
    return 60 * max(0.0, minute - 29.5)


def history() -> History:
    """Four GPUs for an hour: two H200 (a, b) and two L4 (c, m)."""
    world = History()
    node = Node(world, "a")  # two pods share it
    node.container("red", lambda m: 100 * (m + 30))
    node.container("blue", lambda m: 300 * (m + 30))
    for pod, team in (("red", "vision"), ("blue", "speech")):
        owner = {**node.target, "namespace": pod, "pod": f"{pod}-0", "container": "main", "container_id": f"id-{pod}"}
        node.add("gpu_owner_label_info", lambda _: 1, {**owner, "label": "team", "value": team})
        node.add("gpu_owner_label_info", lambda _: 1, {**owner, "label": "tier", "value": "gold"})
    entitled(node, "red", 0.3, source="kai")
    entitled(node, "blue", 0.5, source="kai")
    node.books(1e6, lambda _: 0, lambda m: 1e6 + 400 * (m + 30))
    node = Node(world, "b")  # a pod leaves it at 30; idle from then on
    node.container("solo", lambda m: 600 * (m + 30), within=(-30, 30))
    entitled(node, "solo", 1, (-30, 30), source="device")
    node.books(1e6, idle, lambda m: 1e6 + 600 * (min(m, 29.5) + 30) + idle(m))
    node = Node(world, "c")  # a job on it always, and another one that has it from 20 on and uses it from 30 on
    job(node, "7", ("ada", "physics"), ALWAYS, ALWAYS, watts=1)
    job(node, "8", ("bob", "chemistry"), (20, 90), (30, 90), watts=2)
    asked = {**node.gpu, "batch_job": "7", "source": "device"}
    node.add("gpu_entitlement_compute_ratio", lambda _: 0.5, asked)
    node.books(1e6, lambda _: 0, lambda m: 1e6 + 60 * (m + 30) + 120 * max(0.0, m - 30))
    node = Node(world, "m")  # MIG: one of its two instances is used
    for profile, uuid in (("1g.18gb", "MIG-1"), ("2g.35gb", "MIG-2")):
        instance = {**node.gpu, "uuid": uuid, "parent_uuid": "GPU-m", "profile": profile, "name": f"L4 MIG {profile}"}
        node.add("gpu_mig_info", lambda _: 1, instance)
    node.container("mig", lambda m: 200 * (m + 30), uuid="MIG-2")
    entitled(node, "mig", 0.002, source="mig", uuid="MIG-2")
    node.books(1e6, lambda _: 0, lambda m: 1e6 + 200 * (m + 30))
    return world


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Prometheus]]:
    """Both, with the same history."""
    with remembering(history()) as first, remembering(history(), "victoria-metrics") as second:
        yield dict(zip(BACKENDS, (first, second), strict=True))


@pytest.fixture
def server(servers: dict[str, Prometheus]) -> Prometheus:
    """The real Prometheus."""
    return servers["prometheus"]


SHARE = "--gpu-hours=share"
BY_MODEL = ("--price-model=H200=3", "--price-model=L4=1", SHARE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_apportioned_hours_add_up_to_the_hours_of_the_gpus(servers: dict[str, Prometheus], backend: str) -> None:
    """Sharers get equal parts, an instance its slices, a holder its allocation; hours that no group held are idle."""
    by_namespace = report(servers[backend], SHARE)
    by_account = report(servers[backend], "--by=account", SHARE)
    by_user = report(servers[backend], "--by=user", SHARE)

    assert column(by_namespace, "apportioned_gpu_hours", 60) == pytest.approx({
        "red": 30, "blue": 30, "solo": 30, "mig": 40, "outside of containers": 60, "idle": 30 + 20,
        "unattributed": None, "total": 240,
    })  # fmt: skip
    minutes = column(by_account, "apportioned_gpu_hours", 60)
    assert [minutes["physics"], minutes["chemistry"]] == pytest.approx([20 + 20, 20])
    minutes = column(by_user, "apportioned_gpu_hours", 60)
    assert [minutes["ada"], minutes["bob"], minutes["total"]] == pytest.approx([45, 15, 240])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "by", ["namespace", "pod", "container", "user", "job", "account", "node", "gpu-model", "model", "label:team"]
)
def test_every_grouping_adds_up(servers: dict[str, Prometheus], backend: str, by: str) -> None:
    """Energy, apportioned hours, and their costs by model."""
    bill = report(servers[backend], f"--by={by}", "--price=0.3", *BY_MODEL)

    for key in ("energy_kwh", "apportioned_gpu_hours", "energy_cost", "gpu_hours_cost"):
        assert sum(row[key] or 0 for row in bill["rows"]) == pytest.approx(bill["total"][key]), key
    assert bill["total"]["gpu_hours_cost"] == pytest.approx(2 * 3 + 2 * 1)
    assert bill["total"]["energy_kwh"] * 3.6e6 == pytest.approx(
        60 * 400 + 30 * 600 + 30 * 60 + 60 * 60 + 29.5 * 120 + 60 * 200
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_entitlements_and_their_difference(servers: dict[str, Prometheus], backend: str) -> None:
    """Owners pay for what they asked for, or for their busy time if that is longer; the rest of the GPUs is one row."""
    asked = {"red": 18.0, "blue": 30.0, "solo": 30.0, "mig": 0.12, "outside of containers": 30.0}
    none = {"idle": None, "unattributed": None}
    bill = report(servers[backend], "--gpu-hours=entitlement", "--price-gpu-hour=6")

    found = column(bill, "entitled_gpu_hours", 60)
    assert found == pytest.approx({**asked, **none, "difference": 240 - sum(asked.values()), "total": 240})
    assert column(bill, "gpu_hours_cost")["red"] == pytest.approx(0.3 * 6)
    accounts = column(report(servers[backend], "--by=account", "--gpu-hours=entitlement"), "entitled_gpu_hours", 60)
    assert (accounts["physics"], accounts["difference"]) == pytest.approx((30, 210))

    found = column(report(servers[backend], "--gpu-hours=larger"), "larger_gpu_hours", 60)
    larger = {**asked, "mig": 0.2}  # it was busy for 0.2 s of each minute
    assert found == pytest.approx({**larger, **none, "difference": 240 - sum(larger.values()), "total": 240})


def test_entitlements_by_model(server: Prometheus) -> None:
    """Hours of each model have its price, those of the difference too."""
    bill = report(server, "--gpu-hours=entitlement", "--price-model=H200=3", "--price-model=L4=1")

    cost = column(bill, "gpu_hours_cost")
    assert cost["solo"] == pytest.approx(0.5 * 3)
    assert cost["outside of containers"] == pytest.approx(0.5)
    assert sum(row["gpu_hours_cost"] or 0 for row in bill["rows"]) == pytest.approx(2 * 3 + 2 * 1)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--by=user", "--gpu-hours=entitlement"), "--gpu-hours entitlement: allocations have no user; use --by job"),
        (("--gpu-hours=larger", "--price-model=L4=1"), "--gpu-hours larger has no hours by model"),
    ],
)
def test_what_entitlements_cannot_bill(server: Prometheus, flags: tuple[str, ...], reason: str) -> None:
    """One line says what to do instead."""
    done = run_report(server, *flags)

    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_users_and_accounts_that_are_known_late(servers: dict[str, Prometheus], backend: str) -> None:
    """A process has no account in its first minute: the energy of the cell is the account's all the same."""
    bill = report(servers[backend], "--by=account")

    joules = column(bill, "energy_kwh", 3.6e6)
    assert [joules["physics"], joules["chemistry"]] == pytest.approx([60 * 60, 29.5 * 120])
    hours = column(bill, "allocated_gpu_hours", 60)
    assert [hours["physics"], hours["chemistry"]] == pytest.approx([60, 40])
    assert "uid 1008" not in column(report(servers[backend], "--by=user"), "energy_kwh")


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_by_a_pod_label(servers: dict[str, Prometheus], backend: str) -> None:
    """Containers without the label are unknown; a label that no container has is explained."""
    joules = column(report(servers[backend], "--by=label:team"), "energy_kwh", 3.6e6)

    assert [joules["vision"], joules["speech"]] == pytest.approx([6000, 18_000])
    assert joules["unknown"] == pytest.approx(30 * 600 + 60 * 200)
    notes = report(servers[backend], "--by=label:app.kubernetes.io/name")["notes"]
    assert any("--kubernetes.pod-labels=app.kubernetes.io/name on the exporters" in note for note in notes)


def test_departments(server: Prometheus, tmp_path: Path) -> None:
    """Namespaces of a department are one row; those that the file does not have are another, and are named."""
    path = tmp_path / "departments.csv"
    path.write_text("namespace,faculty\nred,arts\nblue,arts\n# left\nmig,science\n")
    bill = report(server, f"--map={path}", SHARE)

    names = [(row["kind"], row.get("faculty")) for row in bill["rows"]]
    assert names[:3] == [("group", "arts"), ("group", "science"), ("unmapped", None)]
    assert [row["energy_kwh"] * 3.6e6 for row in bill["rows"][:3]] == pytest.approx([24_000, 12_000, 18_000])
    assert [row["apportioned_gpu_hours"] for row in bill["rows"][:3]] == pytest.approx([1, 2 / 3, 1 / 2])
    assert any(note.startswith("not in the file of --map: solo") for note in bill["notes"])


@pytest.mark.parametrize("idle", ["row", "spread"])
def test_a_file_for_each_department(server: Prometheus, tmp_path: Path, idle: str) -> None:
    """It has the groups of the department, which add up to its row in the report on all."""
    path, folder = tmp_path / "departments.csv", tmp_path / "bills" / "october"
    path.write_text("namespace,faculty\nred,arts & crafts\nblue,arts & crafts\nmig,../science\ngone,law\n")
    flags = (SHARE, f"--map={path}", f"--output={folder}/", f"--idle={idle}", "--price=2", "--price-gpu-hour=3")
    done = run_report(server, *_hour(), *flags, "--format=json")
    pages = run_report(server, *_hour(), *flags, "--format=html")

    assert (done.returncode, done.stderr, pages.returncode) == (0, "", 0)
    names = {"(all)", "arts _ crafts", "_science"}
    assert {file.name for file in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("json", "html")}
    whole, arts = (json.loads((folder / f"{name}.json").read_text()) for name in ("(all)", "arts _ crafts"))
    assert {row["namespace"] for row in arts["rows"]} == {"red", "blue"}
    row = next(row for row in whole["rows"] if row.get("faculty") == "arts & crafts")
    for key in ("energy_kwh", "apportioned_gpu_hours", "cost", "memory_gib_hours"):
        assert sum(row[key] for row in arts["rows"]) == pytest.approx(arts["total"][key])
        assert arts["total"][key] == pytest.approx(row[key])
    assert "<h1>GPU use of arts &amp; crafts by namespace</h1>" in (folder / "arts _ crafts.html").read_text()


def test_prices_of_models(server: Prometheus) -> None:
    """Each model has its price; one without a price is an error, or has the price of all others."""
    costs = column(report(server, *BY_MODEL), "gpu_hours_cost")
    without = run_report(server, *_hour(), SHARE, "--price-model=H200=3")
    default = report(server, SHARE, "--price-model=H200=3", "--price-gpu-hour=2")
    allocated = column(report(server, "--price-model=H200=3", "--price-gpu-hour=2"), "gpu_hours_cost")

    assert costs == pytest.approx({
        "red": 1.5, "blue": 1.5, "solo": 1.5, "mig": 2 / 3, "outside of containers": 1, "idle": 1.5 + 1 / 3,
        "unattributed": None, "total": 8,
    })  # fmt: skip
    assert without.returncode == 2
    assert (
        without.stderr
        == "gpuledger: --price-model: no price for L4; add one, or --price-gpu-hour for all other models\n"
    )
    assert default["total"]["gpu_hours_cost"] == pytest.approx(2 * 3 + 2 * 2)
    assert [allocated["red"], allocated["mig"]] == pytest.approx([3, 2])


def test_idle_energy_spread_by_use(server: Prometheus) -> None:
    """Each row gets idle energy in proportion to its energy, and idle hours of a model in proportion to its hours."""
    own, spread = report(server, *BY_MODEL), report(server, "--idle=spread", *BY_MODEL)
    before, after = (column(bill, "energy_kwh", 3.6e6) for bill in (own, spread))
    total, idle = before["total"] or 0, before["idle"] or 0

    assert idle == pytest.approx(1800)
    assert {"idle", "unattributed"}.isdisjoint(after) or after.get("unattributed") is None
    assert after["red"] == pytest.approx(6000 * total / (total - idle))
    assert sum(joules or 0 for name, joules in after.items() if name != "total") == pytest.approx(total, abs=1e-6)
    hours = column(spread, "apportioned_gpu_hours")
    assert [hours["red"], hours["solo"]] == pytest.approx([0.5 + 0.5 / 3] * 2)
    assert [hours["outside of containers"], hours["mig"]] == pytest.approx([1.2, 0.8])
    assert sum(
        cost or 0 for name, cost in column(spread, "gpu_hours_cost").items() if name != "total"
    ) == pytest.approx(8)


def test_every_format_says_why_rows_do_not_add_up(server: Prometheus, tmp_path: Path) -> None:
    """Two pods share a GPU, so that each has its hour."""
    why = "a GPU that several groups hold at the same time counts for each of them and once in the total"
    for form in ("table", "csv", "json", "html"):
        done = run_report(server, *_hour(), f"--format={form}", f"--output={tmp_path / form}")
        assert (done.returncode, done.stderr) == (0, "")

    assert why in (tmp_path / "table").read_text()
    assert why in (tmp_path / "html").read_text()
    assert [why in note for note in json.loads((tmp_path / "json").read_text())["notes"]] == [True]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "csv").read_text())))
    assert [why in row["note"] for row in rows] == [row["kind"] == "total" for row in rows]


def test_a_month(server: Prometheus) -> None:
    """The current month is reported until now, in the zone that was given, and the report says so."""
    month = time.strftime("%Y-%m", time.gmtime(BEGAN + 3600))
    bill = run_report(server, "--format=json", f"--month={month}", "--time-zone=UTC", "--step=1h")

    assert bill.returncode == 0, bill.stderr
    found = json.loads(bill.stdout)
    assert found["from"] == f"{month}-01T00:00:00Z"
    is_over = found["to"].endswith("-01T00:00:00Z")  # if the test runs in the first hours of the next month
    assert (f"{month} is not over; the report ends at {found['to']}" in found["notes"]) is not is_over


def _hour() -> list[str]:
    begin, end = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN + 60 * minute)) for minute in (0, 60))
    return [f"--from={begin}", f"--to={end}"]


def test_a_shorter_step_is_suggested_and_helps() -> None:
    """Processes that reuse a pid, one after the other: the shorter the cells, the less of them is lost."""
    world = History()
    node = Node(world, "a")
    process = {**node.gpu, "pid": "7", "process_name": "job"}
    energy = {**process, "method": "exclusive"}
    node.add("gpu_process_energy_joules_total", lambda m: 600 * (m % 3 + 0.5), energy)  # new every 3 minutes
    node.books(1e6, lambda _: 0, lambda m: 1e6 + 600 * (m + 30))
    with remembering(world) as server:
        coarse, fine = report(server, "--by=user"), report(server, "--by=user", "--step=1m")

    note = next(note for note in coarse["notes"] if "unrecorded" in note)
    assert "--step 1m may record more" in note
    missing = [bill["unattributed_kwh_by_reason"].get("unrecorded", 0.0) for bill in (coarse, fine)]
    assert missing[1] < missing[0] / 2
