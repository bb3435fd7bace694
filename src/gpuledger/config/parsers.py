"""Parsers of setting values. Each converts a text, or raises ValueError with the mistake and its correction."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuledger.config import durations
from gpuledger.net.address import has_credentials, parse_address, parse_listen_address, parse_place, parse_url

USED_PATHS = re.compile("/(healthz|readyz|sd)|/(api|page)/.*|/(dcgm|gpu|inference|process|jobstats)/metrics")
"""Paths of other pages, of the exporter and of `fleet`."""
ANNOTATIONS = "annotations"
"""The value of --tokens.scrape for annotated pods."""
OWNER = re.compile(r"(?:(unit|job|pid):)?([\w.@:/\\-]{1,512})", re.ASCII)
OWNER_FIX = "write OWNER=URL, such as ml/vllm-0=http://10.0.0.7:8000/metrics, or annotations"
HOSTENGINE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


def switch(text: str) -> bool:
    """A boolean."""
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError("is not a boolean; write true or false")


class OneOf:
    """A parser of one of these words. Shell completion reads `choices`."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, text: str) -> str:
        """The word, unchanged."""
        if text not in self.choices:
            raise ValueError(f"is not one of {', '.join(self.choices)}")
        return text


def between(shortest: str, longest: str) -> Callable[[str], float]:
    """A parser of durations in this range, in seconds."""

    def parse(text: str) -> float:
        seconds = durations.parse(text)
        if not durations.parse(shortest) <= seconds <= durations.parse(longest):
            raise ValueError(f"is out of range; choose from {shortest} to {longest}")
        return seconds

    return parse


def count(text: str) -> int:
    """A whole number from 1 to 10000."""
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 10_000:
        raise ValueError("is not a number from 1 to 10000")
    return int(text)


def percentage(text: str) -> str:
    """A percentage from 0% to 100%."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?%", text) or float(text[:-1]) > 100:
        raise ValueError("is not a percentage; write it as 5%")
    return text


def address(text: str) -> str:
    """A listen address."""
    parse_listen_address(text)
    return text


def port(text: str) -> str:
    """A port alone, as in EXPORTER_PORT of older exporters."""
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError("is not a port; write a number from 1 to 65535")
    return f":{text}"


def url_path(text: str) -> str:
    """A path that no other page uses."""
    if not re.fullmatch("/[!-~]+", text) or any(c in text for c in "?#%"):
        raise ValueError("is not a path; write it as /metrics")
    if USED_PATHS.fullmatch(text):
        raise ValueError("is already in use; choose another path, such as /metrics")
    return text


def domain(text: str) -> str:
    """A domain, or the name of a host."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", text):
        raise ValueError("is not a domain; write it as example.com, without a port")
    return text


def source(text: str) -> str:
    """A source of readings."""
    kind, _, path = text.partition(":")
    if text != "nvml" and (kind != "replay" or not path):
        raise ValueError("is not a source; write nvml or replay:FILE")
    return text


def prefix(text: str) -> str:
    """A prefix of metric names."""
    if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", text):
        raise ValueError("is not a valid start of a metric name; use letters, digits and _")
    return text


def path(text: str) -> str:
    """A path, which must not be empty."""
    if not text:
        raise ValueError("is not a path")
    return text


interval = between("100ms", "60s")
LONGEST_TICK_S = 5.0
"""The driver keeps 10 s of utilization samples; ticks must come well before they are lost."""


def seconds(text: str) -> float:
    """A number of seconds without a unit, as in SCRAPE_INTERVAL of older exporters; larger ones would lose samples."""
    return min(LONGEST_TICK_S, interval(text if text.endswith(("s", "m")) else f"{text}s"))


def docker_host(text: str) -> str:
    """The address of a Docker daemon, as in DOCKER_HOST."""
    if has_credentials(text):
        raise ValueError("contains a user name or password, which is not supported; use certificates")
    try:
        parse_address(text)
    except ValueError:
        raise ValueError("is not an address; write unix:///var/run/docker.sock or tcp://host:2375") from None
    return text


def hostengine(text: str) -> str:
    """The address of an nv-hostengine: HOST, HOST:PORT, unix:///PATH or empty."""
    match = HOSTENGINE.fullmatch(text)
    is_tcp = match is not None and 1 <= int(match[1] or 1) <= 65535
    if text and not is_tcp and not text.startswith("unix:///"):
        raise ValueError("is not an address; write it as localhost, 10.0.0.1:5555 or unix:///tmp/nv-hostengine")
    return text


def upstream(text: str) -> str:
    """The URL or path of a dcgm-exporter's metrics; may be empty."""
    if text:
        parse_place(text)
    return text


def otlp_endpoint(text: str) -> str:
    """The URL to which metrics are pushed; may be empty."""
    if text and (parse_url(text) is None or has_credentials(text)):
        raise ValueError("is not a URL without a password; write it as http://collector:4318/v1/metrics")
    return text


def otlp_base(text: str) -> str:
    """A URL without the path of metrics, as in OTEL_EXPORTER_OTLP_ENDPOINT."""
    return f"{otlp_endpoint(text).rstrip('/')}/v1/metrics" if text else text


def otlp_protocol(text: str) -> str:
    """The encoding of OTLP: protobuf over HTTP."""
    if text == "grpc":
        raise ValueError("is not supported; use http/protobuf and the collector's HTTP port, 4318")
    if text == "http/json":
        raise ValueError("is not supported; use http/protobuf, which collectors accept on the same port")
    return OneOf("http/protobuf")(text)


def milliseconds(text: str) -> float:
    """A number of milliseconds without a unit, as in the OTEL_* variables."""
    if not re.fullmatch("[0-9]{1,7}", text) or not 100 <= int(text) <= 600_000:
        raise ValueError("is not a number of milliseconds from 100 to 600000")
    return int(text) / 1000


def key_values(text: str) -> str:
    """`a=1,b=2`; may be empty."""
    for part in text.split(",") if text else ():
        if not re.fullmatch(r"[\w.!#$&*+^|~/-]+=[ -~]*", part.strip(), re.ASCII):
            raise ValueError("is no list of pairs; write KEY=VALUE,KEY=VALUE in ASCII, with percent-encoded values")
    return text


def tokens(text: str) -> str:
    """A server of language models and its owner: OWNER=URL, or `annotations`."""
    if text != ANNOTATIONS:
        owner_and_url(text)
    return text


def owner_and_url(text: str) -> tuple[str, str]:
    """The owner and the URL of a server of language models. Raises ValueError."""
    match = re.fullmatch(r"(.*?)=(https?://.*)", text)
    if match is None:
        raise ValueError(f"names no owner and URL; {OWNER_FIX}")
    owner = OWNER.fullmatch(match[1])
    if owner is None or (owner[1] == "pid" and not owner[2].isdigit()):
        raise ValueError(f"has no owner before the URL; {OWNER_FIX}")
    if not owner[1] and owner[2].count("/") > 1:
        raise ValueError("has an owner with more than one /; write NAMESPACE/POD=URL")
    if has_credentials(match[2]):
        raise ValueError("contains a user name or password, which is not supported; use a URL without authentication")
    if parse_url(match[2]) is None:
        raise ValueError("has no valid URL; write it as http://10.0.0.7:8000/metrics")
    return match[1], match[2]


def regex(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None
    return text


def checked(parse: Callable[[str], object], *, optional: bool = False) -> Callable[[str], str]:
    """A parser of texts that `parse` accepts, which stay texts; an optional one may be empty."""

    def check(text: str) -> str:
        if text or not optional:
            parse(text)
        return text

    return check
