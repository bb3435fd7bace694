"""Checks that open what `serve` would open: ports, the journal, the dcgm-exporter; each with a time limit."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Generic, TypeVar

from gpuledger.catalog.dialects.dcgmnames import BY_NEW, BY_OLD, LABELS
from gpuledger.driver import nvml
from gpuledger.driver.processes import NewSamples, OldSamples
from gpuledger.errors import ConfigError, HttpError, JournalError, ListenError, UpstreamError, UsageError
from gpuledger.integrations.scrape import Source
from gpuledger.model import Reading
from gpuledger.net.address import parse_listen_address, redacted
from gpuledger.net.answers import load_json
from gpuledger.net.http import Client
from gpuledger.net.jsonvalues import as_dict, as_dicts, as_line, as_text
from gpuledger.runtime.deadline import Deadline
from gpuledger.runtime.threads import Worker
from gpuledger.storage.journalfile import JournalFile
from gpuledger.tools.doctor.finding import Finding, explained, ok, problem, unused, warning
from gpuledger.tools.prometheus.client import API, parse_place
from gpuledger.web.listen import listen
from gpuledger.web.snapshot.problems import REPORT_FIX

log = logging.getLogger(__name__)

JOURNAL, UPSTREAM, RULES = "journal", "dcgm-exporter", "rules"
RULES_S, LARGEST_RULES, MOST_RULES = 4.0, 16 << 20, 20
T = TypeVar("T")


class Bounded(Generic[T]):
    """A check in its own thread, with a time limit that starts now. A hung thread ends with the process."""

    def __init__(self, name: str, job: Callable[[], T], limit_s: float, fix: str) -> None:
        self._name, self._fix = name, fix
        self._deadline = Deadline(limit_s)
        self._worker: Worker[T] = Worker(f"check {name}")
        self._worker.start(job)

    def outcome(self) -> T | Finding:
        """The result of the job, or a finding if it failed or did not return in time."""
        try:
            result = self._worker.result(self._deadline.remaining_s)
        except Exception as error:  # the other checks are still useful
            log.debug("%s", self._name, exc_info=True)
            return problem(self._name, f"the check itself failed: {type(error).__name__}: {error}", REPORT_FIX)
        finally:
            self._worker.close()
        if result is None:
            return problem(self._name, f"does not return within {self._deadline.timeout_s:g} s", self._fix)
        return result


def findings(check: Bounded[list[Finding]]) -> list[Finding]:
    """The findings of a check, or one finding if it failed."""
    outcome = check.outcome()
    return [outcome] if isinstance(outcome, Finding) else outcome


def ports(addresses: Sequence[str], is_ours: Callable[[str], bool]) -> list[Finding]:
    """Whether each address is free; `is_ours` returns whether a gpuledger listens there."""
    return [_port(address, is_ours) for address in addresses]


def _port(address: str, is_ours: Callable[[str], bool]) -> Finding:
    name = f"listen {address}"
    _, port = parse_listen_address(address)
    try:
        listen(address).close()
    except ListenError as error:
        if is_ours(address):
            return ok(name, "a gpuledger is already listening there")
        cause = explained(name, error.problem)
        fix = f"`sudo ss -ltnp 'sport = :{port}'` shows which process uses it; {cause.fix}"
        return problem(name, cause.text, fix)
    return ok(name, "free")


def journal(path: str, boot_id: str, *, is_running: bool) -> list[Finding]:
    """Whether the journal can be written and restored. Leaves no file behind.

    `is_running`: a gpuledger listens on the configured address.
    """
    if not path:
        return [unused(JOURNAL, "--journal.path is not set")]
    try:
        file = JournalFile(path)
    except UsageError as error:
        return [explained(JOURNAL, error.problem)]
    return [_locked(file, is_running=is_running) or _unwritable(file) or _restorable(file, boot_id)]


def _locked(file: JournalFile, *, is_running: bool) -> Finding | None:
    if not _is_locked(file.path.with_name(f"{file.path.name}.lock"), is_running=is_running):
        return None
    if is_running:
        return ok(JOURNAL, f"{file.path} is in use by the running gpuledger")
    fix = "choose another file with --journal.path, or stop the other gpuledger"
    return problem(JOURNAL, f"{file.path} is in use by another gpuledger", fix)


def _is_locked(path: Path, *, is_running: bool) -> bool:
    """Whether another process has the lock. If this user may not open the file, a running gpuledger has it."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except PermissionError:
        return is_running
    except OSError:
        return False
    return False


def _unwritable(file: JournalFile) -> Finding | None:
    if file.path.exists() and not file.path.is_file():
        return problem(JOURNAL, f"{file.path} is not a regular file", "choose another file with --journal.path")
    try:
        with tempfile.TemporaryFile(dir=file.path.parent) as trial:
            trial.write(b"gpuledger")
    except OSError as error:
        create = f"`sudo install -d -o {os.getuid()} -g {os.getgid()} {file.path.parent}`"
        fix = f"{create}; under systemd `RuntimeDirectory=gpuledger`; choose a directory that is not read-only"
        return problem(JOURNAL, f"{file.path} cannot be written: {error.strerror}", fix)
    return None


def _restorable(file: JournalFile, boot_id: str) -> Finding:
    try:
        state = file.read(boot_id)
    except JournalError as error:
        text = f"{file.path} cannot be restored: {error.problem.what}; totals will restart from zero"
        return warning(JOURNAL, text, f"`rm {file.path}`, or start gpuledger, which overwrites it")
    return ok(JOURNAL, f"{file.path} can be written{' and restored' if state else ', and does not exist yet'}")


def upstream(url: str, source: Callable[[], Source]) -> list[Finding]:
    """Whether the dcgm-exporter at `url` responds; `source` opens it as `serve` would."""
    if not url:
        return [unused(UPSTREAM, "--dcgm-exporter.url is not set")]
    try:
        families = source().read().families or []
    except ConfigError as error:
        return [explained(UPSTREAM, error.problem)]
    except UpstreamError as error:
        cause = explained(UPSTREAM, error.problem)
        look = f"`ls -l {url}`" if url.startswith(("/", "file://")) else f"`curl -i {redacted(url)}`"
        return [problem(UPSTREAM, cause.text, f"{cause.fix}; see {look}")]
    return [ok(UPSTREAM, f"responds with {len(families)} metrics{_version({f.name.decode() for f in families})}")]


def _version(names: set[str]) -> str:
    """Which of its two name sets a dcgm-exporter uses; both if it is a gpuledger."""
    has_old, has_new = names & BY_OLD.keys(), names & BY_NEW.keys()
    if has_old and has_new:
        return " under the names of both 4.8 and 4.9"
    if has_new:
        return " under the names of 4.9; `gpuledger translate` lists and rewrites queries that use those of 4.8"
    return " under the names of 4.8, which 4.9 will change" if has_old else ""


def rules(url: str) -> list[Finding]:
    """The rules of a Prometheus that use names which dcgm-exporter 4.9 does not have."""
    try:
        address, prefix = parse_place(url)
        status, body = Client(address, name=redacted(url)).get(f"{prefix}{API}/rules", RULES_S, LARGEST_RULES)
        if status != HTTPStatus.OK:
            raise ValueError(f"responds with status {status}")
        groups = as_dicts(as_dict(as_dict(load_json(body)).get("data")).get("groups"))
    except (ValueError, RecursionError, HttpError) as error:
        what = error.problem.what if isinstance(error, HttpError) else f"{redacted(url)} {error}"
        return [problem(RULES, f"cannot read rules: {what}", "check --prometheus.url")]
    listed = [rule for group in groups for rule in as_dicts(group.get("rules"))]
    old = BY_OLD.keys() | LABELS.keys()
    names = [as_line(rule.get("name")) for rule in listed if old & set(re.findall(r"\w+", as_text(rule.get("query"))))]
    if not names:
        return [ok(RULES, f"none of {len(listed)} uses a name that dcgm-exporter 4.9 removes")]
    text = f"{len(names)} of {len(listed)} use names that dcgm-exporter 4.9 removes: {', '.join(names[:MOST_RULES])}"
    return [warning(RULES, text, "`gpuledger translate FILE...` rewrites them")]


def samples_us(readings: Iterable[Reading]) -> list[int]:
    """Times of the utilization samples of GPUs that are busy. Calls the driver, which may hang."""
    samples: list[int] = []
    for reading in readings:
        if reading.up and reading.utilization_pct and not reading.device.parent_uuid:
            for form in (NewSamples(), OldSamples()):
                with suppress(nvml.NvmlError):
                    rows = form(nvml.HANDLE_BY_INDEX(reading.device.index), 0)
                    samples += [row[form.timestamp_at] for row in rows]
                    break
    return samples
