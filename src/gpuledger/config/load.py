"""The configuration: flags override environment variables, which override the YAML file, which overrides defaults.

Every setting is declared once, as a field of a dataclass (`settings.py`). `--tick.interval 5s`,
`GPULEDGER_TICK_INTERVAL=5s` and `tick: {interval: 5s}` in the file are the same setting and go through the same parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gpuledger.config import durations
from gpuledger.config.exporter import CONFIG_FILE, OPTIONS, Config
from gpuledger.config.settings import Option, options_of
from gpuledger.errors import ConfigError
from gpuledger.net.address import redacted

if TYPE_CHECKING:
    from gpuledger.config.yamlfile import Node

T = TypeVar("T")
URL = re.compile(r"\b(?:https?|tcp)://\S+", re.IGNORECASE)
TEXT_IN_QUERY = re.compile(r"""(["'`])(?:\\.|(?!\1).)*\1""")
LARGEST_FILE = 100_000
"""Characters. All settings together need a hundredth of this; a larger file would take seconds to parse."""


def load(flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> Config:
    """The exporter's configuration."""
    return load_as(Config, flags, environment)


def load_as(kind: type[T], flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> T:
    """Settings from flags (texts by key), from the environment, and from the file that either names."""
    options = options_of(kind)
    origin, path = f"--{CONFIG_FILE.key}", (flags.get(CONFIG_FILE.key) or [""])[-1]
    if not path:
        origin, path = CONFIG_FILE.variable, environment.get(CONFIG_FILE.variable, "")
    in_file = read_file(path, origin, options) if path else {}
    values: dict[str, Any] = {}
    for option in options:
        if option.key in flags:
            parsed = [_parse(option, f"--{option.key}", text) for text in flags[option.key]]
        elif option.variable in environment:
            text = environment[option.variable]
            texts = [part.strip() for part in text.split(",")] if option.many else [text]
            parsed = [_parse(option, option.variable, text) for text in texts]
        elif older := [name for name in option.variables if environment.get(name) and not _is_link(name, environment)]:
            parsed = [_parse(option, older[0], environment[older[0]], option.variables[older[0]])]
        elif option.key in in_file:
            line, texts = in_file[option.key]
            parsed = [_parse(option, f"{path}, line {line}: {option.key}", text) for text in texts]
        else:
            parsed = []
        values[option.name] = option.default if not parsed else tuple(parsed) if option.many else parsed[-1]
    return kind(**values)


def _parse(option: Option, origin: str, text: str, parse: Callable[[str], Any] | None = None) -> Any:
    try:
        if any(ord(character) < 32 for character in text):
            raise ValueError("contains a control character; remove it")
        return (parse or option.parse)(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: {redacted(_without_secrets(option.key, text))!r} {error}") from None


def check_environment(environment: Mapping[str, str], more: Iterable[Option] = ()) -> None:
    """Reject a misspelt GPULEDGER_ variable, which would otherwise be ignored silently."""
    known = [option.variable for option in (*OPTIONS, *more, CONFIG_FILE)]
    for name in sorted(environment):
        if name.startswith("GPULEDGER_") and name not in known and not _is_link(name, environment):
            raise ConfigError(f"{name}: unknown setting", suggest(name, known))


def _is_link(name: str, environment: Mapping[str, str]) -> bool:
    """Whether Kubernetes set the variable: a Service named gpuledger sets GPULEDGER_PORT=tcp://10.0.0.1:9400."""
    if re.search(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$", name):
        return True
    return name.endswith("_PORT") and "://" in environment[name]


def read_file(path: str, origin: str, options: Sequence[Option] = OPTIONS) -> dict[str, tuple[int, list[str]]]:
    """The settings of a YAML file by key, each with its line and its values as texts."""
    from gpuledger.config import yamlfile  # only if there is a file

    try:
        root = yamlfile.load(path, LARGEST_FILE)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.problem.what}", error.problem.fix or "name a YAML file") from None
    settings: dict[str, tuple[int, list[str]]] = {}
    if root is not None:
        _collect(root, "", options, settings)
    return settings


def _collect(node: Node, group: str, options: Sequence[Option], settings: dict[str, tuple[int, list[str]]]) -> None:
    """Add the settings below a node. The depth of the recursion is limited by the parts of the longest key."""
    if not node.is_mapping:
        raise node.error(f"{group or 'the file'} contains no settings", "write lines such as `tick.interval: 5s`")
    known = {name: option for option in options for name in (option.key, *option.aliases)}
    for text, key, value in node.entries(group or "the file"):
        name = (f"{group}.{text}" if group else text).replace("_", "-")
        option = known.get(name)
        if option is None and any(setting.startswith(f"{name}.") for setting in known):
            _collect(value, name, options, settings)
            continue
        if option is None:
            raise key.error(f"unknown setting {name}", suggest(name, known))
        if option.key in settings:
            raise key.error(f"duplicate setting {name}", f"remove it here or on line {settings[option.key][0]}")
        texts = value.texts(name) if option.many and value.is_list else [value.text(name)]
        if not texts and option.default:
            raise key.error(f"{name} takes at least one value")
        settings[option.key] = key.line, texts


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean X?` if a known word is close, else nothing."""
    from gpuledger.config.yamlfile import suggest as closest

    return closest(word, known)


def dump(config: object) -> str:
    """The configuration as a YAML file that loads to the same configuration, but for secrets, which are `***`."""
    import yaml

    tree: dict[str, Any] = {}
    for option in options_of(type(config)):
        value = getattr(config, option.name)
        if value is None:
            continue
        if isinstance(value, float):
            value = durations.show(value)
        elif isinstance(value, tuple):
            value = [_without_secrets(option.key, text) for text in value]
        elif isinstance(value, str):
            value = _without_secrets(option.key, value)
        *groups, name = option.key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[name] = value
    return str(yaml.safe_dump(tree, sort_keys=False))


def _without_secrets(key: str, text: str) -> str:
    if key.endswith(".header") and not text.lower().startswith("x-scope-orgid:"):  # a tenant's name
        name, colon, _ = text.partition(":")
        return f"{name}: ***" if colon else "***"
    if key.endswith(".headers"):
        pairs = (pair.partition("=") for pair in text.split(",") if text)
        return ",".join(f"{name}=***" if equals else "***" for name, equals, _ in pairs)
    if key == "carbon-query":
        text = TEXT_IN_QUERY.sub(r"\1***\1", text)
    return URL.sub(lambda url: redacted(url[0]), text)
