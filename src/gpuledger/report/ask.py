"""Asks Prometheus all questions of a report, in pieces that it accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.errors import PrometheusError
from gpuledger.fleet.answer import Courses
from gpuledger.report import counters
from gpuledger.report.grouping import Grouping
from gpuledger.report.questions import Step, questions
from gpuledger.report.span import CHUNK, SHORTEST_S, Chunk, Span, show_moment
from gpuledger.report.tally import Tally

TOO_MUCH = ("timeout", "size", "query")
"""Failures that fewer cells at a time may help against: too many samples, too many bytes, too long."""


MOVED = (
    "the answer is of other moments than those that were asked for",
    "a query frontend may align them: ask what is behind it, or give a --from and a --to that are whole steps",
)
RENAMED = (
    "Prometheus scrapes exporters without honor_labels: true, and puts their own namespace and pod in place of "
    "those that use the GPUs"
)


class Server(Protocol):
    """What answers."""

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> Courses:
        """As a Prometheus does."""


@dataclass(slots=True)
class Asker:
    """Asks for one report. What is wrong with an answer is an error, or with `partial` a note."""

    server: Server
    partial: bool = False
    progress: Callable[[float], None] = lambda _: None
    """Told what part of it is done, from 0 to 1."""
    most: int = CHUNK
    """Cells at a time that it has accepted so far."""
    notes: dict[str, None] = field(default_factory=dict)

    def gather(self, grouping: Grouping, span: Span, gap_ms: int) -> Tally:
        """All answers; PrometheusError when one is missing, or when there is nothing in the whole span."""
        tally, seen, chunks = Tally(span.cells), bytearray(span.cells), span.chunks()
        for number, chunk in enumerate(chunks):
            step = Step(chunk.step_ms, gap_ms)
            there = self._cells(counters.present(step.text), chunk)
            for cell in there:
                seen[cell] = 1
            if not there:
                continue
            if grouping.of == "containers":
                self._look_for_renamed(counters.renamed(step.text), chunk)
            new = bool(self._cells(counters.newcomers(step.text), chunk))
            asked = [question for question in questions(grouping, step) if new or not question.newcomers]
            for done, question in enumerate(asked):
                self.progress((number + done / len(asked)) / len(chunks))
                for piece, answer in self._ask(question.promql, chunk):
                    tally.add(question, piece, answer.series)
        if not any(seen):
            between = f"from {show_moment(span.begin_ms)} to {show_moment(span.end_ms)}"
            what = f"there are no metrics of gpuledger {between}"
            raise PrometheusError(what, "is it scraped, and had it begun by then?", "empty")
        self._tell_of_gaps(span, seen)
        return tally

    def _cells(self, promql: str, chunk: Chunk) -> set[int]:
        """The cells in which the answer is over 0."""
        answers = self._ask(promql, chunk)
        return {
            piece.cell(moment_s)
            for piece, answer in answers
            for course in answer.series
            for moment_s, value in course.points
            if value > 0
        }

    def _ask(self, promql: str, chunk: Chunk) -> Iterator[tuple[Chunk, Courses]]:
        waiting = [chunk]
        while waiting:
            piece = waiting.pop()
            if piece.count > self.most:
                waiting += reversed(piece.halves())
                continue
            try:
                answer = self.server.query_range(promql, piece.first_s, piece.last_s, piece.step_ms / 1000)
            except PrometheusError as error:
                if error.kind not in TOO_MUCH:
                    raise
                if piece.count == 1:
                    raise PrometheusError(str(error), "a shorter --step asks for less at a time", error.kind) from None
                self.most = piece.count // 2
                waiting.append(piece)
                continue
            ends = [point[0] for course in answer.series for point in (*course.points[:1], *course.points[-1:])]
            if not all(map(piece.ends_at, ends)):
                raise PrometheusError(*MOVED, "format")
            self._look_at(answer, promql)
            yield piece, answer

    def _look_at(self, answer: Courses, promql: str) -> None:
        wrong = [f"Prometheus warns: {warning}" for warning in answer.warnings]
        if answer.dropped:
            wrong.append(f"{answer.dropped} values are no numbers (NaN or infinite) in {_shown(promql)}")
        self._wrong(wrong)

    def _look_for_renamed(self, promql: str, chunk: Chunk) -> None:
        courses = [course for _, answer in self._ask(promql, chunk) for course in answer.series]
        self._wrong([RENAMED] if any(course.labels.get("exported_namespace") for course in courses) else [])

    def _wrong(self, wrong: Sequence[str]) -> None:
        if wrong and not self.partial:
            raise PrometheusError(f"{wrong[0]}; a report would be wrong", "--allow-partial makes one", "partial")
        self.notes.update(dict.fromkeys(wrong))

    def _tell_of_gaps(self, span: Span, seen: bytearray) -> None:
        first, last = seen.find(1), seen.rfind(1)
        if first:
            self.notes[f"there are no data before {show_moment(span.begin_of(first))}"] = None
        if last + 1 < span.cells:
            self.notes[f"there are no data after {show_moment(span.begin_of(last + 1))}"] = None
        if missing := seen.count(0, first, last):
            share, short = 100 * missing / span.cells, span.step_ms < SHORTEST_S * 1000
            hint = "; or is --step shorter than the time between two scrapes?" if short else ""
            self.notes[f"there are no data of any GPU in {share:.1f} % of the time, somewhere in between{hint}"] = None


def _shown(promql: str) -> str:
    """The metric it is about."""
    found = re.search(r"[a-z_]*(?:gpu|gpuledger)_[a-z_]+", promql)
    return found[0] if found else promql[:80]
