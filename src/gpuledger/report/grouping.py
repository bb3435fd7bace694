"""What `--by` may be, and how the series of Prometheus are put into its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROCESS = ("uuid", "pid", "process_name")
"""Labels that say which process a series is of; without `instance`, which changes when the exporter's pod does."""


@dataclass(frozen=True, slots=True)
class Join:
    """Labels that are not on the series themselves but on another, of value 1."""

    info: str
    on: tuple[str, ...]
    labels: tuple[str, ...]

    def apply(self, vector: str, window: str) -> str:
        """The vector with the labels on it. Of several series that say something the one listed first counts."""
        on = ", ".join(self.on)
        known = f"max by ({on}, {', '.join(self.labels)}) (max_over_time({self.info}[{window}]))"
        return f"({vector}) * on ({on}) group_left ({', '.join(self.labels)}) topk by ({on}) (1, {known})"


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups, by the labels that make them."""

    name: str
    of: str
    """Whose series: containers, processes or gpus."""
    labels: tuple[str, ...]
    """Of the series themselves."""
    join: Join | None = None
    grant_join: Join | None = None
    """The same for devices that somebody was given."""
    grants: bool = True
    """Whether it is known who was given a device."""
    heads: tuple[str, ...] = ()
    """What the parts of a group's name are called."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """All labels of a group."""
        return (*self.labels, *(self.join.labels if self.join else ()))

    def key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The name of a group, from the labels of a series."""
        values = [labels.get(name, "") for name in self.wanted]
        if self.name == "node":
            return (next(filter(None, values), ""),)
        if self.name == "user":
            return (values[0] or (f"uid {values[1]}" if values[1] else ""),)
        return tuple(values)


def _of_process(*labels: str) -> Join:
    return Join("gpu_process_info", PROCESS, labels)


def _workload(*on: str) -> Join:
    return Join("gpu_owner_info", on, ("workload_kind", "workload_name"))


_MODEL = Join('{__name__=~"gpu_info|gpu_mig_info"}', ("uuid",), ("name",))
GROUPINGS: Mapping[str, Grouping] = {
    grouping.name: grouping
    for grouping in (
        Grouping("namespace", "containers", ("namespace",), heads=("namespace",)),
        Grouping("pod", "containers", ("namespace", "pod"), heads=("namespace", "pod")),
        Grouping("container", "containers", ("namespace", "pod", "container"), heads=("namespace", "pod", "container")),
        Grouping("workload", "containers", ("namespace",), _workload("container_id"), _workload("namespace", "pod"),
                 heads=("namespace", "kind", "workload")),
        Grouping("user", "processes", (), _of_process("user", "uid"), grants=False, heads=("user",)),
        Grouping("job", "processes", (), _of_process("batch_job"), heads=("job",)),
        Grouping("account", "processes", (), _of_process("batch_account"), grants=False, heads=("account",)),
        Grouping("node", "gpus", ("node", "hostname", "instance"), heads=("node",)),
        Grouping("model", "gpus", (), _MODEL, _MODEL, heads=("model",)),
    )
}  # fmt: skip
WHOLE = Grouping("whole", "gpus", ())
REASONS = Grouping("reason", "gpus", ("reason",))
