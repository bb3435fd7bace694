"""Content negotiation: the format and the encoding for a client's Accept and Accept-Encoding headers.

RFC 9110: each format has the quality of the most specific media range that matches it, and the highest quality wins.
The response is never 406: a scrape in the text format is worth more than an error.
"""

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

# Commas and semicolons inside quoted strings are not separators.
_ELEMENT = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+', re.DOTALL)
_PARAMETER = re.compile(r'(?:[^;"]|"(?:\\.|[^"\\])*"?)+', re.DOTALL)
_QUALITY = re.compile(r"0(\.[0-9]*)?|1(\.0*)?")

# How specifically a media range matches a format: same version, no version, another version, `type/*`, `*/*`.
_EXACT, _UNVERSIONED, _OTHER_VERSION, _TYPE, _ANY = range(4, -1, -1)


class Format(Enum):
    """An exposition format; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @property
    def content_type(self) -> str:
        """The value of the Content-Type header."""
        return self.value


_NAMES = {Format.TEXT: ("text/plain", "0.0.4"), Format.OPENMETRICS: ("application/openmetrics-text", "1.0.0")}


# The same few headers come with every scrape; 16 entries stay small even if each is a full head of 16 KiB.
@lru_cache(maxsize=16)
def choose_format(accept: str | None) -> Format:
    """The best format for an Accept header; TEXT if it names none of ours."""
    best: dict[Format, tuple[int, float, int]] = {}
    foreign = False  # the client accepts another version of OpenMetrics
    for position, (name, version, quality) in enumerate(_elements(accept or "")):
        for form in Format:
            fit = _fit(form, name, version)
            if fit is None:
                continue
            if fit == _OTHER_VERSION:
                if form is Format.OPENMETRICS:
                    foreign = foreign or quality > 0
                    continue
                if quality == 0:  # rejects a version that is never sent anyway
                    continue
            best[form] = max(best.get(form, (-1, 0.0, 0)), (fit, quality, -position))
    ranked = [(quality, fit, position, form) for form, (fit, quality, position) in best.items() if quality > 0]
    if not ranked:
        return Format.OPENMETRICS if foreign and Format.OPENMETRICS not in best else Format.TEXT
    return max(ranked, key=lambda row: (*row[:3], row[3] is Format.TEXT))[3]


@lru_cache(maxsize=16)
def choose_encoding(accept_encoding: str | None) -> str:
    """`gzip` if the client does not prefer `identity`."""
    qualities: dict[str, float] = {}
    for name, _, quality in _elements(accept_encoding or ""):
        qualities.setdefault("gzip" if name == "x-gzip" else name, quality)
    gzip = qualities.get("gzip", qualities.get("*", 0.0))
    return "gzip" if gzip > 0 and gzip >= qualities.get("identity", 0.0) else "identity"


def _fit(form: Format, name: str, version: str) -> int | None:
    """How specifically a media range matches this format; None if it does not."""
    ours, our_version = _NAMES[form]
    if name == ours:
        if not version:
            return _UNVERSIONED
        return _EXACT if version == our_version else _OTHER_VERSION
    if name == "*/*":
        return _ANY
    return _TYPE if name == ours.partition("/")[0] + "/*" else None


def _elements(header: str) -> Iterator[tuple[str, str, float]]:
    """The (name, version, quality) of each element of a header; an element with an invalid quality is skipped."""
    for element in _ELEMENT.findall(header.lower()):
        name, *parameters = [part.strip() for part in _PARAMETER.findall(element)] or [""]
        version, quality = "", "1"
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.rstrip() == "version":
                version = value.strip().strip('"')
            elif key.rstrip() == "q":
                quality = value.strip()
        if name and _QUALITY.fullmatch(quality):
            yield name, version, float(quality)
