"""Sources of snapshots."""

from __future__ import annotations

from typing import Any

from gpuledger.tools.top.bars import History
from gpuledger.web.snapshot.codec import decode
from gpuledger.web.snapshot.schema import Snapshot
from tests.web.snapshot.pictures import Picture, shown_as


class Told:
    """A source that returns these snapshots one after the other, or raises an error."""

    name = "http://n1:9400"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self) -> Any:
        """The next answer; the last one again and again."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return decode(answer)


def watched(*pictures: Picture) -> tuple[Snapshot, History]:
    """The last snapshot and the history of all."""
    history = History()
    for snapshot in map(shown_as, pictures):
        history.add(snapshot)
    return shown_as(pictures[-1]), history
