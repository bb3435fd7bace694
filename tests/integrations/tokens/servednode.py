"""A made-up node with servers of language models on two GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.books import Books
from gpuledger.model import Activity, Device, Driver, Facts, Owner, Owners, Reading, Resident, Sample, Tick

S = 10**9
START_NS = 1_700_000_000 * S
GPUS = tuple(Device(n, f"GPU-{n}", name="NVIDIA H200") for n in range(2))
OWNERS = {
    1: Owner(container="main", container_id="c1", namespace="ml", pod="chat-0", pod_uid="u1"),
    2: Owner(container="main", container_id="c2", namespace="ml", pod="code-0", pod_uid="u2"),
    3: Owner(container="main", container_id="c3", namespace="ml", pod="parked-0", pod_uid="u3"),
}


def tokens(prompt: float, output: float, model: str = "m") -> bytes:
    """Metrics of a vLLM."""
    name = f'{{engine="0",model_name="{model}"}}'
    return f"vllm:prompt_tokens_total{name} {prompt}\nvllm:generation_tokens_total{name} {output}\n".encode()


@dataclass
class Node:
    """Two GPUs: chat-0 is on both, code-0 and parked-0 share the second one with it."""

    books: Books = field(default_factory=Books)
    second: int = 0
    energy_mj: list[int] = field(default_factory=lambda: [7_000_000, 9_000_000])
    owners: dict[int, Owner] = field(default_factory=lambda: dict(OWNERS))
    idle: bool = False
    activity: Activity | None = None
    """Of the first GPU."""

    @property
    def now_ns(self) -> int:
        """Unix time."""
        return START_NS + self.second * S

    def tick(self, *mj: int) -> Tick:
        """The next second, in which each GPU uses this energy."""
        self.second += 1
        self.energy_mj = [before + more for before, more in zip(self.energy_mj, mj, strict=True)]
        readings = []
        for gpu, energy_mj, power_mw, pids in zip(GPUS, self.energy_mj, mj, [(1,), (1, 2, 3)], strict=True):
            work = {1: 40, 2: 30, 3: 0}
            here = () if self.idle else pids
            samples = tuple(Sample(pid, self.now_ns // 1000, work[pid], 0) for pid in here if work[pid])
            residents = tuple(Resident(pid, "compute") for pid in here)
            activity = self.activity if gpu.index == 0 else None
            readings.append(Reading(gpu, energy_mj=energy_mj, power_mw=power_mw, residents=residents, samples=samples,
                                    activity=activity))  # fmt: skip
        facts = {pid: Facts(pid, 1, 0) for pid in OWNERS}
        return self.books.book(
            Tick(self.now_ns, Driver(up=True), tuple(readings), facts=facts, owners=Owners(by_pid=self.owners))
        )
