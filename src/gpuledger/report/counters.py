"""How much counters rose in a cell, as PromQL that adds nothing to what was scraped. Pure.

`increase` guesses what was before the first and after the last sample, and does not see what a series began with.
Here each cell, from `step` ago to now, takes what was there at its two ends and the highest and lowest between. A rise
is the sum of several questions; each of them is 0 or more, and no two of them take the same joule:

    went on       the highest now, less what was there at the beginning
    began anew    less now than at the beginning: all it has now, for it was set to 0 in between
    was born      not there at the beginning, though its GPU was: all it has
    came back     of those that may be hidden for a while: what they have, less what they last had
    was found     neither it nor its GPU were there: what it rose by since it was first seen
    bridged       of those found: what they had then, less what they last had before the gap
    born in a gap of those found: all they had then, if their GPU was there before the gap and they were not

A counter of the hardware did not begin at 0 when it was first seen: its first value counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SEEN = '{__name__=~"gpu_up|gpu_mig_info"}'
"""There for each GPU and each MIG instance in every scrape."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A family of counters, and the labels that tell one from another whatever they are named meanwhile."""

    series: str
    ids: tuple[str, ...]
    of_hardware: bool = False
    may_hide: bool = False
    """Whether the exporter may leave some out for a while: of processes it shows --process.max at most."""

    def rises(self, step: str, gap: str) -> Iterator[str]:
        """By how much each rose in the step that ends now: to be added up."""
        on, highest, now, before = self._on, self._highest(step), self._now, self._before(step)
        yield f"clamp_min({highest} - on ({on}) group_left () {before}, 0)"
        if self.of_hardware:
            yield f"({now} < on ({on}) group_left () {before}) - on ({on}) group_left () {self._lowest(step)}"
            yield f"({now} unless on ({on}) {before}) - on ({on}) group_left () {self._lowest(step)}"
        else:
            yield f"{now} < on ({on}) group_left () {before}"
            new, there = f"{highest} unless on ({on}) {before}", f"and on (uuid) {_gpu_before(step)}"
            if not self.may_hide:
                yield f"({new}) {there}"
                return
            yield f"({new} unless on ({on}) {self._earlier(step, gap)}) {there}"
            yield f"clamp_min(({new}) - on ({on}) group_left () {self._earlier(step, gap)}, 0) {there}"

    def found(self, step: str, gap: str) -> Iterator[str]:
        """The same where the GPU was not there at the beginning: it is new, or was away, for `gap` at most."""
        on = self._on
        first = f"{self._highest(step)} * 0 + on ({on}) group_left () {self._lowest(step)}"
        away = f"({first}) unless on ({on}) {self._before(step)}"
        earlier = self._earlier(step, gap)
        if self.of_hardware:
            yield f"clamp_min(({away}) - on ({on}) group_left () {earlier}, 0)"
            return
        new = f"unless on (uuid) {_gpu_before(step)}"
        known = f"max by (uuid) (last_over_time({SEEN}[{gap}] offset {step}))"
        now = f"{self._now} unless on ({on}) {self._before(step)} {new}"
        yield f"({now}) - on ({on}) group_left () {self._lowest(step)}"
        yield f"clamp_min(({away} {new}) - on ({on}) group_left () {earlier}, 0)"
        yield f"({away} {new} unless on ({on}) {earlier}) and on (uuid) {known}"

    @property
    def _on(self) -> str:
        return ", ".join(self.ids)

    @property
    def _now(self) -> str:
        """One series of each, with all labels, also when two Prometheus jobs scrape it."""
        return f"topk by ({self._on}) (1, {self.series})"

    def _highest(self, step: str) -> str:
        """With the labels it last had: a container whose pod was not known at first has less under that name."""
        return f"topk by ({self._on}) (1, max_over_time({self.series}[{step}]))"

    def _lowest(self, step: str) -> str:
        return f"min by ({self._on}) (min_over_time({self.series}[{step}]))"

    def _earlier(self, step: str, gap: str) -> str:
        return f"max by ({self._on}) (last_over_time({self.series}[{gap}] offset {step}))"

    def _before(self, step: str) -> str:
        return f"max by ({self._on}) ({self.series} offset {step})"


def present(step: str) -> str:
    """How many GPUs and MIG instances were seen in the step."""
    return f"count(max by (uuid) (count_over_time({SEEN}[{step}])))"


def renamed(step: str) -> str:
    """Namespaces in whose place Prometheus put that of the exporter."""
    series = 'container_gpu_energy_joules_total{exported_namespace!=""}'
    return f"count by (exported_namespace) (count_over_time({series}[{step}]))"


def newcomers(step: str) -> str:
    """How many of them were not there at its beginning."""
    return f"count(max by (uuid) (count_over_time({SEEN}[{step}])) unless on (uuid) {_gpu_before(step)})"


def _gpu_before(step: str) -> str:
    return f"max by (uuid) ({SEEN} offset {step})"
