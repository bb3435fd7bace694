"""The things of a tick as dialects see them: places with the labels of their holder, and parts of places."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.catalog.dialects.division import Part, divide
from gpuledger.catalog.dialects.holders import Place, Whose, places
from gpuledger.catalog.family import Kind, Thing
from gpuledger.model import Tick

Label = Callable[[Tick, Place, Whose], tuple[str, ...]]


class World:
    """The kinds of things that a dialect's families speak of, with the labels that `label` makes."""

    def __init__(self, labels: tuple[str, ...], label: Label, *, pod_uid: bool) -> None:
        self._label = label
        self._pod_uid = pod_uid
        self._seen: tuple[Tick, list[list[Place]]] | None = None
        self.gpus = Kind(labels, self._gpus, sparse=True)
        """Whole GPUs, once each."""
        self.places = Kind(labels, self._places, sparse=True)
        """MIG instances where a GPU is cut, else the GPU."""
        self.parts = Kind(labels, self._parts, sparse=True)

    def _by_gpu(self, tick: Tick) -> list[list[Place]]:
        """Each GPU with its instances; found once for all kinds."""
        if self._seen is None or self._seen[0] is not tick:
            groups: dict[str, list[Place]] = {}
            for place in places(tick, pod_uid=self._pod_uid):
                groups.setdefault(place.gpu.device.uuid, []).append(place)
            self._seen = tick, list(groups.values())
        return self._seen[1]

    def _gpus(self, tick: Tick) -> list[Thing]:
        return [self._held(tick, group[0]) for group in self._by_gpu(tick)]

    def _places(self, tick: Tick) -> list[Thing]:
        return [self._held(tick, place) for group in self._by_gpu(tick) for place in group[1:] or group]

    def _held(self, tick: Tick, place: Place) -> Thing:
        return self._label(tick, place, place.holder), place.reading

    def _parts(self, tick: Tick) -> list[Thing]:
        parts: list[Part] = []
        for gpu, *instances in self._by_gpu(tick):
            parts += divide(gpu, instances, pod_uid=self._pod_uid)
        return [(self._label(tick, part.place, part.whose), part) for part in parts]
