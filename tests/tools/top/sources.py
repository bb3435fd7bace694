"""Sources of snapshots."""

from __future__ import annotations

from typing import Any

from gpuledger.web.snapshot.codec import decode


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
