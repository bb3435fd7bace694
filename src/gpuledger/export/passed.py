"""Somebody else's metrics, passed on as the text they are; compressed once an answer, not once a scrape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from gpuledger.export.bodies import compress, whole

Families = Sequence[tuple[bytes, bytes]]
"""The name and the lines of each; another answer is another object."""


class Passed:
    """Bodies of whatever `latest` gives, which is None when there is nothing to pass on."""

    def __init__(self, latest: Callable[[], Families | None]) -> None:
        self._latest = latest
        self._lock = threading.Lock()
        self._compressed: tuple[Families | None, bytes] = (None, b"")

    def get(self, encoding: str) -> bytes | Iterable[bytes] | None:
        """The body whole, or in chunks when it is large."""
        families = self._latest()
        if families is None:
            return None
        texts = (text for _, text in families)
        if encoding != "gzip":
            return whole(texts)
        with self._lock:
            if self._compressed[0] is not families:
                self._compressed = (families, b"".join(compress(texts)))
            return self._compressed[1]

    def beside(self, ours: Collection[str]) -> Iterator[bytes]:
        """What can stand in one page with metrics of these names: none must be there twice."""
        return (text for name, text in self._latest() or () if name.decode() not in ours)
