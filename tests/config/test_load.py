"""The configuration: one rule of precedence, one check, one line for whatever is wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.catalog.dialects import DIALECTS
from gpuledger.config import durations
from gpuledger.config import load as config
from gpuledger.config.exporter import CONFIG_FILE, ENVIRONMENTS, LOG_FORMATS, LOG_LEVELS, OPTIONS, SHOWN, Config
from gpuledger.config.settings import Option
from gpuledger.errors import ConfigError

# For every option four values that differ from each other: as a flag, a variable, in the file, and the default.
VALUES: Mapping[str, tuple[str, str, str]] = {
    "web.listen-address": (":1001", ":1002", ":1003"),
    "web.telemetry-path": ("/a", "/b", "/c"),
    "web.dialect": ("dcgm", "dcgm1", "process"),
    "web.max-connections": ("1", "2", "3"),
    "web.config.file": ("a", "b", "c"),
    "web.allowed-hosts": ("a.example", "b.example", "c.example"),
    "web.systemd-socket": ("true", "false", "yes"),
    "tick.interval": ("2s", "3s", "500ms"),
    "driver.timeout": ("3s", "4s", "500ms"),
    "driver.energy-interval": ("3s", "4s", "500ms"),
    "collector.pcie-throughput": ("true", "false", "yes"),
    "collector.activity": ("true", "false", "yes"),
    "collector.engines": ("true", "false", "yes"),
    "collector.hardware": ("true", "false", "yes"),
    "source": ("replay:a", "replay:b", "replay:c"),
    "path.procfs": ("/a", "/b", "/c"),
    "log.level": ("debug", "warn", "error"),
    "log.format": ("json", "logfmt", "json"),
    "collector.process": ("false", "off", "no"),
    "process.only": ("pods", "containers", "all"),
    "process.max": ("1", "2", "3"),
    "container.max": ("1", "2", "3"),
    "allocation.max": ("1", "2", "3"),
    "allocation.low": ("1%", "2.5%", "3%"),
    "environment": ("docker", "kubernetes", "none"),
    "docker.host": ("tcp://a:1", "unix:///b", "/c"),
    "cri.socket": ("/a", "/b", "/c"),
    "owners.ignore": ("a", "b/*", "c"),
    "kubernetes.resource-names": ("a", "b", "c"),
    "kubernetes.api": ("true", "on", "yes"),
    "kubernetes.kubeconfig": ("/a", "/b", "/c"),
    "kubernetes.node-name": ("a", "b", "c"),
    "kubernetes.pod-labels": ("a", "b.*", "c"),
    "slurm.job-mapping-dir": ("/a", "/b", "/c"),
    "metric-retention": ("1m", "2m", "3m"),
    "energy.strict": ("true", "on", "yes"),
    "journal.path": ("/run/a", "/run/b", "/run/c"),
    "journal.interval": ("1s", "2s", "3s"),
    "energy.parked": ("separate", "equal", "separate"),
    "dcgm-exporter.url": ("http://a:9400/metrics", "/run/prometheus/dcgm.prom", "https://[::1]/"),
    "dcgm-exporter.interval": ("2s", "3s", "10s"),
    "dcgm-exporter.timeout": ("2s", "3s", "500ms"),
    "dcgm-exporter.max-age": ("2m", "3m", "10s"),
    "dcgm-exporter.in-metrics": ("true", "false", "true"),
    "dcgm-exporter.copy-shared": ("true", "false", "true"),
    "tokens.scrape": ("ml/a-0=http://a:1/metrics", "pid:7=http://b:1", "annotations"),
    "tokens.interval": ("2s", "3s", "1m"),
    "tokens.timeout": ("1s", "3s", "500ms"),
    "energy.method": ("sm_time", "fingerprint", "sm_time"),
    "owners.nested": ("inner", "outer", "inner"),
    "web.metrics": ("false", "off", "no"),
    "web.openmetrics-created": ("true", "on", "yes"),
    "otlp.endpoint": ("http://a:1", "https://b/x", "http://c"),
    "otlp.protocol": ("http/protobuf", "http/protobuf", "http/protobuf"),
    "otlp.interval": ("1s", "2s", "3s"),
    "otlp.timeout": ("1s", "2s", "3s"),
    "otlp.compression": ("none", "gzip", "none"),
    "otlp.headers": ("a=1", "b=2,c=3", "d=%20"),
    "otlp.token-file": ("/a", "/b", "/c"),
    "otlp.ca-file": ("/a", "/b", "/c"),
    "otlp.cert-file": ("/a", "/b", "/c"),
    "otlp.key-file": ("/a", "/b", "/c"),
    "otlp.resource-attributes": ("a=1", "b=2", "c=3"),
    "metric-prefix": ("a", "b", "c"),
    "dcgm.counters": ("/a", "/b", "/c"),
    "dcgm.pod-uid": ("true", "on", "yes"),
    "dcgm.names": ("old", "new", "both"),
    "dcgm.shared": ("divide", "copy", "device"),
    "kubernetes-enabled": ("true", "false", "on"),
    "pod-resources-socket": ("/a", "/b", "/c"),
    "dcgm-update-frequency": ("2s", "3s", "4s"),
    "collector.dcgm": ("true", "on", "yes"),
    "dcgm.hostengine": ("a", "b:1", "unix:///c"),
    "dcgm.library": ("/a", "/b", "/c"),
}


def value(settings: Config, option: Option) -> Any:
    """What the option is set to."""
    return getattr(settings, option.name)


def parsed(option: Option, text: str) -> Any:
    """What the option should be set to by this text."""
    return (option.parse(text),) if option.many else option.parse(text)


def written(folder: Path, text: str | bytes) -> Path:
    """A configuration file."""
    path = folder / "gpuledger.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(text: str | bytes, folder: Path) -> Config:
    """The configuration from a file alone."""
    return config.load({"config.file": [str(written(folder, text))]}, {})


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_flag_before_variable_before_file_before_default(option: Option, tmp_path: Path) -> None:
    """For every option, each source is used exactly when no better one has it."""
    in_flag, in_variable, in_file = VALUES[option.key]
    flags: dict[str, Sequence[str]] = {"config.file": [str(written(tmp_path, f"{option.key}: '{in_file}'"))]}
    environment = {option.variable: in_variable}

    assert value(config.load({option.key: [in_flag], **flags}, environment), option) == parsed(option, in_flag)
    assert value(config.load(flags, environment), option) == parsed(option, in_variable)
    assert value(config.load(flags, {}), option) == parsed(option, in_file)
    assert value(config.load({}, {}), option) == option.default


def test_every_option_has_a_field_and_a_default_that_passes_its_own_check() -> None:
    """Every default is a value that a user could write."""
    settings = config.load({}, {})

    for option in OPTIONS:
        shown = option.default
        if isinstance(shown, float):
            shown = durations.show(shown)
        for one in shown if option.many else [shown]:
            assert one is None or option.parse(str(one)) is not None
        assert value(settings, option) == option.default


def test_an_empty_variable_of_an_older_tool_is_not_set() -> None:
    """Manifests and Compose files set variables to nothing; ours, which may be meant, are not ignored."""
    assert config.load({}, {"EXPORTER_PORT": "", "SCRAPE_INTERVAL": ""}) == config.load({}, {})
    with pytest.raises(ConfigError):
        config.load({}, {"GPULEDGER_TICK_INTERVAL": ""})


@pytest.mark.parametrize(
    ("variable", "text", "name", "expected"),
    [
        ("EXPORTER_PORT", "9100", "web_listen_address", (":9100",)),
        ("SCRAPE_INTERVAL", "5", "tick_interval", 5.0),
        ("SCRAPE_INTERVAL", "0.5", "tick_interval", 0.5),
        ("SCRAPE_INTERVAL", "500ms", "tick_interval", 0.5),
        ("SCRAPE_INTERVAL", "15", "tick_interval", 5.0),
    ],
)
def test_the_variables_of_older_tools(variable: str, text: str, name: str, expected: object, tmp_path: Path) -> None:
    """They are environment: before the file, after a flag and after our own variable."""
    path = written(tmp_path, "web.listen-address: ':1'\ntick.interval: 7s\n")
    ours = {"GPULEDGER_WEB_LISTEN_ADDRESS": ":2", "GPULEDGER_TICK_INTERVAL": "8s"}

    assert getattr(config.load({"config.file": [str(path)]}, {variable: text}), name) == expected
    assert getattr(config.load({}, {variable: text, **ours}), name) in ((":2",), 8.0)
    flags = {"web.listen-address": [":3"], "tick.interval": ["9s"]}
    assert getattr(config.load(flags, {variable: text}), name) in ((":3",), 9.0)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"EXPORTER_PORT": "http"}, "EXPORTER_PORT: 'http' is not a port; write a number from 1 to 65535"),
        ({"EXPORTER_PORT": "99999"}, "EXPORTER_PORT: '99999' is not a port; write a number from 1 to 65535"),
        ({"EXPORTER_PORT": "0"}, "EXPORTER_PORT: '0' is not a port; write a number from 1 to 65535"),
        (
            {"SCRAPE_INTERVAL": "often"},
            "SCRAPE_INTERVAL: 'often' is not a duration; write it as 500ms, 10s or 5m",
        ),
        ({"SCRAPE_INTERVAL": "3600"}, "SCRAPE_INTERVAL: '3600' is out of range; choose from 100ms to 60s"),
        (
            {"GPULEDGER_TICK_INTERVAL": "5"},
            "GPULEDGER_TICK_INTERVAL: '5' is not a duration; write it as 500ms, 10s or 5m",
        ),
        (
            {"GPULEDGER_WEB_LISTEN_ADDRESS": ":9400, 9401"},
            "GPULEDGER_WEB_LISTEN_ADDRESS: '9401' is not a listen address: the port is missing; write :9401",
        ),
        (
            {"GPULEDGER_CONFIG_FILE": "/nowhere.yml"},
            "GPULEDGER_CONFIG_FILE: cannot read /nowhere.yml: No such file or directory; name a YAML file",
        ),
    ],
)
def test_a_bad_variable_is_named_with_what_would_be_right(environment: dict[str, str], line: str) -> None:
    """With the text the user wrote, not with what we made of it."""
    with pytest.raises(ConfigError) as caught:
        config.load({}, environment)

    assert str(caught.value) == line


def test_a_misspelt_variable_is_an_error_with_a_suggestion() -> None:
    """Else it would silently do nothing."""
    with pytest.raises(ConfigError) as caught:
        config.check_environment({"GPULEDGER_TICK_INTERVALL": "5s", "HOME": "/"})

    assert str(caught.value) == ("GPULEDGER_TICK_INTERVALL: unknown setting; did you mean GPULEDGER_TICK_INTERVAL?")


def test_all_our_variables_are_accepted() -> None:
    """Those of the options and the one that names the file."""
    config.check_environment({option.variable: "" for option in (*OPTIONS, CONFIG_FILE)})


def test_what_kubernetes_puts_into_the_environment_is_no_setting() -> None:
    """A Service named gpuledger, gpuledger-web or exporter gives every pod of its namespace such variables."""
    environment: dict[str, str] = {}
    for name in ("GPULEDGER", "GPULEDGER_WEB", "EXPORTER"):
        environment |= {
            f"{name}_SERVICE_HOST": "10.0.0.1",
            f"{name}_SERVICE_PORT": "9400",
            f"{name}_SERVICE_PORT_METRICS": "9400",
            f"{name}_PORT": "tcp://10.0.0.1:9400",
            f"{name}_PORT_9400_TCP": "tcp://10.0.0.1:9400",
            f"{name}_PORT_9400_TCP_PROTO": "tcp",
            f"{name}_PORT_9400_TCP_PORT": "9400",
            f"{name}_PORT_9400_TCP_ADDR": "10.0.0.1",
        }

    config.check_environment(environment)
    assert config.load({}, environment) == config.load({}, {})


@pytest.mark.parametrize(
    "text",
    [
        "tick:\n  interval: 5s\n",
        "tick: {interval: 5s}",
        "tick.interval: 5s",
        '"tick.interval": "5s"',
        "process-scan-interval: 5s",
        "process_scan_interval: 5s",
        "\ufefftick.interval: 5s",
        "# a comment\n---\ntick.interval: 5s\n...\n",
    ],
)
def test_a_file_may_be_nested_or_flat_and_use_the_older_names(text: str, tmp_path: Path) -> None:
    """All of these say the same."""
    assert load(text, tmp_path).tick_interval == 5.0


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}"])
def test_a_file_without_settings_changes_nothing(text: str, tmp_path: Path) -> None:
    """An empty file is a valid one."""
    assert load(text, tmp_path) == config.load({}, {})


@pytest.mark.parametrize("text", ["web.listen-address: ':1'", "web: {listen-address: [':1']}"])
def test_a_list_of_one_may_be_written_as_one(text: str, tmp_path: Path) -> None:
    """And several as a list."""
    assert load(text, tmp_path).web_listen_address == (":1",)
    assert load("web: {listen-address: [':1', '[::1]:2']}", tmp_path).web_listen_address == (":1", "[::1]:2")


def test_values_are_taken_as_written(tmp_path: Path) -> None:
    """YAML would make 8, a date and false of these; only the option says what its text means."""
    settings = load("path.procfs: 010\npod-resources-socket: 2024-99-99\nkubernetes-enabled: no\n", tmp_path)

    assert (settings.path_procfs, settings.pod_resources_socket) == ("010", "2024-99-99")
    assert settings.kubernetes_enabled is False


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tick.intervall: 5s", ", line 1: unknown setting tick.intervall; did you mean tick.interval?"),
        ("tick:\n  intervall: 5s", ", line 2: unknown setting tick.intervall; did you mean tick.interval?"),
        ("\n\ninterval: 5s", ", line 3: unknown setting interval; did you mean tick.interval?"),
        ("web: {port: 9400}", ", line 1: unknown setting web.port"),
        ("- tick.interval", ", line 1: the file contains no settings; write lines such as `tick.interval: 5s`"),
        ("just words", ", line 1: the file contains no settings; write lines such as `tick.interval: 5s`"),
        ("tick: 5s", ", line 1: tick contains no settings; write lines such as `tick.interval: 5s`"),
        ("tick:", ", line 1: tick contains no settings; write lines such as `tick.interval: 5s`"),
        ("tick: [interval]", ", line 1: tick contains no settings; write lines such as `tick.interval: 5s`"),
        ("tick: {interval: {s: 5}}", ", line 1: tick.interval takes one value"),
        ("tick.interval: [5s, 6s]", ", line 1: tick.interval takes one value"),
        ("web.listen-address: []", ", line 1: web.listen-address takes at least one value"),
        ("web.listen-address: [[':1']]", ", line 1: web.listen-address takes one value"),
        ("web.listen-address: {a: b}", ", line 1: web.listen-address takes one value"),
        ("tick.interval: 1s\ntick: {interval: 2s}",
         ", line 2: duplicate setting tick.interval; remove it here or on line 1"),
        ("source: nvml\nsource: nvml", ", line 2: duplicate key source; remove it here or on line 1"),
        ("listen-address: ':1'\nweb.listen-address: ':1'",
         ", line 2: duplicate setting web.listen-address; remove it here or on line 1"),
        ("tick.interval: 5", ", line 1: tick.interval: '5' is not a duration; write it as 500ms, 10s or 5m"),
        ("tick.interval:", ", line 1: tick.interval: '' is not a duration; write it as 500ms, 10s or 5m"),
        ("path.procfs:", ", line 1: path.procfs: '' is not a path"),
        ('path.procfs: "a\\0b"', ", line 1: path.procfs: 'a\\x00b' contains a control character; remove it"),
        ("web.listen-address: 'a: b'",
         (", line 1: web.listen-address: 'a: b' is not a listen address: expected HOST:PORT;"
          " write for example :9400, 127.0.0.1:9400 or [::1]:9400")),
        ("kubernetes-enabled: maybe",
         ", line 1: kubernetes-enabled: 'maybe' is not a boolean; write true or false"),
        ("? [a, b]\n: c", ", line 1: a key takes one value"),
        ("1: 2", ", line 1: unknown setting 1"),
        ("a: &a {b: *a}", ", line 1: unknown setting a"),
        ("tick: &a {tick: *a}", ", line 1: unknown setting tick.tick"),
        ("config.file: other.yml", ", line 1: unknown setting config.file; did you mean web.config.file?"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named_with_their_line(text: str, line: str, tmp_path: Path) -> None:
    """Misspelt, doubled, of the wrong shape or with a wrong value: file, line, key, and what would be right."""
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path)

    assert str(caught.value) == f"{tmp_path / 'gpuledger.yml'}{line}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("tick:\n\tinterval: 5s",
         ", line 2 is not valid YAML: while scanning for the next token, found character '\\t'"),
        ("tick: {interval: 5s", " is not valid YAML: while parsing a flow mapping, expected ',' or '}'"),
        ("a: 1\n---\nb: 2", ", line 2 is not valid YAML: expected a single document in the stream"),
        ("a: *b", ", line 1 is not valid YAML: found undefined alias 'b'"),
        (b"\x89PNG\r\n\x1a\n\0\0", " is not a text file in UTF-8; name a YAML file"),
        (b"tick.interval: 5s\0", " is not valid YAML: special characters are not allowed"),
        ("# " + "x" * 5_000_000, " has more than 100000 characters"),
        ("[" * 50_000, " is not valid YAML: nested too deeply; name a YAML file"),
        ("a: " * 30_000, " is not valid YAML: mapping values are not allowed here"),
    ],
    ids=["tab", "open", "two", "alias", "binary", "nul", "5MB", "deep", "colons"],
)  # fmt: skip
def test_a_file_that_is_no_yaml_is_one_line(content: str | bytes, says: str, tmp_path: Path) -> None:
    """Tabs, binary, five megabytes, brackets without end: named, quickly, and without a traceback."""
    with pytest.raises(ConfigError) as caught:
        load(content, tmp_path)

    place, _, mistake = says.partition(" ")
    assert str(caught.value).startswith(f"--config.file: {tmp_path / 'gpuledger.yml'}{place.rstrip()}")
    assert mistake in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """It is missing, or it is a folder."""
    for path, reason in ((tmp_path / "no", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            config.load({"config.file": [str(path)]}, {})
        assert str(caught.value) == f"--config.file: cannot read {path}: {reason}; name a YAML file"


@given(st.binary(max_size=300))
def test_no_file_at_all_gives_anything_but_a_config_error(content: bytes) -> None:
    """Whatever the bytes are."""
    with suppress(ConfigError):
        assert set(_from_bytes(content)) <= {option.key for option in OPTIONS}


def _from_bytes(content: bytes) -> dict[str, tuple[int, list[str]]]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return config.read_file(file.name, "--config.file")


def _spans(shortest: str, longest: str) -> st.SearchStrategy[str]:
    low, high = (round(durations.parse(text) * 1e6) for text in (shortest, longest))
    return st.integers(low, high).map(lambda us: f"{us // 10**6}.{us % 10**6:06d}s")


PRINTABLE = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1)
TEXTS: dict[str, st.SearchStrategy[Any]] = {
    "web.listen-address": st.lists(
        st.builds("{}:{}".format, st.sampled_from(["", "127.0.0.1", "[::1]", "no", "0x10"]), st.integers(0, 65535)),
        min_size=1,
        max_size=3,
    ),
    "web.telemetry-path": st.from_regex(r"/[A-Za-z0-9'\":{}\[\]&*!|>,-]{1,20}", fullmatch=True),
    "web.dialect": st.lists(st.sampled_from([*DIALECTS]), min_size=1, max_size=3),
    "web.max-connections": st.integers(1, 10_000).map(str),
    "web.config.file": PRINTABLE,
    "web.allowed-hosts": st.from_regex(r"[a-z0-9-]{1,9}(\.[a-z0-9-]{1,9})?", fullmatch=True),
    "web.systemd-socket": st.sampled_from(["true", "off"]),
    "tick.interval": _spans("100ms", "60s"),
    "driver.timeout": _spans("100ms", "60s"),
    "driver.energy-interval": _spans("0s", "5s"),
    "collector.pcie-throughput": st.sampled_from(["true", "off"]),
    "source": PRINTABLE.map(lambda path: f"replay:{path}"),
    "path.procfs": PRINTABLE,
    "log.level": st.sampled_from(LOG_LEVELS),
    "log.format": st.sampled_from(LOG_FORMATS),
    "collector.process": st.sampled_from(["true", "off"]),
    "process.only": st.sampled_from(SHOWN),
    "process.max": st.integers(1, 10_000).map(str),
    "container.max": st.integers(1, 10_000).map(str),
    "allocation.max": st.integers(1, 10_000).map(str),
    "allocation.low": st.integers(0, 100).map(lambda percent: f"{percent}%"),
    "environment": st.lists(st.sampled_from(ENVIRONMENTS), min_size=1, max_size=3),
    "docker.host": st.lists(PRINTABLE.map(lambda path: f"unix:///{path}"), max_size=2),
    "cri.socket": PRINTABLE,
    "owners.ignore": st.lists(PRINTABLE, max_size=2),
    "kubernetes.resource-names": st.lists(PRINTABLE, max_size=2),
    "kubernetes.api": st.sampled_from(["true", "off"]),
    "kubernetes.kubeconfig": PRINTABLE,
    "kubernetes.node-name": PRINTABLE,
    "kubernetes.pod-labels": st.lists(st.sampled_from(["app", "app.kubernetes.io/.*", "[a-c]+"]), max_size=2),
    "slurm.job-mapping-dir": PRINTABLE,
    "metric-retention": _spans("1s", "1d"),
    "dcgm-exporter.url": PRINTABLE.map(lambda path: f"/{path}"),
    "dcgm-exporter.max-age": _spans("1s", "1h"),
    "metric-prefix": st.sampled_from(["yes", "null", "on", "e1", "_"]),
    "dcgm.counters": PRINTABLE,
    "dcgm.pod-uid": st.sampled_from(["true", "off"]),
    "dcgm.names": st.sampled_from(["old", "new", "both"]),
    "dcgm.shared": st.sampled_from(["device", "divide", "copy"]),
    "kubernetes-enabled": st.sampled_from(["true", "false"]),
    "pod-resources-socket": PRINTABLE,
    "dcgm-update-frequency": _spans("100ms", "60s"),
    "collector.dcgm": st.sampled_from(["true", "off"]),
    "dcgm.hostengine": st.sampled_from(["", "localhost", "10.0.0.1:5555"]) | PRINTABLE.map("unix:///{}".format),
    "dcgm.library": PRINTABLE,
}


@given(st.fixed_dictionaries({}, optional=TEXTS))
def test_a_printed_configuration_gives_the_same_one_again(texts: dict[str, str | list[str]]) -> None:
    """For any valid configuration: what --print-config shows, used as the file, is the same configuration."""
    settings = config.load({key: [text] if isinstance(text, str) else text for key, text in texts.items()}, {})
    in_file = {key: text for key, (_, text) in _from_bytes(config.dump(settings).encode()).items()}

    assert config.load(in_file, {}) == settings
    assert set(in_file) == {option.key for option in OPTIONS if getattr(settings, option.name) is not None}
