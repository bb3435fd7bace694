"""The web configuration file: read at the start, and again whenever it has changed."""

from __future__ import annotations

import os

from gpuledger.export.auth import need_bcrypt
from gpuledger.export.reloaded import Reloaded, seen
from gpuledger.export.webconfig import WebConfig, parse

LARGEST_BYTES = 1_000_000
"""Certificates may be in it. A larger file would take seconds to parse."""


class WebFile:
    """`get` gives what the file says, as of now. Raises ValueError when it cannot be used at the start."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._parsed: WebConfig | None = None
        self._reloaded = Reloaded(path, lambda: seen([path]), self._load)
        self.get = self._reloaded.get

    def _load(self) -> WebConfig:
        text = read_text(self.path)
        config = parse(text, os.path.dirname(self.path))  # noqa: PTH120 - texts
        if self._parsed is not None and config == WebConfig() != self._parsed:
            # Half-way through being written, or only comments by mistake: without users all were let in.
            raise ValueError("is empty; restart to serve without it")
        if config.users:
            need_bcrypt()
        self._parsed = config
        return config


def read_text(path: str) -> str:
    """A file as text. Raises ValueError in the words of other exporters."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the path as it was written
            text = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"open {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    if len(text) > LARGEST_BYTES:
        raise ValueError(f"{path} has more than {LARGEST_BYTES} characters")
    return text
