"""The checks of settings: each turns a text into a value, or raises ValueError with what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger import durations
from gpuledger.export.listen import parse_address
from gpuledger.net.address import parse_address as parse_docker_address


def switch(text: str) -> bool:
    """On or off."""
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError("is neither on nor off; write true or false")


@dataclass(frozen=True, slots=True)
class OneOf:
    """A check that can be asked for the words it takes: a shell offers them."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """The word itself."""
        if text not in self.choices:
            raise ValueError(f"is not one of {', '.join(self.choices)}")
        return text


def one_of(*choices: str) -> OneOf:
    """A check for one of these words."""
    return OneOf(choices)


def between(shortest: str, longest: str) -> Callable[[str], float]:
    """A check for a duration within these, in seconds."""

    def parse(text: str) -> float:
        seconds = durations.parse(text)
        if not durations.parse(shortest) <= seconds <= durations.parse(longest):
            raise ValueError(f"is out of range; choose from {shortest} to {longest}")
        return seconds

    return parse


def count(text: str) -> int:
    """A number of things."""
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 10_000:
        raise ValueError("is not a number from 1 to 10000")
    return int(text)


def address(text: str) -> str:
    """An address to listen on."""
    try:
        parse_address(text)
    except ValueError as error:
        reason = str(error).removeprefix(f"bad listen address {text!r}: ")
        raise ValueError(f"is no address: {reason}") from None
    return text


def port(text: str) -> str:
    """EXPORTER_PORT of older tools is a port alone."""
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError("is not a port; write a number from 1 to 65535")
    return f":{text}"


def url_path(text: str) -> str:
    """A path of ours that is not taken."""
    if not re.fullmatch("/[!-~]+", text) or any(c in text for c in "?#%"):
        raise ValueError("is not a path; write it as /metrics")
    if text in ("/healthz", "/readyz"):
        raise ValueError("is taken; choose another path, such as /metrics")
    return text


def source(text: str) -> str:
    """Where readings come from."""
    kind, _, path = text.partition(":")
    if text != "nvml" and (kind != "replay" or not path):
        raise ValueError("is no source; write nvml or replay:FILE")
    return text


def prefix(text: str) -> str:
    """What names of metrics can begin with."""
    if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", text):
        raise ValueError("cannot begin a metric's name; use letters, digits and _")
    return text


def path(text: str) -> str:
    """A path of a file or folder, which must be given."""
    if not text:
        raise ValueError("is no path")
    return text


interval = between("100ms", "60s")


def seconds(text: str) -> float:
    """SCRAPE_INTERVAL of older tools is a bare number of seconds."""
    return interval(text if text.endswith(("s", "m")) else f"{text}s")


def docker_host(text: str) -> str:
    """An address as in DOCKER_HOST."""
    try:
        parse_docker_address(text)
    except ValueError:
        raise ValueError("is no address; write it as unix:///var/run/docker.sock or tcp://host:2375") from None
    return text


def upstream(text: str) -> str:
    """Where a dcgm-exporter's metrics are, or nothing."""
    if text:
        from gpuledger.upstream.source import parse_place  # memory that few need

        parse_place(text)
    return text


def regex(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text
