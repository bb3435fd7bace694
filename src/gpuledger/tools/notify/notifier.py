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

from gpuledger.errors import ConfigError, GpuledgerError, HttpError, PrometheusError
from gpuledger.runtime.poller import Poller
from gpuledger.runtime.statelog import StateLog
from gpuledger.storage.atomicfile import replacing
from gpuledger.tools.notify.config import DAY_S, NotifyConfig
from gpuledger.tools.notify.contacts import Contacts
from gpuledger.tools.notify.findings import Finding, findings, queries
from gpuledger.tools.notify.send import Message, Send, message, receivers
from gpuledger.tools.prometheus.answer import Series

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
LISTED_S = 30 * DAY_S
"""Time after which an owner without an address is forgotten, and may be logged again."""
LATE = ("timeout", "half", "http", "size")
"""Kinds of errors after which a message may have arrived."""
RunQuery = Callable[[str, float], tuple[Series, ...]]
"""The result of a query at a time."""
Times = dict[str, float]


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
        self._sent, self._unreachable = _newer(self._sent, now_s, DAY_S), _newer(self._unreachable, now_s, LISTED_S)
        due = [finding for finding in findings(self._config, answers, now_s) if finding.key not in self._sent]
        messages = [text for finding in due if (text := self._message(finding, now_s)) is not None]
        if self._show is not None:
            for text in messages:
                self._show(text.text)
                self._sent[text.finding.key] = now_s
        elif messages:
            self._deliver(messages, now_s)
        return True

    def _message(self, finding: Finding, now_s: float) -> Message | None:
        """None if the allocation is exempt, or its pod cannot be read: it may be exempt."""
        config, name, place = self._config, finding.owner.display_name, f"pods of {finding.owner.namespace}"
        try:
            contact = self._contacts.find(finding, now_s)
        except GpuledgerError as error:
            self._log.change(place, error.kind or "failed", f"{place} cannot be read: {error}", "")
            return None
        self._log.change(place, "", "", f"{place} can be read again")
        if contact.exempt_until_s > now_s:
            return None
        if not contact.address and config.mail is not None:  # webhooks and Events need none
            if name not in self._unreachable:
                log.warning("no address is known for %s; add it to the mapping file", name)
            self._unreachable[name] = now_s
        return message(finding, contact, "" if config.kubeconfig is None else config.keep_until)

    def _deliver(self, messages: Sequence[Message], now_s: float) -> None:
        self._store(self._sent | {text.finding.key: now_s for text in messages})
        with ThreadPoolExecutor(len(self._receivers)) as pool:
            sending = [pool.submit(self._send_all, name, send, messages) for name, send in self._receivers]
            results = [future.result() for future in sending]
        failed = {text.finding.key for text, *arrived in zip(messages, *results, strict=True) if not any(arrived)}
        self._store({key: sent_s for key, sent_s in self._sent.items() if key not in failed})

    def _send_all(self, name: str, send: Send, messages: Sequence[Message]) -> list[bool]:
        """Whether each message may have arrived. A receiver that does not answer gets no more in this round."""
        arrived: list[bool] = []
        reason, answers = "", True
        for text in messages:
            try:
                arrived.append(answers and send(text))
            except (GpuledgerError, ValueError) as error:  # ValueError: a text that cannot be sent
                reason = str(error)
                arrived.append(getattr(error, "kind", "") in LATE)
                answers = not (arrived[-1] or isinstance(error, HttpError))
        self._log.change(name, reason, f"a message could not be sent: {reason}", f"{name} works again")
        return arrived

    def _store(self, sent: Times) -> None:
        """Raises UsageError; nothing counts as sent then."""
        with replacing(self._config.state, private=True) as file:
            file.write(json.dumps({"version": 1, "sent": sent, "unreachable": self._unreachable}).encode())
        self._sent = sent


def _newer(times: Times, now_s: float, age_s: float) -> Times:
    """Those that are not older, and not in a future that the clock has left."""
    return {key: time_s for key, time_s in times.items() if abs(now_s - time_s) < age_s}


def _load(path: str) -> tuple[Times, Times]:
    """Times of sent messages by allocation, and of owners without an address by name."""
    try:
        data = json.loads(Path(path).read_bytes())
        if data["version"] == 1:
            sent, unreachable = (
                {key: float(time_s) for key, time_s in data[name].items()} for name in ("sent", "unreachable")
            )
            return sent, unreachable
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "name a file that can be read and written") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ConfigError(f"{path} is not a state of --notify", "move it away; owners may then get a message twice")
