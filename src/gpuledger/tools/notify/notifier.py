"""Sends at most one message per allocation and day.

A message is stored as sent before it is sent: after a crash it is lost, not sent twice. It is sent again only if every
receiver certainly failed, or none is for its owner: an address may be added meanwhile.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuledger.errors import ConfigError, GpuledgerError, PrometheusError
from gpuledger.runtime.poller import Poller
from gpuledger.runtime.statelog import StateLog
from gpuledger.storage.atomicfile import replacing
from gpuledger.tools.notify.config import NotifyConfig
from gpuledger.tools.notify.contacts import Contact, Contacts
from gpuledger.tools.notify.findings import Finding, findings, queries
from gpuledger.tools.notify.send import FAILED, NOT_FOR_IT, Message, Receiver, message, receivers
from gpuledger.tools.prometheus.answer import Series

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
DAY_S = 86400.0
LARGEST_STATE = 64 << 20
RunQuery = Callable[[str, float], tuple[Series, ...]]
"""The result of a query at a time."""


class Notifier:
    """Looks for findings once a minute. With `show`, messages are shown instead of sent, and nothing is stored."""

    def __init__(
        self, config: NotifyConfig, run_query: RunQuery, clock: Callable[[], float], show: Callable[[str], None] | None
    ) -> None:
        self._config, self._run_query, self._clock, self._show = config, run_query, clock, show
        self._contacts = Contacts(config)
        self._receivers = receivers(config, self._contacts)
        self._log = StateLog(log)
        self._sent, self._unreachable = _load(config.state)
        self.poller = Poller("notify", self.step, lambda: INTERVAL_S)

    def step(self) -> bool:
        """One round; whether Prometheus answered."""
        now_s = self._clock()
        try:
            answers = {name: self._run_query(promql, now_s) for name, promql in queries(self._config).items()}
        except PrometheusError as error:
            self._log.change("prometheus", error.kind, f"no messages: {error}", "")
            return False
        self._log.change("prometheus", "", "", "messages are sent again")
        self._sent = {key: sent_s for key, sent_s in self._sent.items() if now_s - sent_s < DAY_S}
        due = [finding for finding in findings(self._config, answers, now_s) if finding.key not in self._sent]
        messages = [text for finding in due if (text := self._message(finding, now_s)) is not None]
        if self._show is not None:
            for text in messages:
                self._show(text.text)
                self._sent[text.finding.key] = now_s
            return True
        if messages:
            self._deliver(messages, now_s)
        return True

    def _message(self, finding: Finding, now_s: float) -> Message | None:
        """None if the allocation is exempt, or its pod cannot be read: it may be exempt."""
        try:
            contact = self._contacts.find(finding, now_s)
        except GpuledgerError as error:
            self._log.change("pods", error.kind or "failed", f"pods cannot be read: {error}", "")
            return None
        self._log.change("pods", "", "", "pods can be read again")
        if contact.exempt_until_s > now_s:
            return None
        self._list_unreachable(finding, contact)
        return message(finding, contact, self._config.keep_until)

    def _list_unreachable(self, finding: Finding, contact: Contact) -> None:
        """Log an owner without an address, once. Webhooks and Events need none."""
        name = finding.owner.display_name
        if not contact.address and self._config.mail is not None and name not in self._unreachable:
            self._unreachable[name] = self._clock()
            log.warning("no address is known for %s; add it to the mapping file", name)

    def _deliver(self, messages: Sequence[Message], now_s: float) -> None:
        self._sent |= {text.finding.key: now_s for text in messages}
        self._store()
        with ThreadPoolExecutor(len(self._receivers)) as pool:
            results = list(pool.map(lambda receiver: self._send_all(receiver, messages), self._receivers))
        for n, text in enumerate(messages):
            of_message = {result[n] for result in results}
            if of_message <= {FAILED, NOT_FOR_IT}:
                del self._sent[text.finding.key]
        self._store()

    def _send_all(self, receiver: Receiver, messages: Sequence[Message]) -> list[str]:
        """The result of each message. After a failure, the receiver gets no more in this round."""
        results: list[str] = []
        for text in messages:
            if results and results[-1] not in ("sent", NOT_FOR_IT):
                results.append(FAILED)
                continue
            try:
                results.append(receiver.send(text))
                reason = f"{receiver.name}: {results[-1]}" if results[-1] not in ("sent", NOT_FOR_IT) else ""
            except GpuledgerError as error:
                results.append(FAILED)
                reason = str(error)
            self._log.change(
                receiver.name, reason, f"a message could not be sent: {reason}", f"{receiver.name} works again"
            )
        return results

    def _store(self) -> None:
        with replacing(self._config.state, private=True) as file:
            file.write(json.dumps({"version": 1, "sent": self._sent, "unreachable": self._unreachable}).encode())


def _load(path: str) -> tuple[dict[str, float], dict[str, float]]:
    """Times of sent messages by allocation, and of owners without an address by name."""
    try:
        with Path(path).open("rb") as file:
            data = json.loads(file.read(LARGEST_STATE))
        if data["version"] == 1:
            return tuple(
                {str(key): float(time_s) for key, time_s in data[name].items()} for name in ("sent", "unreachable")
            )  # type: ignore[return-value]
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "name a file that can be read and written") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ConfigError(f"{path} is not a state of --notify", "move it away; owners may then get a message twice")
