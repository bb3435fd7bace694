"""The configuration: flags before environment before YAML file before defaults, checked once, then frozen.

Every option stands once in OPTIONS. `--tick.interval 5s`, `GPULEDGER_TICK_INTERVAL=5s` and
`tick: {interval: 5s}` in the file are the same thing, and all of them go through the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger import durations
from gpuledger.errors import ConfigError
from gpuledger.export.listen import parse_address

LOG_LEVELS = ("debug", "info", "warn", "error")
LOG_FORMATS = ("logfmt", "json")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. `parse` turns its text into a value, or raises ValueError with what would be right."""

    key: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str
    aliases: tuple[str, ...] = ()
    """Flags of older tools that mean the same."""
    variables: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    """Environment variables of older tools, each with how its value is written in ours."""
    many: bool = False
    later: bool = False
    """Accepted so that the command lines of older tools work, but without effect yet."""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "GPULEDGER_" + self.key.upper().replace(".", "_").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.parse is _switch

    @property
    def name(self) -> str:
        """Its name in Config."""
        return self.key.replace(".", "_").replace("-", "_")


def _switch(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError("is neither true nor false")


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return text

    return parse


def _between(shortest: str, longest: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = durations.parse(text)
        if not durations.parse(shortest) <= seconds <= durations.parse(longest):
            raise ValueError(f"is out of range; choose from {shortest} to {longest}")
        return seconds

    return parse


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise ValueError("is not a number from 1 to 10000")
    return int(text)


def _address(text: str) -> str:
    try:
        parse_address(text)
    except ValueError as error:
        raise ValueError(str(error).partition(": ")[2]) from None
    return text


def _url_path(text: str) -> str:
    if not text.startswith("/") or len(text) < 2 or any(c in text for c in "?#% "):
        raise ValueError("is not a path; write it as /metrics")
    if text in ("/healthz", "/readyz"):
        raise ValueError("is taken; choose another path, such as /metrics")
    return text


def _source(text: str) -> str:
    kind, _, path = text.partition(":")
    if text != "nvml" and (kind != "replay" or not path):
        raise ValueError("is no source; write nvml or replay:FILE")
    return text


def _seconds(text: str) -> str:
    """SCRAPE_INTERVAL of older tools is a bare number of seconds."""
    return f"{text}s" if text.replace(".", "", 1).isdecimal() else text


OPTIONS: tuple[Option, ...] = (
    Option("web.listen-address", (":9400",), "Address to listen on; may be given several times.", _address,
           ("listen-address",), {"EXPORTER_PORT": lambda port: f":{port}"}, many=True),
    Option("web.telemetry-path", "/metrics", "Path under which the metrics are.", _url_path, ("metrics-path",)),
    Option("web.max-connections", 64, "Most HTTP connections at a time.", _count, ("web.max-requests",)),
    Option("tick.interval", 1.0, "Time between two readings.", _between("100ms", "60s"),
           ("process-scan-interval",), {"SCRAPE_INTERVAL": _seconds}),
    Option("driver.timeout", 2.0, "How long a driver call may take before its GPU counts as hung.",
           _between("100ms", "60s")),
    Option("collector.pcie-throughput", False,
           "Measure PCIe traffic also where GPM is missing; blocks 40 ms per GPU and tick.", _switch),
    Option("source", "nvml", "Where readings come from: nvml, or replay:FILE.", _source),
    Option("path.procfs", "/proc", "Where the host's /proc is mounted."),
    Option("log.level", "info", f"Log from this level on: {', '.join(LOG_LEVELS)}.", _one_of(*LOG_LEVELS)),
    Option("log.format", "logfmt", f"Form of log lines: {', '.join(LOG_FORMATS)}.", _one_of(*LOG_FORMATS)),
    Option("metric-retention", 300.0, "How long the numbers of an exited process stay.",
           _between("1s", "1d"), later=True),
    Option("metric-prefix", "gpu_process", "Prefix of the names in the process dialect.", later=True),
    Option("kubernetes-enabled", False, "Ask the kubelet and the runtime for pod names.", _switch, later=True),
    Option("pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "Socket of the kubelet.", later=True),
    Option("dcgm-update-frequency", 1.0, "How often DCGM's collector samples.", _between("100ms", "60s"), later=True),
)  # fmt: skip

CONFIG_FILE = Option("config.file", "", "YAML file with any of these settings.", aliases=("config",))


@dataclass(frozen=True, slots=True)
class Config:
    """What every part of the program is set to."""

    web_listen_address: tuple[str, ...]
    web_telemetry_path: str
    web_max_connections: int
    tick_interval: float
    driver_timeout: float
    collector_pcie_throughput: bool
    source: str
    path_procfs: str
    log_level: str
    log_format: str
    metric_retention: float
    metric_prefix: str
    kubernetes_enabled: bool
    pod_resources_socket: str
    dcgm_update_frequency: float
    unused: tuple[str, ...]
    """Settings that were given and have no effect in this version."""


def load(flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> Config:
    """The configuration from flags (by key, each as the texts given) and environment, and the file they may name."""
    path = (flags.get(CONFIG_FILE.key) or [environment.get(CONFIG_FILE.variable, "")])[-1]
    in_file = read_file(Path(path)) if path else {}
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS}
    unused = []
    for option in OPTIONS:
        given = _given(option, flags, environment, in_file, path)
        if given is None:
            continue
        where, texts = given
        parsed = tuple(_parse(option, where, text) for text in texts)
        values[option.name] = parsed if option.many else parsed[-1]
        if option.later:
            unused.append(where)
    return Config(**values, unused=tuple(unused))


def _given(
    option: Option,
    flags: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    in_file: Mapping[str, Sequence[str]],
    path: str,
) -> tuple[str, Sequence[str]] | None:
    """Where the option was given and as which texts; None when it was not."""
    if option.key in flags:
        return f"--{option.key}", flags[option.key]
    if option.variable in environment:
        text = environment[option.variable]
        return option.variable, [part.strip() for part in text.split(",")] if option.many else [text]
    if option.key in in_file:
        return f"{path}: {option.key}", in_file[option.key]
    for variable, translate in option.variables.items():
        if variable in environment:
            return variable, [translate(environment[variable])]
    return None


def _parse(option: Option, where: str, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} {error}") from None


def check_environment(environment: Mapping[str, str]) -> None:
    """A misspelt GPULEDGER_ variable is an error, not a setting that silently does nothing."""
    known = [option.variable for option in (*OPTIONS, CONFIG_FILE)]
    for variable in sorted(environment):
        if variable.startswith("GPULEDGER_") and variable not in known:
            raise ConfigError(f"{variable}: there is no such setting{suggest(variable, known)}")


def read_file(path: Path) -> dict[str, list[str]]:
    """The settings of a YAML file by key, as texts."""
    import yaml  # only when there is a file: 2.6 MB

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config.file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config.file: {path} is not a text file in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigError(f"--config.file: {path}{where} is not YAML: {problem}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"--config.file: {path} holds no settings; write lines such as `tick: {{interval: 5s}}`")
    settings = dict(_flatten(data, ""))
    known = {option.key: option for option in OPTIONS}
    for key, texts in settings.items():
        if key not in known:
            raise ConfigError(f"{path}: there is no setting {key!r}{suggest(key, known)}")
        if len(texts) != 1 and not known[key].many:
            raise ConfigError(f"{path}: {key} takes one value, not a list")
    return settings


def _flatten(data: Mapping[Any, Any], prefix: str) -> list[tuple[str, list[str]]]:
    settings: list[tuple[str, list[str]]] = []
    for name, value in data.items():
        key = f"{prefix}{name}".replace("_", "-")
        if isinstance(value, dict):
            settings += _flatten(value, f"{key}.")
        elif isinstance(value, list):
            settings.append((key, [_text(item) for item in value]))
        else:
            settings.append((key, [_text(value)]))
    return settings


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def suggest(word: str, known: Any) -> str:
    """`; did you mean X?` when something known is close, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def dump(config: Config) -> str:
    """The configuration as a YAML file that gives the same one again."""
    import yaml

    tree: dict[str, Any] = {}
    for option in OPTIONS:
        value = getattr(config, option.name)
        if isinstance(value, float):
            value = durations.show(value)
        elif isinstance(value, tuple):
            value = list(value)
        *groups, name = option.key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[name] = value
    return str(yaml.safe_dump(tree, sort_keys=False))
