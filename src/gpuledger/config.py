"""The configuration: flags before environment before YAML file before defaults, checked once, then frozen.

Every option stands once in OPTIONS. `--tick.interval 5s`, `GPULEDGER_TICK_INTERVAL=5s` and
`tick: {interval: 5s}` in the file are the same thing, and all of them go through the same check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeVar

from gpuledger import checks, durations
from gpuledger.catalog.dialects import DIALECTS
from gpuledger.errors import ConfigError
from gpuledger.sources.dcgm import parse_hostengine

LOG_LEVELS = ("debug", "info", "warn", "error")
LOG_FORMATS = ("logfmt", "json")
ENVIRONMENTS = ("auto", "docker", "podman", "containerd", "kubernetes", "slurm", "none")
PARKED = ("equal", "separate")
METHODS = ("fingerprint", "sm_time")
T = TypeVar("T")
LARGEST_FILE = 100_000
"""Characters. All settings together need a hundredth of it, and a larger file would take seconds to parse."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. `parse` turns its text into a value, or raises ValueError with what would be right."""

    key: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str
    aliases: tuple[str, ...] = ()
    """Flags of older tools, and other names, that mean the same."""
    variables: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """Environment variables of older tools, each with how its value is parsed."""
    many: bool = False

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "GPULEDGER_" + self.key.upper().replace(".", "_").replace("-", "_")

    @property
    def default_text(self) -> str:
        """Its default as it would be written; empty where there is none."""
        if isinstance(self.default, tuple):
            return ", ".join(self.default)
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return durations.show(self.default) if isinstance(self.default, float) else str(self.default)

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.parse is checks.switch

    @property
    def name(self) -> str:
        """Its name in Config."""
        name = self.key.replace(".", "_").replace("-", "_")
        return f"{name}_" if iskeyword(name) else name


OPTIONS: tuple[Option, ...] = (
    Option("web.listen-address", (":9400",), "Address to listen on; may be given several times.", checks.address,
           ("listen-address",), {"EXPORTER_PORT": checks.port}, many=True),
    Option("web.telemetry-path", "/metrics", "Path under which the metrics are.", checks.url_path, ("metrics-path",)),
    Option("web.dialect", ("native",),
           f"Names that the telemetry path speaks: {', '.join(DIALECTS)}; may be given several times.",
           checks.one_of(*DIALECTS), many=True),
    Option("web.max-connections", 64, "Most HTTP connections at a time.", checks.count, ("web.max-requests",)),
    Option("web.config.file", "", "File that enables TLS, passwords and more, in the format of other exporters."),
    Option("web.systemd-socket", False, "Listen on the sockets that systemd passes, not on the address.",
           checks.switch),
    Option("tick.interval", 1.0, "Time between two readings.", checks.interval,
           ("process-scan-interval",), {"SCRAPE_INTERVAL": checks.seconds}),
    Option("driver.timeout", 2.0, "How long a driver call may take before its GPU counts as hung.",
           checks.between("100ms", "60s")),
    Option("collector.pcie-throughput", False,
           "Measure PCIe traffic also where GPM is missing; blocks 40 ms per GPU and tick.", checks.switch),
    Option("collector.dcgm", False,
           "Show also what DCGM says of processes: numbers of the whole GPU, never booked.", checks.switch),
    Option("dcgm.hostengine", "",
           "nv-hostengine to ask, as HOST, HOST:PORT or unix:///PATH; DCGM runs inside gpuledger if not given.",
           parse_hostengine),
    Option("dcgm.library", "", "Path of libdcgm.so.4 or libdcgm.so.3; found by itself if not given."),
    Option("source", "nvml", "Where readings come from: nvml, or replay:FILE.", checks.source),
    Option("path.procfs", "/proc", "Where the host's /proc is mounted.", checks.path),
    Option("log.level", "info", f"Log from this level on: {', '.join(LOG_LEVELS)}.", checks.one_of(*LOG_LEVELS)),
    Option("log.format", "logfmt", f"Form of log lines: {', '.join(LOG_FORMATS)}.", checks.one_of(*LOG_FORMATS)),
    Option("collector.process", True, "Show processes one by one; containers are summed either way.", checks.switch),
    Option("process.max", 1000, "Most processes shown one by one; those with most memory are kept.", checks.count),
    Option("environment", ("auto",), f"Who is asked for names: {', '.join(ENVIRONMENTS)}; may be given several times.",
           checks.one_of(*ENVIRONMENTS), many=True),
    Option("docker.host", (), "Address of a Docker or Podman daemon, as in DOCKER_HOST; found by itself if not given.",
           checks.docker_host, many=True),
    Option("cri.socket", "", "Socket of containerd or CRI-O; found by itself if not given."),
    Option("pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock",
           "Socket of the kubelet's pod-resources API.", checks.path, ("pod-resources-kubelet-socket",)),
    Option("kubernetes-enabled", False, "The same as adding kubernetes to environment.", checks.switch),
    Option("kubernetes.resource-names", (), "Resources besides nvidia.com/* whose devices are GPUs.", many=True,
           aliases=("nvidia-resource-names",)),
    Option("kubernetes.api", False, "Watch this node's pods at the API server, for workloads and labels.",
           checks.switch),
    Option("kubernetes.kubeconfig", "", "Kubeconfig file; the pod's service account if not given."),
    Option("kubernetes.node-name", "", "This node's name; $NODE_NAME or the host's name if not given."),
    Option("kubernetes.pod-labels", (), "Pod labels to show: regular expressions of their names; none by default.",
           checks.regex, many=True),
    Option("slurm.job-mapping-dir", "", "Directory in which a prolog writes which job has which GPU, a file a GPU.",
           aliases=("hpc-job-mapping-dir",)),
    Option("metric-retention", 300.0, "How long the numbers of an exited process stay.",
           checks.between("1s", "1d")),
    Option("energy.strict", False, "Book only energy of a process alone on its GPU; never an estimate.", checks.switch),
    Option("energy.parked", "equal",
           f"Who has the power of processes that only wait: {', '.join(PARKED)}; separate books it to nobody.",
           checks.one_of(*PARKED)),
    Option("energy.method", "fingerprint",
           f"How energy on a shared GPU is split: {', '.join(METHODS)}; fingerprint falls back to sm_time.",
           checks.one_of(*METHODS)),
    Option("journal.path", "", "File that carries totals over a restart, such as /run/gpuledger/journal."),
    Option("journal.interval", 0.0, "Least time between two writes of the journal; at 0s each tick is written.",
           checks.between("0s", "10m")),
    Option("dcgm-exporter.url", "",
           "Page or file with a dcgm-exporter's metrics, to be shown under /gpu/metrics with pods on them.",
           checks.upstream),
    Option("dcgm-exporter.interval", 15.0, "How often it is read.", checks.between("1s", "10m")),
    Option("dcgm-exporter.timeout", 5.0, "How long its whole answer may take.", checks.between("100ms", "60s")),
    Option("dcgm-exporter.max-age", 60.0, "How long its last good answer is shown when there is no newer one.",
           checks.between("1s", "1h")),
    Option("dcgm-exporter.in-metrics", False,
           "Show it at the end of the other metrics too; these are then text, never OpenMetrics.", checks.switch),
    Option("dcgm-exporter.copy-shared", False,
           "Give each pod on a shared GPU a copy of its series, as older exporters do; sums count them all.",
           checks.switch),
    Option("metric-prefix", "gpu_process", "Prefix of the names in the process dialect.", checks.prefix),
    Option("dcgm.counters", "", "File in dcgm-exporter's format that chooses the metrics of the dcgm dialect.",
           aliases=("collectors",), variables={"DCGM_EXPORTER_COLLECTORS": str}),
    Option("dcgm.pod-uid", False, "Label the metrics of the dcgm dialect with pod_uid too.", checks.switch,
           ("kubernetes-enable-pod-uid",), {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": checks.switch}),
    Option("dcgm-update-frequency", 1.0, "How often DCGM samples and is asked, with collector.dcgm.",
           checks.between("100ms", "60s")),
)  # fmt: skip

CONFIG_FILE = Option("config.file", "", "YAML file with any of these settings.", aliases=("config",))


@dataclass(frozen=True, slots=True)
class Config:
    """What every part of the program is set to."""

    web_listen_address: tuple[str, ...]
    web_telemetry_path: str
    web_dialect: tuple[str, ...]
    web_max_connections: int
    web_config_file: str
    web_systemd_socket: bool
    tick_interval: float
    driver_timeout: float
    collector_pcie_throughput: bool
    collector_dcgm: bool
    dcgm_hostengine: str
    dcgm_library: str
    source: str
    path_procfs: str
    log_level: str
    log_format: str
    collector_process: bool
    process_max: int
    environment: tuple[str, ...]
    docker_host: tuple[str, ...]
    cri_socket: str
    pod_resources_socket: str
    kubernetes_enabled: bool
    kubernetes_resource_names: tuple[str, ...]
    kubernetes_api: bool
    kubernetes_kubeconfig: str
    kubernetes_node_name: str
    kubernetes_pod_labels: tuple[str, ...]
    slurm_job_mapping_dir: str
    metric_retention: float
    energy_strict: bool
    energy_parked: str
    energy_method: str
    journal_path: str
    journal_interval: float
    dcgm_exporter_url: str
    dcgm_exporter_interval: float
    dcgm_exporter_timeout: float
    dcgm_exporter_max_age: float
    dcgm_exporter_in_metrics: bool
    dcgm_exporter_copy_shared: bool
    metric_prefix: str
    dcgm_counters: str
    dcgm_pod_uid: bool
    dcgm_update_frequency: float


def load(flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> Config:
    """The exporter's configuration."""
    return load_as(Config, OPTIONS, flags, environment)


def load_as(
    kind: Callable[..., T],
    options: Sequence[Option],
    flags: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
) -> T:
    """The settings from flags (by key, each as the texts given) and environment, and the file they may name."""
    where, path = f"--{CONFIG_FILE.key}", (flags.get(CONFIG_FILE.key) or [""])[-1]
    if not path:
        where, path = CONFIG_FILE.variable, environment.get(CONFIG_FILE.variable, "")
    in_file = read_file(path, where, options) if path else {}
    values: dict[str, Any] = {}
    for option in options:
        if option.key in flags:
            parsed = [_parse(option.parse, f"--{option.key}", text) for text in flags[option.key]]
        elif option.variable in environment:
            text = environment[option.variable]
            texts = [part.strip() for part in text.split(",")] if option.many else [text]
            parsed = [_parse(option.parse, option.variable, text) for text in texts]
        elif older := [name for name in option.variables if name in environment and not _is_link(name, environment)]:
            parsed = [_parse(option.variables[older[0]], older[0], environment[older[0]])]
        elif option.key in in_file:
            line, texts = in_file[option.key]
            parsed = [_parse(option.parse, f"{path}, line {line}: {option.key}", text) for text in texts]
        else:
            parsed = []
        values[option.name] = option.default if not parsed else tuple(parsed) if option.many else parsed[-1]
    return kind(**values)


def _parse(parse: Callable[[str], Any], where: str, text: str) -> Any:
    try:
        if any(ord(character) < 32 for character in text):
            raise ValueError("holds a control character; leave it out")
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} {error}") from None


def check_environment(environment: Mapping[str, str], more: Iterable[Option] = ()) -> None:
    """A misspelt GPULEDGER_ variable is an error, not a setting that silently does nothing."""
    known = [option.variable for option in (*OPTIONS, *more, CONFIG_FILE)]
    for name in sorted(environment):
        if name.startswith("GPULEDGER_") and name not in known and not _is_link(name, environment):
            raise ConfigError(f"{name}: there is no such setting{suggest(name, known)}")


def _is_link(name: str, environment: Mapping[str, str]) -> bool:
    """Whether Kubernetes put it there: a Service named gpuledger gives its pods GPULEDGER_PORT=tcp://10.0.0.1:9400."""
    if re.search(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$", name):
        return True
    return name.endswith("_PORT") and "://" in environment[name]


def read_file(path: str, where: str, options: Sequence[Option] = OPTIONS) -> dict[str, tuple[int, list[str]]]:
    """The settings of a YAML file by key, each with its line and its values as texts."""
    import yaml  # only when there is a file: 2.6 MB

    settings: dict[str, tuple[int, list[str]]] = {}
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"{where}: {path} is no configuration: it has more than {LARGEST_FILE} characters")
        # As nodes, not as values: they know their lines, `010` and `no` stay what was written, aliases stay small.
        tree = yaml.compose(text, yaml.BaseLoader)
        if tree is not None and tree.value != "":
            _collect(tree, "", path, options, settings)
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path}: {error.strerror}; name a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not a text file in UTF-8; name a YAML file") from None
    except RecursionError:
        raise ConfigError(f"{where}: {path} is not a configuration: it is nested too deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        words = [getattr(error, name, None) for name in ("context", "problem", "reason")]
        problem = ", ".join(word for word in words if word)
        raise ConfigError(f"{where}: {path}{line} is not YAML: {problem}") from None
    return settings


def _collect(
    node: Any, group: str, path: str, options: Sequence[Option], settings: dict[str, tuple[int, list[str]]]
) -> None:
    """Add the settings under a node of the file; goes as deep as keys go, whatever the file does."""
    where = f"{path}, line {node.start_mark.line + 1}"
    if node.id != "mapping":
        raise ConfigError(f"{where}: {group or 'the file'} holds no settings; write lines such as `tick.interval: 5s`")
    known = {name: option for option in options for name in (option.key, *option.aliases)}
    for name_node, value in node.value:
        where = f"{path}, line {name_node.start_mark.line + 1}"
        name = name_node.value if name_node.id == "scalar" else "?"
        name = (f"{group}.{name}" if group else name).replace("_", "-")
        option = known.get(name)
        if option is None and any(key.startswith(f"{name}.") for key in known):
            _collect(value, name, path, options, settings)
            continue
        if option is None:
            raise ConfigError(f"{where}: there is no setting {name!r}{suggest(name, known)}")
        if option.key in settings:
            raise ConfigError(f"{where}: {name} is given twice; the first time in line {settings[option.key][0]}")
        items = value.value if option.many and value.id == "sequence" else [value]
        if (not items and option.default) or any(item.id != "scalar" for item in items):
            raise ConfigError(f"{where}: {name} takes {'a list of values' if option.many else 'one value'}")
        settings[option.key] = name_node.start_mark.line + 1, [item.value for item in items]


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when something known is close, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def dump(config: object, options: Sequence[Option] = OPTIONS) -> str:
    """The configuration as a YAML file that gives the same one again."""
    import yaml

    tree: dict[str, Any] = {}
    for option in options:
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
