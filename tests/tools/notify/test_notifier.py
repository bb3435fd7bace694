"""Messages to owners: whom they reach, how often, and what happens if a receiver fails."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuledger.config import yamlfile
from gpuledger.errors import ConfigError, PrometheusError, UsageError
from gpuledger.model.plaintext import plain
from gpuledger.tools.notify import send
from gpuledger.tools.notify.config import DAY_S, NotifyConfig, parse
from gpuledger.tools.notify.contacts import exempt_until, is_mail_address
from gpuledger.tools.notify.notifier import LISTED_S, Notifier
from gpuledger.tools.prometheus.answer import Series
from tests.owners.providers.api_server import kubeconfig
from tests.tools.notify.receivers import Inbox, receiving, sendmail
from tests.waiting import wait_until

NOW = 1_800_000_000.0
HOUR = 3600.0
POD = {"namespace": "ml", "pod": "train", "container": "main"}
JOB = {"batch_job": "slurm/211"}
Labels = dict[str, str]


class World:
    """Allocations in Prometheus, a clock, and one notifier after another on the same state."""

    def __init__(self, folder: Path, inbox: Inbox, more: str = "") -> None:
        self.now_s = NOW
        self.idle: list[tuple[Labels, float]] = []
        """Labels of idle allocations, and since when."""
        self.used: list[tuple[Labels, float, float]] = []
        """Labels, used part of the entitlement, and points."""
        self.users: Labels = {}
        self.error: PrometheusError | None = None
        self.ended = False
        """Whether the allocations of `used` have ended."""
        self.place = {"uuid": "GPU-1", "gpu": "0", "node": "n1"}
        self.shown: list[str] = []
        self.folder, self.inbox = folder, inbox
        self._text = f"""
rules: {{idle: 1h, below_entitlement: 5%}}
state: {folder}/state.json
prices: {{kwh: 0.30, gpu_hour: 2, currency: EUR}}
{more}"""

    def config(self) -> NotifyConfig:
        """The configuration."""
        root = yamlfile.parse(self._text, "notify.yml")
        assert root is not None
        return parse(root, str(self.folder))

    def notifier(self, *, dry: bool = False) -> Notifier:
        """A new process, as it were."""
        return Notifier(self.config(), self._query, lambda: self.now_s, self.shown.append if dry else None)

    def _query(self, promql: str, now_s: float) -> tuple[Series, ...]:
        assert now_s == self.now_s
        if self.error is not None:
            raise self.error
        place, asked = self.place, () if self.ended else self.used
        given: dict[str, list[Any]] = {
            "gpu_allocation_idle_since": [({**place, **labels}, since) for labels, since in self.idle],
            "gpu_allocation_idle_period_gpu": [({**place, **labels}, now_s - since) for labels, since in self.idle],
            "gpu_allocation_idle_period_energy": [({**place, **labels}, 3.6e6) for labels, _ in self.idle],
            "gpu_allocation_shared_by": [({**place, **labels}, 1.0) for labels, _ in self.idle],
            "gpu_allocation_state": [({**place, **labels, "state": "no_process"}, 1.0) for labels, _ in self.idle],
            "gpu_process_info": [({"batch_job": job, "user": user}, 1.0) for job, user in self.users.items()],
            "gpu_job_allocation_info": [],
            "avg_over_time": [({**place, **labels}, used) for labels, used, _ in self.used],
            "count_over_time": [({**place, **labels}, points) for labels, _, points in self.used],
            "gpu_entitlement_compute_ratio": [({**place, **labels}, 0.5) for labels, _, _ in asked],
        }
        found = [name for name in given if name in promql]
        return tuple(given[found[0] if found[0] != "gpu_entitlement_compute_ratio" else found[-1]])


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """A server for webhooks, pods and Events."""
    with receiving() as inbox:
        yield inbox


@pytest.fixture
def world(tmp_path: Path, inbox: Inbox) -> World:
    """One webhook, and one idle pod."""
    world = World(tmp_path, inbox, f"webhooks: [{{url: 'http://127.0.0.1:{inbox.port}/hook'}}]")
    world.idle = [(POD, NOW - 2 * HOUR)]
    return world


def test_one_message_a_day(world: World) -> None:
    """Since when, GPU-hours, cost, how to free it and how to keep it; not again before a day has passed."""
    notifier = world.notifier()
    for minute in range(0, 24 * 60, 7):
        world.now_s = NOW + 60 * minute
        assert notifier.step()
    assert world.inbox.texts == [
        (
            "GPU 0 of n1, allocated to ml/train/main, is allocated and not used\n"
            "not used since 2027-01-15 06:00Z, for 2h00m (no process)\n"
            "in that time: 2.00 GPU-hours, 1.000 kWh, 4.30 EUR\n"
            "to free it: kubectl delete pod -n ml train\n"
            "to keep it: tell your administrators until when"
        )
    ]
    world.now_s = NOW + DAY_S
    notifier.step()
    assert len(world.inbox.texts) == 2


def test_not_before_an_hour(world: World) -> None:
    """A pause between requests is no reason."""
    world.idle = [(POD, NOW - HOUR + 1)]
    notifier = world.notifier()
    notifier.step()
    assert world.inbox.texts == []
    world.now_s += 1
    notifier.step()
    assert len(world.inbox.texts) == 1


def test_a_restart_sends_nothing_again(world: World) -> None:
    """Also if the process died after it had stored the message and before it was sent."""
    world.notifier().step()
    for _ in range(3):
        world.now_s += 60
        world.notifier().step()
    assert len(world.inbox.texts) == 1

    world.idle.append((JOB, NOW - 5 * HOUR))
    notifier = world.notifier()
    notifier._send_all = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        notifier.step()
    world.notifier().step()
    assert len(world.inbox.texts) == 1


def test_a_certain_failure_is_tried_again(world: World) -> None:
    """A refused connection or an error delivers nothing; a timeout may have."""
    world.inbox.status = 500
    notifier = world.notifier()
    notifier.step()
    assert json.loads((world.folder / "state.json").read_text())["sent"] == {}
    world.inbox.status = 204
    notifier.step()
    notifier.step()
    assert len(world.inbox.texts) == 2


def test_a_webhook_that_hangs_delays_nothing(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ten owners: mail reaches all of them, the webhook gets one message, and the round ends after its timeout."""
    monkeypatch.setattr(send, "TIMEOUT_S", 3.0)
    program = sendmail(tmp_path)
    world._text += (
        f"\nmail: {{from: gpu@example.org, domains: [example.org], sendmail: {program}}}\nowners: {{mapping: m}}"
    )
    (tmp_path / "m").write_text("ml: ml@example.org\n")
    world.idle = [({**POD, "pod": f"train-{n}"}, NOW - 2 * HOUR) for n in range(10)]
    world.inbox.go_on.clear()
    done = threading.Thread(target=world.notifier().step, daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive()
    assert (tmp_path / "mails").read_text().count("ARGS -i -f gpu@example.org -- ml@example.org") == 10
    assert len(world.inbox.bodies) == 1


def test_entitlements(world: World) -> None:
    """Below 5 % for the whole day; not if a part of the day is unknown, and not besides a message about idle time."""
    other = {**POD, "pod": "small"}
    world.used = [(POD, 0.01, 1440), (other, 0.02, 1440), ({**POD, "pod": "new"}, 0.0, 1000)]
    world.notifier().step()
    assert [text.partition(",")[2] for text in world.inbox.texts] == [
        world.inbox.texts[0].partition(",")[2],
        (
            " allocated to ml/small/main, is used far below what was asked for\n"
            "used 2 % of what was asked for, in the last 1d00h\n"
            "in that time: 12.00 GPU-hours\n"
            "to keep it: tell your administrators until when"
        ),
    ]


def test_entitlements_of_an_allocation_that_has_ended(world: World) -> None:
    """A pod that was deleted an hour ago has 95 % of the points of a day: there is nothing to free any more."""
    world.idle, world.used, world.ended = [], [(POD, 0.01, 1390)], True
    world.notifier().step()
    assert world.inbox.texts == []


@pytest.mark.parametrize(("window", "points", "enough"), [("10m", 600, 400), ("36m", 1080, 1000), ("1h", 1200, 1000),
                                                          ("7d", 1440, 1300)])  # fmt: skip
def test_entitlements_over_other_windows(world: World, window: str, points: int, enough: int) -> None:
    """The points of a full window make a message, 95 % of them are required: a second is the smallest step."""
    world.idle, world._text = [], world._text.replace("5%}", f"5%, below_entitlement_for: {window}}}")
    for count, messages in ((enough, 0), (points, 1)):
        world.used = [(POD, 0.01, count)]
        world.notifier().step()
        assert len(world.inbox.texts) == messages, count


def test_a_disk_that_is_full(world: World) -> None:
    """What cannot be stored is not sent, and counts as not sent: it is sent in the next round."""
    notifier = world.notifier()
    (world.folder / "state.json").mkdir()
    with pytest.raises(UsageError):
        notifier.step()
    assert world.inbox.texts == []
    (world.folder / "state.json").rmdir()
    notifier.step()
    assert len(world.inbox.texts) == 1


def test_one_owner_that_cannot_be_reached_delays_no_other(world: World) -> None:
    """A tenant names a mailbox that does not exist: the mail of all others arrives."""
    program = sendmail(world.folder)
    program.write_text(program.read_text().replace("exit 0", 'case "$*" in *-0@*) exit 67;; esac'))
    mail = f"mail: {{from: g@example.org, domains: [example.org], sendmail: {program}}}\nowners: {{mapping: m}}"
    world._text = f"{world._text.partition('webhooks')[0]}\n{mail}"
    (world.folder / "m").write_text("".join(f"ml/train-{n}: train-{n}@example.org\n" for n in range(3)))
    world.idle = [({**POD, "pod": f"train-{n}"}, NOW - 2 * HOUR) for n in range(3)]
    world.notifier().step()
    assert len(mails(world)) == 3
    assert len(json.loads((world.folder / "state.json").read_text())["sent"]) == 2


@pytest.mark.parametrize("name", ["a\nto free it: rm -rf /", "a\ud800", "a\x1b[2J"])
def test_names_cannot_look_like_lines_of_a_message(cluster: World, name: str) -> None:
    """Names come from Prometheus, which any target can fill."""
    cluster.place = {**cluster.place, "node": name}
    cluster.notifier().step()
    assert mails(cluster) == ["alice@example.org"]
    ((_, event),) = cluster.inbox.bodies
    assert event["message"].splitlines()[0] == (
        f"GPU 0 of {plain(name)}, allocated to ml/train/main, is allocated and not used"
    )


def test_how_to_keep_it_without_an_api_server(world: World) -> None:
    """Annotations are not read then."""
    world.notifier().step()
    assert world.inbox.texts[0].splitlines()[-1] == "to keep it: tell your administrators until when"


@pytest.mark.parametrize("text", ["@channel", "free beer\nto free it: rm -rf /", "<!here>", "x" * 400])
def test_an_annotation_cannot_write_to_a_channel(cluster: World, text: str) -> None:
    """Only what looks like an address is shown to others."""
    cluster._text = cluster._text.replace(
        "events: true", f"webhooks: [{{url: 'http://127.0.0.1:{cluster.inbox.port}/h'}}]"
    )
    cluster.inbox.pods["ml/train"]["annotations"]["example.org/owner"] = text
    cluster.notifier().step()
    assert "owner:" not in cluster.inbox.texts[0]
    cluster.inbox.pods["ml/train"]["annotations"]["example.org/owner"] = "alice@example.org"
    cluster.now_s += DAY_S
    cluster.notifier().step()
    assert cluster.inbox.texts[1].endswith("\nowner: alice@example.org")


def test_the_state_does_not_grow_forever(cluster: World) -> None:
    """Owners without an address are forgotten after a month; a clock that was wrong for a while mutes no owner."""
    (cluster.folder / "map.yml").write_text("")
    cluster.inbox.pods["ml/train"] = {"uid": "u1"}
    cluster.now_s += 400 * DAY_S
    cluster.notifier().step()
    for later_s in (-400 * DAY_S, LISTED_S):
        cluster.now_s += later_s
        cluster.idle = [({**POD, "pod": f"p{later_s}"}, cluster.now_s - 2 * HOUR)]
        cluster.inbox.pods[f"ml/p{later_s}"] = {"uid": "u2"}
        cluster.notifier().step()
        state = json.loads((cluster.folder / "state.json").read_text())
        assert [len(state["sent"]), len(state["unreachable"])] == [1, 1]


def test_dry_run(world: World) -> None:
    """Shown once, not sent, not stored."""
    notifier = world.notifier(dry=True)
    notifier.step()
    notifier.step()
    assert len(world.shown) == 1
    assert world.inbox.texts == []
    assert not (world.folder / "state.json").exists()


def test_a_prometheus_that_does_not_answer(world: World) -> None:
    """Nothing is sent; later everything."""
    world.error = PrometheusError("no answer", kind="timeout")
    notifier = world.notifier()
    assert not notifier.step()
    world.error = None
    assert notifier.step()
    assert len(world.inbox.texts) == 1


def test_alertmanager(world: World) -> None:
    """The body that receivers of Alertmanager's webhooks know."""
    world._text = world._text.replace("/hook'}", "/hook', format: alertmanager}")
    world.notifier().step()
    ((path, body),) = world.inbox.bodies
    assert path == "/hook"
    assert (body["version"], body["status"], body["alerts"][0]["status"]) == ("4", "firing", "firing")
    assert body["alerts"][0]["labels"] == {
        "alertname": "GpuIdle", "namespace": "ml", "pod": "train", "container": "main", "node": "n1", "gpu": "0",
        "uuid": "GPU-1",
    }  # fmt: skip
    assert body["alerts"][0]["startsAt"] == "2027-01-15T06:00:00Z"


@pytest.fixture
def cluster(world: World) -> World:
    """The API server has the pod; its annotation says who owns it."""
    config = kubeconfig(world.inbox.port, world.folder)
    program = sendmail(world.folder)
    world._text = (
        world._text.partition("webhooks")[0]
        + f"""
events: true
mail: {{from: gpu@example.org, domains: [example.org], sendmail: {program}}}
owners: {{annotation: example.org/owner, mapping: map.yml, domain: example.org}}
exempt: {{longest: 30d}}
kubernetes: {{kubeconfig: {config}}}
"""
    )
    (world.folder / "map.yml").write_text("ml: team@example.org\n")
    world.inbox.pods["ml/train"] = {"uid": "u1", "annotations": {"example.org/owner": "alice@example.org"}}
    return world


def mails(world: World) -> list[str]:
    """The addresses that got mail."""
    path = world.folder / "mails"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.rpartition(" ")[2] for line in lines if line.startswith("ARGS ")]


def test_an_event_and_mail_to_the_annotated_owner(cluster: World) -> None:
    """The Event is on the pod with its uid."""
    cluster.notifier().step()
    ((path, event),) = cluster.inbox.bodies
    assert path == "/api/v1/namespaces/ml/events"
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "train", "uid": "u1",
    }  # fmt: skip
    assert event["reason"] == "GpuIdle"
    assert event["message"].startswith("GPU 0 of n1, allocated to ml/train/main, is allocated and not used\n")
    assert event["message"].endswith(
        "to keep it: annotate the pod with gpuledger.io/keep-until: YYYY-MM-DD, the last day you need it"
    )
    assert mails(cluster) == ["alice@example.org"]
    assert "Subject: GPU 0 of n1, allocated to ml/train/main" in (cluster.folder / "mails").read_text()


@pytest.mark.parametrize(
    "told", ["root@evil.example", "a@example.org,b@evil.example", "-oQ/tmp", "x\nBcc: y@example.org", "|sh"]
)
def test_a_tenant_cannot_send_mail_elsewhere(cluster: World, told: str) -> None:
    """Annotations are texts of tenants: only addresses of the configured domains and local users get mail."""
    cluster.inbox.pods["ml/train"]["annotations"]["example.org/owner"] = told
    cluster.notifier().step()
    assert mails(cluster) == []
    assert len(cluster.inbox.bodies) == 1


def test_labels_the_mapping_and_the_unix_user(cluster: World) -> None:
    """In this order; a change of the file counts at once, and one with a mistake leaves the last good one."""
    cluster.inbox.pods["ml/train"] = {"uid": "u1", "labels": {"example.org/owner": "bob"}}
    cluster.idle = [(POD, NOW - 2 * HOUR), ({**POD, "pod": "eval"}, NOW - 2 * HOUR), (JOB, NOW - 2 * HOUR)]
    cluster.inbox.pods["ml/eval"] = {"uid": "u2"}
    cluster.users = {"slurm/211": "carol"}
    cluster.notifier().step()
    assert sorted(mails(cluster)) == ["bob", "carol@example.org", "team@example.org"]

    notifier = cluster.notifier()
    for text, expected in (("ml/eval: dave@example.org\n", "dave@example.org"), ("ml: [", "dave@example.org")):
        (cluster.folder / "map.yml").write_text(text)
        cluster.now_s += DAY_S
        notifier.step()
        assert expected in mails(cluster)[-3:]


def test_exemptions(cluster: World) -> None:
    """Until the end of the day, at most as long as the configuration allows."""
    annotations = cluster.inbox.pods["ml/train"]["annotations"]
    for until, messages in (("2027-01-20", 0), ("2027-01-14", 1), ("2099-01-01", 2), ("next week", 3)):
        annotations["gpuledger.io/keep-until"] = until
        cluster.notifier().step()
        assert len(mails(cluster)) == messages, until
        cluster.now_s += DAY_S * messages
    assert exempt_until("2027-01-14") == exempt_until("2027-01-15T00:00:00Z") == 1_799_971_200
    assert exempt_until("2027-02-30") == exempt_until("") == 0


def test_a_pod_that_cannot_be_read_may_be_exempt(cluster: World) -> None:
    """No message until the API server answers; a pod that has ended gets no Event."""
    cluster.inbox.status = 403
    notifier = cluster.notifier()
    notifier.step()
    assert mails(cluster) == []
    cluster.inbox.status = 200
    notifier.step()
    assert mails(cluster) == ["alice@example.org"]


def test_jobs_need_no_api_server(cluster: World) -> None:
    """A kubeconfig that cannot be read delays messages about pods only."""
    cluster.idle, cluster.users = [(POD, NOW - 2 * HOUR), (JOB, NOW - 2 * HOUR)], {"slurm/211": "carol"}
    cluster._text = cluster._text.replace("events: true", "")
    (cluster.folder / "kubeconfig").unlink()
    cluster.notifier().step()
    assert mails(cluster) == ["carol@example.org"]


def test_an_owner_without_an_address_is_listed_once(cluster: World, caplog: pytest.LogCaptureFixture) -> None:
    """Across restarts; the Event needs no address."""
    (cluster.folder / "map.yml").write_text("")
    cluster.inbox.pods["ml/train"] = {"uid": "u1"}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cluster.notifier().step()
            cluster.now_s += DAY_S
    assert [record.getMessage() for record in caplog.records if "no address" in record.getMessage()] == [
        "no address is known for ml/train/main; add it to the mapping file"
    ]
    assert len(cluster.inbox.bodies) == 3


def test_an_address_that_is_added_later(cluster: World) -> None:
    """The message is sent in the next round, not a day later."""
    cluster.idle = [(JOB, NOW - 2 * HOUR)]
    notifier = cluster.notifier()
    notifier.step()
    (cluster.folder / "map.yml").write_text("211: erin@example.org\n")
    notifier.step()
    assert mails(cluster) == ["erin@example.org"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 2}', '{"version": 1, "sent": []}', '{"version": 1, "sent": {"a": "b"}}']
)
def test_a_damaged_state_is_not_ignored(world: World, text: str) -> None:
    """Otherwise, everybody would get a message again."""
    (world.folder / "state.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a state of --notify"):
        world.notifier()


def test_addresses_of_mail() -> None:
    """Users of this host, and addresses of the domains."""
    domains = frozenset({"example.org"})
    good = ["alice", "a.b-c+d@example.org", "x@EXAMPLE.org"]
    bad = [
        "",
        "-f",
        "a b@example.org",
        "a@example.org.evil",
        "a@b@example.org",
        "Alice",
        "a@example.org ",
        "ä@example.org",
    ]
    assert [is_mail_address(text, domains) for text in good + bad] == [True] * len(good) + [False] * len(bad)


def test_it_runs_in_the_background(world: World) -> None:
    """The poller of the notifier is one thread."""
    notifier = world.notifier()
    notifier.poller.start()
    wait_until(lambda: len(world.inbox.texts) == 1)
    notifier.poller.stop(1.0)
