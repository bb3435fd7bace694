"""Receivers of messages: webhooks, Events of Kubernetes, and mail by the local sendmail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import EmailMessage
from typing import Any, Protocol
from urllib.parse import quote

from gpuledger.errors import GpuledgerError, HttpError
from gpuledger.model.owners import Owner
from gpuledger.net.http import Client
from gpuledger.net.kubeapi import ApiAccess
from gpuledger.tools.notify.config import ALERTMANAGER, Mail, NotifyConfig, Webhook
from gpuledger.tools.notify.contacts import Contact, Contacts, is_mail_address
from gpuledger.tools.notify.findings import IDLE, Finding

TIMEOUT_S = 10.0
ANSWER_BYTES = 64 << 10
EVENT_MESSAGE = 1024
"""Longest message of an Event."""
SENT, NOT_FOR_IT, FAILED, UNSURE = "sent", "not for it", "failed", "unsure"
"""Results: unsure is a timeout, after which the message may have arrived."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message about one allocation."""

    finding: Finding
    contact: Contact
    title: str
    lines: tuple[str, ...]

    @property
    def reason(self) -> str:
        """One word for programs."""
        return "GpuIdle" if self.finding.rule == IDLE else "GpuBelowEntitlement"

    @property
    def text(self) -> str:
        """The whole message."""
        return "\n".join((self.title, *self.lines))


def message(finding: Finding, contact: Contact, keep_until: str) -> Message:
    """What the owner should know: what was found, how to free the device, how to keep it."""
    about = "is allocated and not used" if finding.rule == IDLE else "is used far below what was asked for"
    title = f"GPU {finding.gpu} of {finding.node}, allocated to {finding.owner.display_name}, {about}"
    lines = [*finding.lines]
    lines += [f"to free it: {finding.command}"] if finding.command else []
    if finding.owner.pod:
        lines.append(f"to keep it: annotate the pod with {keep_until}: YYYY-MM-DD, the last day you need it")
    else:
        lines.append("to keep it: tell your administrators until when")
    return Message(finding, contact, title, tuple(lines))


class Receiver(Protocol):
    """Where messages go."""

    name: str

    def send(self, message: Message) -> str:
        """SENT, NOT_FOR_IT, FAILED or UNSURE; or raises GpuledgerError, which means FAILED."""


def receivers(config: NotifyConfig, contacts: Contacts) -> list[Receiver]:
    """The configured receivers."""
    chosen: list[Receiver] = [WebhookReceiver(webhook) for webhook in config.webhooks]
    chosen += [EventReceiver(contacts)] if config.events else []
    chosen += [MailReceiver(config.mail)] if config.mail else []
    return chosen


class WebhookReceiver:
    """Posts JSON, as Slack or a receiver of Alertmanager expects it."""

    def __init__(self, webhook: Webhook) -> None:
        self.name = f"webhook {webhook.address}"
        self._webhook, self._client = webhook, Client(webhook.address, name=f"the webhook {webhook.address}")

    def send(self, message: Message) -> str:
        """Any status from 200 to 299 is a success."""
        body = _alert(message) if self._webhook.format == ALERTMANAGER else _slack(message)
        return _post(self._client, self._webhook.path, body)


class EventReceiver:
    """Creates an Event on the pod."""

    name = "events"

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts

    def send(self, message: Message) -> str:
        """Owners that are no pods get none."""
        access, owner = self._contacts.api(), message.finding.owner
        if access is None or not owner.pod or not message.contact.pod_uid:
            return NOT_FOR_IT
        path = f"{access.path}/api/v1/namespaces/{quote(owner.namespace, safe='')}/events"
        return _post(access.client(), path, _event(message, owner), access)


class MailReceiver:
    """Sends mail."""

    name = "mail"

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    def send(self, message: Message) -> str:
        """Only to addresses of the configured domains, and to local users."""
        if not is_mail_address(message.contact.address, self._mail.domains):
            return NOT_FOR_IT
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = self._mail.sender, message.contact.address, message.title[:200]
        mail.set_content("\n".join(message.lines))
        command = [self._mail.sendmail, "-i", "-f", self._mail.sender, "--", message.contact.address]
        try:
            done = subprocess.run(command, check=False, input=mail.as_bytes(), capture_output=True, timeout=TIMEOUT_S)  # noqa: S603
        except subprocess.TimeoutExpired:
            return UNSURE
        except OSError as error:
            raise GpuledgerError(f"cannot run {self._mail.sendmail}: {error.strerror}", "install it") from None
        return SENT if done.returncode == 0 else FAILED


def _post(client: Client, path: str, body: object, access: ApiAccess | None = None) -> str:
    headers = (*(access.headers() if access else ()), "Content-Type: application/json")
    try:
        with client.stream(path, TIMEOUT_S, ANSWER_BYTES, *headers, body=json.dumps(body).encode()) as response:
            if 200 <= response.status < 300:
                return SENT
            raise GpuledgerError(f"{client.name} answers with status {response.status}", kind="http")
    except HttpError as error:
        if error.kind in ("timeout", "half", "http", "size"):
            return UNSURE
        raise


def _slack(message: Message) -> Mapping[str, Any]:
    text = message.text if not message.contact.address else f"{message.text}\nowner: {message.contact.address}"
    return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def _alert(message: Message) -> Mapping[str, Any]:
    """The body that Alertmanager posts to a webhook, with one alert."""
    finding, owner = message.finding, message.finding.owner
    names = {"namespace": owner.namespace, "pod": owner.pod, "container": owner.container, "batch_job": owner.job}
    place = {"alertname": message.reason, "node": finding.node, "gpu": finding.gpu, "uuid": finding.uuid}
    labels = {name: text for name, text in (place | names).items() if text}
    annotations = {"summary": message.title, "description": "\n".join(message.lines), "owner": message.contact.address}
    alert = {"status": "firing", "labels": labels, "annotations": annotations, "startsAt": _time(finding.since_s),
             "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "", "fingerprint": ""}  # fmt: skip
    return {"version": "4", "groupKey": finding.key, "truncatedAlerts": 0, "status": "firing", "receiver": "gpuledger",
            "groupLabels": labels, "commonLabels": labels, "commonAnnotations": annotations, "externalURL": "",
            "alerts": [alert]}  # fmt: skip


def _event(message: Message, owner: Owner) -> Mapping[str, Any]:
    now = _time(datetime.now(timezone.utc).timestamp())
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": "gpuledger-", "namespace": owner.namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": owner.namespace, "name": owner.pod,
                           "uid": message.contact.pod_uid},
        "reason": message.reason,
        "message": message.text[:EVENT_MESSAGE], "type": "Warning", "count": 1,
        "source": {"component": "gpuledger"}, "firstTimestamp": now, "lastTimestamp": now,
    }  # fmt: skip


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
