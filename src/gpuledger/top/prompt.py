"""A line that is typed: what to search for, or what to filter by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuledger.top.line import Line, Piece, clean, cropped, head


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked for, and what was typed so far."""

    what: str
    text: str = ""
    before: str = ""
    """What it goes back to when it is given up."""

    def after(self, key: str, character: str | None) -> Prompt:
        """After one more key; those that mean nothing here change nothing."""
        if key in ("backspace", "ctrl+h"):
            return replace(self, text=self.text[:-1])
        if key == "ctrl+u":
            return replace(self, text="")
        return self.with_more(character) if character and character.isprintable() else self

    def with_more(self, text: str) -> Prompt:
        """The first line of some text added, such as one that is pasted."""
        return replace(self, text=self.text + clean(text.partition("\n")[0]))

    def line(self, columns: int) -> Line:
        """As it is shown: the end is always seen."""
        end = head(self.text[::-1], max(0, columns - len(self.what) - 3))[::-1]
        return cropped((Piece(f"{self.what}: ", "key"), Piece(end), Piece(" ", "cursor")), columns)
