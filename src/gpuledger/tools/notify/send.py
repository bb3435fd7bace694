"""Receivers of messages: webhooks, Events of Kubernetes, and mail by the local sendmail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import EmailMessage
from functools import partial
from typing import Any
from urllib.parse import quote

from gpuledger.errors import GpuledgerError
from gpuledger.model.plaintext import plain
from gpuledger.net.http import Client
from gpuledger.tools.notify.config import ALERTMANAGER, Mail, NotifyConfig, Webhook
from gpuledger.tools.notify.contacts import Contact, Contacts, is_mail_address
from gpuledger.tools.notify.findings import Finding

TIMEOUT_S = 10.0
ANSWER_BYTES = 64 << 10
EVENT_MESSAGE = 1024
"""Longest message of an Event."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message about one allocation."""

    finding: Finding
    contact: Contact
    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole message."""
        return "\n".join((self.title, *self.lines))


def message(finding: Finding, contact: Contact, keep_until: str) -> Message:
    """What the owner should know: what was found, how to free the device, and how to keep it by an annotation."""
    title = f"GPU {finding.gpu} of {finding.node}, allocated to {finding.owner.display_name}, {finding.about}"
    free = (f"to free it: {finding.command}",) if finding.command else ()
    keep = "to keep it: tell your administrators until when"
    if finding.owner.pod and keep_until:
        keep = f"to keep it: annotate the pod with {keep_until}: YYYY-MM-DD, the last day you need it"
    return Message(finding, contact, plain(title), (*finding.lines, *free, keep))


Send = Callable[[Message], bool]
"""Whether the message was for this receiver, which has it now. Raises GpuledgerError."""


def receivers(config: NotifyConfig, contacts: Contacts) -> list[tuple[str, Send]]:
    """The configured receivers with their names."""
    chosen: list[tuple[str, Send]] = [(f"webhook {hook.address}", partial(_hook, hook)) for hook in config.webhooks]
    chosen += [("events", partial(_create_event, contacts))] if config.events else []
    chosen += [("mail", partial(_mail, config.mail))] if config.mail else []
    return chosen


def _hook(webhook: Webhook, message: Message) -> bool:
    """JSON as Slack or a receiver of Alertmanager expects it."""
    client = Client(webhook.address, name=f"the webhook {webhook.address}")
    body = json.dumps(_alert(message) if webhook.format == ALERTMANAGER else _slack(message)).encode()
    kind = "Content-Type: application/json"
    with client.stream(webhook.path, TIMEOUT_S, ANSWER_BYTES, kind, body=body) as response:
        return _accepts(client.name, response.status)


def _create_event(contacts: Contacts, message: Message) -> bool:
    """An Event on the pod; owners that are no pods get none."""
    access, owner = contacts.api(), message.finding.owner
    if access is None or not owner.pod or not message.contact.pod_uid:
        return False
    path = f"/api/v1/namespaces/{quote(owner.namespace, safe='')}/events"
    return _accepts("the API server", access.ask(path, TIMEOUT_S, _event(message))[0])


def _accepts(name: str, status: int) -> bool:
    if not 200 <= status < 300:
        raise GpuledgerError(f"{name} answers with status {status}", kind="status")
    return True


def _mail(settings: Mail, message: Message) -> bool:
    """Mail to addresses of the configured domains, and to local users."""
    address = message.contact.address
    if not is_mail_address(address, settings.domains):
        return False
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = settings.sender, address, message.title[:200]
    mail.set_content("\n".join(message.lines))
    command = [settings.sendmail, "-i", "-f", settings.sender, "--", address]
    try:
        done = subprocess.run(command, check=False, input=mail.as_bytes(), capture_output=True, timeout=TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise GpuledgerError(f"{command[0]} does not end", "check the mail server", "timeout") from None
    except OSError as error:
        raise GpuledgerError(f"cannot run {command[0]}: {error.strerror}", "install it") from None
    if done.returncode:
        raise GpuledgerError(
            f"{command[0]} refuses mail to {address} with code {done.returncode}", "correct the address"
        )
    return True


def _slack(message: Message) -> Mapping[str, Any]:
    owner = f"\nowner: {message.contact.address}" if message.contact.address else ""
    return {"text": f"{message.text}{owner}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def _alert(message: Message) -> Mapping[str, Any]:
    """The body that Alertmanager posts to a webhook, with one alert."""
    finding, owner = message.finding, message.finding.owner
    names = {"alertname": finding.reason, "node": finding.node, "gpu": finding.gpu, "uuid": finding.uuid,
             "namespace": owner.namespace, "pod": owner.pod, "container": owner.container,
             "batch_job": owner.job}  # fmt: skip
    labels = {name: text for name, text in names.items() if text}
    annotations = {"summary": message.title, "description": "\n".join(message.lines), "owner": message.contact.address}
    alert = {"status": "firing", "labels": labels, "annotations": annotations, "startsAt": _time(finding.since_s),
             "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "", "fingerprint": ""}  # fmt: skip
    return {"version": "4", "groupKey": finding.key, "truncatedAlerts": 0, "status": "firing", "receiver": "gpuledger",
            "groupLabels": labels, "commonLabels": labels, "commonAnnotations": annotations, "externalURL": "",
            "alerts": [alert]}  # fmt: skip


def _event(message: Message) -> Mapping[str, Any]:
    now, owner = _time(datetime.now(timezone.utc).timestamp()), message.finding.owner
    return {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "count": 1, "source": {"component": "gpuledger"},
        "metadata": {"generateName": "gpuledger-", "namespace": owner.namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": owner.namespace, "name": owner.pod,
                           "uid": message.contact.pod_uid},
        "reason": message.finding.reason, "message": message.text[:EVENT_MESSAGE],
        "firstTimestamp": now, "lastTimestamp": now,
    }  # fmt: skip


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
