"""The configuration: flags override environment variables, which override the YAML file, which overrides defaults.

Every option is declared in OPTIONS. `--tick.interval 5s`, `GPULEDGER_TICK_INTERVAL=5s` and
`tick: {interval: 5s}` in the file are the same setting and go through the same parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, TypeVar

from gpuledger import checks, durations
from gpuledger.catalog.dialects import DEVICE, DIALECTS, SHARED
from gpuledger.errors import ConfigError
from gpuledger.net.address import redacted
from gpuledger.sources.dcgm import parse_hostengine

if TYPE_CHECKING:
    from gpuledger.yamlfile import Node

LOG_LEVELS = ("debug", "info", "warn", "error")
LOG_FORMATS = ("logfmt", "json")
ENVIRONMENTS = ("auto", "docker", "podman", "containerd", "kubernetes", "slurm", "none")
SHOWN = ("all", "containers", "pods")
PARKED = ("equal", "separate")
METHODS = ("fingerprint", "sm_time")
T = TypeVar("T")
LARGEST_FILE = 100_000
"""Characters. All settings together need a hundredth of this; a larger file would take seconds to parse."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. `parse` converts its text, or raises ValueError with the mistake and its correction."""

    key: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str
    metavar: str = "VALUE"
    """The placeholder of the value in `--help`."""
    aliases: tuple[str, ...] = ()
    """Other flags for the same setting, most of them from older exporters."""
    variables: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """Environment variables of older exporters, each with its own parser."""
    many: bool = False
    """Whether the setting is a list; its flag can be repeated."""

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "GPULEDGER_" + self.key.upper().replace(".", "_").replace("-", "_")

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty if there is none."""
        if self.default is None:
            return ""
        if isinstance(self.default, tuple):
            return ", ".join(self.default)
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return durations.show(self.default) if isinstance(self.default, float) else str(self.default)

    @property
    def is_switch(self) -> bool:
        """Whether the setting is a boolean."""
        return self.parse is checks.switch

    @property
    def name(self) -> str:
        """The attribute of Config."""
        name = self.key.replace(".", "_").replace("-", "_")
        return f"{name}_" if iskeyword(name) else name


OPTIONS: tuple[Option, ...] = (
    Option("web.listen-address", (":9400",), "Address to listen on. Can be repeated.", checks.address, "HOST:PORT",
           ("listen-address",), {"EXPORTER_PORT": checks.port}, many=True),
    Option("web.telemetry-path", "/metrics", "Path under which to expose metrics.", checks.url_path, "PATH",
           ("metrics-path",)),
    Option("web.dialect", ("native",),
           f"Metric names to use under the telemetry path: {', '.join(DIALECTS)}. Can be repeated.",
           checks.OneOf(*DIALECTS), "DIALECT", many=True),
    Option("web.max-connections", 64, "Maximum number of HTTP connections served at a time.", checks.count, "N",
           ("web.max-requests",)),
    Option("web.allowed-hosts", (),
           "Domain under which browsers may open the pages, besides the names of this network. Can be repeated.",
           checks.domain, "DOMAIN", many=True),
    Option("web.config.file", "", "Web configuration file that enables TLS and basic authentication.", str, "PATH"),
    Option("web.systemd-socket", False, "Listen on the sockets passed by systemd instead of the listen address.",
           checks.switch),
    Option("tick.interval", 1.0, "Time between two readings of the driver.", checks.interval, "DURATION",
           ("process-scan-interval",), {"SCRAPE_INTERVAL": checks.seconds}),
    Option("driver.timeout", 2.0, "Time after which a driver call counts as hung.",
           checks.between("100ms", "60s"), "DURATION"),
    Option("collector.pcie-throughput", False,
           "Measure PCIe throughput on GPUs without GPM too; blocks 40 ms per GPU and tick.", checks.switch),
    Option("collector.dcgm", False,
           "Also expose DCGM's process statistics. They describe the whole GPU and are never booked.", checks.switch),
    Option("dcgm.hostengine", "",
           "Address of nv-hostengine: HOST, HOST:PORT or unix:///PATH. Without it, DCGM runs inside gpuledger.",
           parse_hostengine, "ADDRESS"),
    Option("dcgm.library", "", "Path of libdcgm.so.4 or libdcgm.so.3; searched for if not set.", str, "PATH"),
    Option("source", "nvml", "Source of the readings: nvml, or replay:FILE for a recording.", checks.source, "SOURCE"),
    Option("path.procfs", "/proc", "Mount point of the host's procfs.", checks.path, "PATH"),
    Option("log.level", "info", f"Lowest level to log: {', '.join(LOG_LEVELS)}.", checks.OneOf(*LOG_LEVELS), "LEVEL",
           ("log-level",)),
    Option("log.format", "logfmt", f"Log format: {', '.join(LOG_FORMATS)}.", checks.OneOf(*LOG_FORMATS), "FORMAT"),
    Option("collector.process", True, "Expose series per process. Containers are summed either way.", checks.switch),
    Option("process.only", "all",
           f"Processes to expose, by their owners: {', '.join(SHOWN)}. Containers are summed either way.",
           checks.OneOf(*SHOWN), "OWNERS"),
    Option("process.max", 1000, "Maximum number of processes to expose; those with the most memory are chosen.",
           checks.count, "N"),
    Option("container.max", 1000,
           "Maximum number of containers to expose, counted on each device; the others are summed as one.",
           checks.count, "N"),
    Option("environment", ("auto",),
           f"Sources of container, pod and job names: {', '.join(ENVIRONMENTS)}. Can be repeated.",
           checks.OneOf(*ENVIRONMENTS), "ENVIRONMENT", many=True),
    Option("docker.host", (), "Address of a Docker or Podman daemon, as in DOCKER_HOST; searched for if not set.",
           checks.docker_host, "URL", many=True),
    Option("cri.socket", "", "Socket of containerd or CRI-O; searched for if not set.", str, "PATH"),
    Option("pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock",
           "Socket of the kubelet's pod-resources API.", checks.path, "PATH", ("pod-resources-kubelet-socket",)),
    Option("kubernetes-enabled", None,
           "true adds kubernetes to the environment; false uses neither the kubelet nor the API server.",
           checks.switch),
    Option("kubernetes.resource-names", (), "Resources besides nvidia.com/* whose devices are GPUs. Can be repeated.",
           str, "RESOURCE", ("nvidia-resource-names",), many=True),
    Option("kubernetes.api", False, "Watch the pods of this node at the API server, for workloads and labels.",
           checks.switch),
    Option("kubernetes.kubeconfig", "", "Kubeconfig file; the pod's service account if not set.", str, "PATH"),
    Option("kubernetes.node-name", "", "Name of this node; $NODE_NAME or the host name if not set.", str, "NAME"),
    Option("kubernetes.pod-labels", (),
           "Pod labels to expose, as regular expressions that match label names. Can be repeated.",
           checks.regex, "REGEX", many=True),
    Option("slurm.job-mapping-dir", "", "Directory in which a prolog writes one file per GPU with its job ids.",
           str, "PATH", ("hpc-job-mapping-dir",)),
    Option("metric-retention", 300.0, "How long to expose a process after it has exited.",
           checks.between("1s", "1d"), "DURATION"),
    Option("energy.strict", False, "Book only energy of processes that are alone on their GPU; never estimate.",
           checks.switch),
    Option("energy.parked", "equal",
           f"How to book the power drawn by waiting processes: {', '.join(PARKED)} (unattributed).",
           checks.OneOf(*PARKED), "POLICY"),
    Option("energy.method", "fingerprint",
           f"How to split energy on a shared GPU: {', '.join(METHODS)}. fingerprint falls back to sm_time.",
           checks.OneOf(*METHODS), "METHOD"),
    Option("journal.path", "",
           "File that keeps totals across restarts, such as /run/gpuledger/journal. Fingerprints are kept beside it.",
           str, "PATH"),
    Option("journal.interval", 0.0, "Minimum time between two writes of the journal; 0s writes on every tick.",
           checks.between("0s", "10m"), "DURATION"),
    Option("dcgm-exporter.url", "",
           "URL or file with a dcgm-exporter's metrics, to expose under /gpu/metrics with pod labels.",
           checks.upstream, "URL"),
    Option("dcgm-exporter.interval", 15.0, "Time between two reads of the dcgm-exporter.",
           checks.between("1s", "10m"), "DURATION"),
    Option("dcgm-exporter.timeout", 5.0, "Time limit for the dcgm-exporter's complete response.",
           checks.between("100ms", "60s"), "DURATION"),
    Option("dcgm-exporter.max-age", 60.0, "How long to expose its last good response if there is no newer one.",
           checks.between("1s", "1h"), "DURATION"),
    Option("dcgm-exporter.in-metrics", False,
           "Append its metrics to the telemetry path too, which then never uses OpenMetrics.", checks.switch),
    Option("dcgm-exporter.copy-shared", False,
           "Copy the series of a shared GPU to each of its pods, as older exporters do. Sums then count it repeatedly.",
           checks.switch),
    Option("tokens.scrape", (),
           "Server of language models whose tokens to show next to the energy of its owner, such as "
           "ml/vllm-0=http://10.0.0.7:8000/metrics, or annotations for annotated pods. Can be repeated.",
           checks.tokens, "OWNER=URL", many=True),
    Option("tokens.interval", 5.0, "Time between two reads of a server's token counters.",
           checks.between("1s", "5m"), "DURATION"),
    Option("tokens.timeout", 2.0, "Time limit for the complete response of such a server.",
           checks.between("100ms", "60s"), "DURATION"),
    Option("metric-prefix", "gpu_process", "Prefix of the metric names in the process dialect.", checks.prefix,
           "PREFIX"),
    Option("dcgm.counters", "", "CSV file in dcgm-exporter's format that selects the metrics of the dcgm dialect.",
           str, "PATH", ("collectors",), {"DCGM_EXPORTER_COLLECTORS": str}),
    Option("dcgm.pod-uid", False, "Add the label pod_uid to the metrics of the dcgm dialect.", checks.switch,
           aliases=("kubernetes-enable-pod-uid",),
           variables={"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": checks.switch}),
    Option("dcgm.shared", DEVICE,
           "Series of a shared GPU in the dialects dcgm and dcgm1: device (the GPU once, without a pod), "
           "divide (the part of each pod) or copy (the GPU once for each pod).",
           checks.OneOf(*SHARED), "MODE"),
    Option("dcgm-update-frequency", 1.0, "Sampling period of DCGM, with --collector.dcgm.",
           checks.between("100ms", "60s"), "DURATION"),
)  # fmt: skip

CONFIG_FILE = Option("config.file", "", "YAML file with any of these settings.", str, "PATH", ("config",))


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the exporter."""

    web_listen_address: tuple[str, ...]
    web_telemetry_path: str
    web_dialect: tuple[str, ...]
    web_max_connections: int
    web_allowed_hosts: tuple[str, ...]
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
    process_only: str
    process_max: int
    container_max: int
    environment: tuple[str, ...]
    docker_host: tuple[str, ...]
    cri_socket: str
    pod_resources_socket: str
    kubernetes_enabled: bool | None
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
    tokens_scrape: tuple[str, ...]
    tokens_interval: float
    tokens_timeout: float
    metric_prefix: str
    dcgm_counters: str
    dcgm_pod_uid: bool
    dcgm_shared: str
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
    """Settings from flags (texts by key), from the environment, and from the file that either names."""
    origin, path = f"--{CONFIG_FILE.key}", (flags.get(CONFIG_FILE.key) or [""])[-1]
    if not path:
        origin, path = CONFIG_FILE.variable, environment.get(CONFIG_FILE.variable, "")
    in_file = read_file(path, origin, options) if path else {}
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


def _parse(parse: Callable[[str], Any], origin: str, text: str) -> Any:
    try:
        if any(ord(character) < 32 for character in text):
            raise ValueError("contains a control character; remove it")
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: {redacted(text)!r} {error}") from None


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
    from gpuledger import yamlfile  # only if there is a file

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
    from gpuledger.yamlfile import suggest as closest

    return closest(word, known)


def dump(config: object, options: Sequence[Option] = OPTIONS) -> str:
    """The configuration as a YAML file that loads to the same configuration."""
    import yaml

    tree: dict[str, Any] = {}
    for option in options:
        value = getattr(config, option.name)
        if value is None:
            continue
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
