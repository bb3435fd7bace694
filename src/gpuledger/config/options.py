"""The table of all settings, which `config.py` loads from flags, variables and a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from gpuledger.catalog.dialects import DEVICE, DIALECTS, SHARED
from gpuledger.config import durations
from gpuledger.config import parsers as checks

LOG_LEVELS = ("debug", "info", "warn", "error")
LOG_FORMATS = ("logfmt", "json")
ENVIRONMENTS = ("auto", "docker", "podman", "containerd", "kubernetes", "slurm", "none")
SHOWN = ("all", "containers", "pods")
PARKED = ("equal", "separate")
METHODS = ("fingerprint", "sm_time")


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
    Option("web.metrics", True, "Expose metrics over HTTP; false leaves the page, the API and health checks.",
           checks.switch),
    Option("web.openmetrics-created", False,
           "Add the time at which each counter was 0 to OpenMetrics, as _created. Prometheus stores it as more series.",
           checks.switch),
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
           checks.hostengine, "ADDRESS"),
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
    Option("allocation.max", 1000,
           "Maximum number of allocations to expose: devices that are allocated to pods, containers or jobs.",
           checks.count, "N"),
    Option("allocation.low", "5%",
           "Utilization of a device below which an allocation counts as idle with the reason low; 0% counts all work.",
           checks.percentage, "PERCENT"),
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
    Option("otlp.endpoint", "",
           "URL of an OpenTelemetry collector to push metrics to, over OTLP/HTTP. [port 4318, path /v1/metrics]",
           checks.otlp_endpoint, "URL",
           variables={"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": checks.otlp_endpoint,
                      "OTEL_EXPORTER_OTLP_ENDPOINT": checks.otlp_base}),
    Option("otlp.protocol", "http/protobuf", "Encoding of the metrics; only http/protobuf is supported.",
           checks.otlp_protocol, "PROTOCOL", variables={"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": checks.otlp_protocol,
                                  "OTEL_EXPORTER_OTLP_PROTOCOL": checks.otlp_protocol}),
    Option("otlp.interval", 10.0, "Time between two pushes; 0s pushes every tick.", checks.between("0s", "10m"),
           "DURATION", variables={"OTEL_METRIC_EXPORT_INTERVAL": checks.milliseconds}),
    Option("otlp.timeout", 10.0, "Time limit for a push.", checks.between("100ms", "60s"), "DURATION",
           variables={"OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": checks.milliseconds,
                      "OTEL_EXPORTER_OTLP_TIMEOUT": checks.milliseconds}),
    Option("otlp.compression", "gzip", "Compression of the metrics: gzip or none.", checks.OneOf("gzip", "none"),
           "NAME", variables={"OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": checks.OneOf("gzip", "none"),
                      "OTEL_EXPORTER_OTLP_COMPRESSION": checks.OneOf("gzip", "none")}),
    Option("otlp.headers", "", "HTTP headers of a push, with percent-encoded values: KEY=VALUE,...", checks.key_values,
           "PAIRS", variables={"OTEL_EXPORTER_OTLP_METRICS_HEADERS": checks.key_values,
                               "OTEL_EXPORTER_OTLP_HEADERS": checks.key_values}),
    Option("otlp.token-file", "", "File with a bearer token; it is read for every push.", str, "PATH"),
    Option("otlp.ca-file", "", "Authorities that may sign the collector's certificate, in PEM. [those of the system]",
           str, "PATH", variables={"OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE": str,
                                   "OTEL_EXPORTER_OTLP_CERTIFICATE": str}),
    Option("otlp.cert-file", "", "Certificate for the collector, in PEM.", str, "PATH",
           variables={"OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE": str,
                      "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str}),
    Option("otlp.key-file", "", "Its key, in PEM.", str, "PATH",
           variables={"OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY": str, "OTEL_EXPORTER_OTLP_CLIENT_KEY": str}),
    Option("otlp.resource-attributes", "", "Attributes of this exporter, with percent-encoded values: KEY=VALUE,...",
           checks.key_values, "PAIRS", variables={"OTEL_RESOURCE_ATTRIBUTES": checks.key_values}),
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
    web_metrics: bool
    web_openmetrics_created: bool
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
    allocation_max: int
    allocation_low: str
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
    otlp_endpoint: str
    otlp_protocol: str
    otlp_interval: float
    otlp_timeout: float
    otlp_compression: str
    otlp_headers: str
    otlp_token_file: str
    otlp_ca_file: str
    otlp_cert_file: str
    otlp_key_file: str
    otlp_resource_attributes: str
    metric_prefix: str
    dcgm_counters: str
    dcgm_pod_uid: bool
    dcgm_shared: str
    dcgm_update_frequency: float
