"""All settings of the exporter, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuledger.config import parsers
from gpuledger.config.settings import Option, in_group, options_of

DIALECTS = ("native", "dcgm", "dcgm1", "inference", "process", "jobstats")
SHARED = ("device", "divide", "copy")
DCGM_NAMES = ("old", "new", "both")
LOG_LEVELS = ("debug", "info", "warn", "error")
LOG_FORMATS = ("logfmt", "json")
ENVIRONMENTS = ("auto", "docker", "podman", "containerd", "kubernetes", "slurm", "none")
SHOWN = ("all", "containers", "pods")
PARKED = ("equal", "separate")
METHODS = ("fingerprint", "sm_time")
NESTED = ("outer", "inner")

_web = in_group("web")
_readings = in_group("readings")
_series = in_group("series")
_owners = in_group("owners")
_energy = in_group("energy")
_dcgm = in_group("dcgm-exporter and DCGM")
_tokens = in_group("language-model servers")
_otlp = in_group("OpenTelemetry")
_log = in_group("log")


def _otel(name: str, parse: Callable[[str], Any]) -> dict[str, Callable[[str], Any]]:
    """The variables of OpenTelemetry's SDKs: for metrics, and for all signals."""
    return {f"OTEL_EXPORTER_OTLP_METRICS_{name}": parse, f"OTEL_EXPORTER_OTLP_{name}": parse}


# fmt: off
@dataclass(frozen=True)
class Config:
    """The configuration of the exporter."""

    web_listen_address: tuple[str, ...] = _web("web.listen-address", (":9400",),
        "Address to listen on. Can be repeated.", parsers.address, "HOST:PORT", ("listen-address",),
        {"EXPORTER_PORT": parsers.port}, many=True)
    web_telemetry_path: str = _web("web.telemetry-path", "/metrics", "Path under which to expose metrics.",
        parsers.url_path, "PATH", ("metrics-path",))
    web_dialect: tuple[str, ...] = _web("web.dialect", ("native",),
        f"Metric names to use under the telemetry path: {', '.join(DIALECTS)}. Can be repeated.",
        parsers.OneOf(*DIALECTS), "DIALECT", many=True)
    web_metrics: bool = _web("web.metrics", True,
        "Expose metrics over HTTP; false leaves the page, the API and health checks.", parsers.switch)
    web_openmetrics_created: bool = _web("web.openmetrics-created", False,
        "Add the time at which each counter was 0 to OpenMetrics, as _created. Prometheus stores it as more series.",
        parsers.switch)
    web_max_connections: int = _web("web.max-connections", 64, "Maximum number of HTTP connections served at a time.",
        parsers.count, "N", ("web.max-requests",))
    web_allowed_hosts: tuple[str, ...] = _web("web.allowed-hosts", (),
        "Domain under which browsers may open the pages, besides the names of this network. Can be repeated.",
        parsers.domain, "DOMAIN", many=True)
    web_config_file: str = _web("web.config.file", "",
        "Web configuration file that enables TLS and basic authentication.", str, "PATH")
    web_systemd_socket: bool = _web("web.systemd-socket", False,
        "Listen on the sockets passed by systemd instead of the listen address.", parsers.switch)
    tick_interval: float = _readings("tick.interval", 1.0, "Time between two readings of the driver.", parsers.interval,
        "DURATION", ("process-scan-interval",), {"SCRAPE_INTERVAL": parsers.seconds})
    driver_timeout: float = _readings("driver.timeout", 2.0, "Time after which a driver call counts as hung.",
        parsers.between("100ms", "60s"), "DURATION")
    driver_energy_interval: float = _readings("driver.energy-interval", 5.0,
        "Time between two readings of energy and of utilization by process while at most one process is on a GPU; "
        "0s reads them in every tick.", parsers.between("0s", "5s"), "DURATION")
    collector_pcie_throughput: bool = _readings("collector.pcie-throughput", False,
        "Measure PCIe throughput on GPUs without GPM too; blocks 40 ms per GPU and tick.", parsers.switch)
    collector_dcgm: bool = _readings("collector.dcgm", False,
        "Also expose DCGM's process statistics. They describe the whole GPU and are never booked.", parsers.switch)
    dcgm_hostengine: str = _dcgm("dcgm.hostengine", "",
        "Address of nv-hostengine: HOST, HOST:PORT or unix:///PATH. Without it, DCGM runs inside gpuledger.",
        parsers.hostengine, "ADDRESS")
    dcgm_library: str = _dcgm("dcgm.library", "", "Path of libdcgm.so.4 or libdcgm.so.3; searched for if not set.",
        str, "PATH")
    source: str = _readings("source", "nvml", "Source of the readings: nvml, or replay:FILE for a recording.",
        parsers.source, "SOURCE")
    path_procfs: str = _readings("path.procfs", "/proc", "Mount point of the host's procfs.", parsers.path, "PATH")
    log_level: str = _log("log.level", "info", f"Lowest level to log: {', '.join(LOG_LEVELS)}.",
        parsers.OneOf(*LOG_LEVELS), "LEVEL", ("log-level",))
    log_format: str = _log("log.format", "logfmt", f"Log format: {', '.join(LOG_FORMATS)}.",
        parsers.OneOf(*LOG_FORMATS), "FORMAT")
    collector_process: bool = _readings("collector.process", True,
        "Expose series per process. Containers are summed either way.", parsers.switch)
    collector_activity: bool = _readings("collector.activity", False,
        "Expose the part of each process and container in the activity that GPM measures; five series each.",
        parsers.switch)
    collector_engines: bool = _readings("collector.engines", False,
        "Expose the utilization of memory, encoders and decoders by process and container; three and two series each.",
        parsers.switch)
    collector_hardware: bool = _readings("collector.hardware", False,
        "Expose maximum clocks, errors of the on-chip memory, recovery actions and modes of each GPU; 29 series.",
        parsers.switch)
    process_only: str = _series("process.only", "all",
        f"Processes to expose, by their owners: {', '.join(SHOWN)}. Containers are summed either way.",
        parsers.OneOf(*SHOWN), "OWNERS")
    process_max: int = _series("process.max", 1000,
        "Maximum number of processes to expose; those that used the most energy are chosen.", parsers.count, "N")
    container_max: int = _series("container.max", 1000,
        "Maximum number of containers to expose, counted on each device; the others are summed as one.", parsers.count,
        "N")
    allocation_max: int = _series("allocation.max", 1000,
        "Maximum number of allocations to expose: devices that are allocated to pods, containers or jobs.",
        parsers.count, "N")
    allocation_low: str = _series("allocation.low", "5%",
        "Utilization of a device below which an allocation counts as idle with the reason low; 0% counts all work.",
        parsers.percentage, "PERCENT")
    environment: tuple[str, ...] = _owners("environment", ("auto",),
        f"Sources of container, pod and job names: {', '.join(ENVIRONMENTS)}. Can be repeated.",
        parsers.OneOf(*ENVIRONMENTS), "ENVIRONMENT", many=True)
    docker_host: tuple[str, ...] = _owners("docker.host", (),
        "Address of a Docker or Podman daemon, as in DOCKER_HOST; searched for if not set.", parsers.docker_host, "URL",
        many=True)
    cri_socket: str = _owners("cri.socket", "", "Socket of containerd or CRI-O; searched for if not set.", str, "PATH")
    pod_resources_socket: str = _owners("pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock",
        "Socket of the kubelet's pod-resources API.", parsers.path, "PATH", ("pod-resources-kubelet-socket",))
    owners_nested: str = _owners("owners.nested", "outer",
        "Owner of a process in a container inside another container: outer, or inner (the innermost container, pod or "
        "job), which every process that can create cgroups in the outer one can choose.",
        parsers.OneOf(*NESTED), "LEVEL")
    owners_ignore: tuple[str, ...] = _owners("owners.ignore", ("gpu-operator/*", "nvidia-gpu-operator/*"),
        "Containers that read GPUs and use none, such as other exporters: patterns of NAMESPACE/POD, or of the name of "
        "a container outside of pods. They are no candidates for unlisted memory, and not idle. Can be repeated.",
        str, "PATTERN", many=True)
    kubernetes_enabled: bool | None = _owners("kubernetes-enabled", None,
        "true adds kubernetes to the environment; false uses neither the kubelet nor the API server.", parsers.switch)
    kubernetes_resource_names: tuple[str, ...] = _owners("kubernetes.resource-names", (),
        "Resources besides nvidia.com/* whose devices are GPUs. Can be repeated.", str, "RESOURCE",
        ("nvidia-resource-names",), many=True)
    kubernetes_api: bool = _owners("kubernetes.api", False,
        "Watch the pods of this node at the API server, for workloads and labels.", parsers.switch)
    kubernetes_kubeconfig: str = _owners("kubernetes.kubeconfig", "",
        "Kubeconfig file; the pod's service account if not set.", str, "PATH")
    kubernetes_node_name: str = _owners("kubernetes.node-name", "",
        "Name of this node; $NODE_NAME or the host name if not set.", str, "NAME")
    kubernetes_pod_labels: tuple[str, ...] = _owners("kubernetes.pod-labels", (),
        "Pod labels to expose, as regular expressions that match label names. Can be repeated.", parsers.regex, "REGEX",
        many=True)
    slurm_job_mapping_dir: str = _owners("slurm.job-mapping-dir", "",
        "Directory in which a prolog writes one file per GPU with its job ids.", str, "PATH", ("hpc-job-mapping-dir",))
    metric_retention: float = _series("metric-retention", 300.0, "How long to expose a process after it has exited.",
        parsers.between("1s", "1d"), "DURATION")
    energy_strict: bool = _energy("energy.strict", False,
        "Book only energy of processes that are alone on their GPU; never estimate.", parsers.switch)
    energy_parked: str = _energy("energy.parked", "equal",
        f"How to book the power drawn by waiting processes: {', '.join(PARKED)} (unattributed).",
        parsers.OneOf(*PARKED), "POLICY")
    energy_method: str = _energy("energy.method", "fingerprint",
        f"How to split energy on a shared GPU: {', '.join(METHODS)}. fingerprint falls back to sm_time.",
        parsers.OneOf(*METHODS), "METHOD")
    journal_path: str = _energy("journal.path", "",
        "File that keeps totals across restarts, such as /run/gpuledger/journal. Fingerprints are kept beside it.",
        str, "PATH")
    journal_interval: float = _energy("journal.interval", 0.0,
        "Minimum time between two writes of the journal; 0s writes on every tick.", parsers.between("0s", "10m"),
        "DURATION")
    dcgm_exporter_url: str = _dcgm("dcgm-exporter.url", "",
        "URL or file with a dcgm-exporter's metrics, to expose under /gpu/metrics with pod labels.", parsers.upstream,
        "URL")
    dcgm_exporter_interval: float = _dcgm("dcgm-exporter.interval", 15.0,
        "Time between two reads of the dcgm-exporter.", parsers.between("1s", "10m"), "DURATION")
    dcgm_exporter_timeout: float = _dcgm("dcgm-exporter.timeout", 5.0,
        "Time limit for the dcgm-exporter's complete response.", parsers.between("100ms", "60s"), "DURATION")
    dcgm_exporter_max_age: float = _dcgm("dcgm-exporter.max-age", 60.0,
        "How long to expose its last good response if there is no newer one.", parsers.between("1s", "1h"), "DURATION")
    dcgm_exporter_in_metrics: bool = _dcgm("dcgm-exporter.in-metrics", False,
        "Append its metrics to the telemetry path too, which then never uses OpenMetrics.", parsers.switch)
    dcgm_exporter_copy_shared: bool = _dcgm("dcgm-exporter.copy-shared", False,
        "Copy the series of a shared GPU to each of its pods, as older exporters do. Sums then count it repeatedly.",
        parsers.switch)
    tokens_scrape: tuple[str, ...] = _tokens("tokens.scrape", (),
        "Server of language models whose tokens to show next to the energy of its owner, such as "
        "ml/vllm-0=http://10.0.0.7:8000/metrics, or annotations for annotated pods. Can be repeated.",
        parsers.tokens, "OWNER=URL", many=True)
    tokens_interval: float = _tokens("tokens.interval", 5.0, "Time between two reads of a server's token counters.",
        parsers.between("1s", "5m"), "DURATION")
    tokens_timeout: float = _tokens("tokens.timeout", 2.0, "Time limit for the complete response of such a server.",
        parsers.between("100ms", "60s"), "DURATION")
    otlp_endpoint: str = _otlp("otlp.endpoint", "",
        "URL of an OpenTelemetry collector to push metrics to, over OTLP/HTTP. [port 4318, path /v1/metrics]",
        parsers.otlp_endpoint, "URL",
        variables={"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": parsers.otlp_endpoint,
                   "OTEL_EXPORTER_OTLP_ENDPOINT": parsers.otlp_base})
    otlp_protocol: str = _otlp("otlp.protocol", "http/protobuf",
        "Encoding of the metrics; only http/protobuf is supported.", parsers.otlp_protocol, "PROTOCOL",
        variables=_otel("PROTOCOL", parsers.otlp_protocol))
    otlp_interval: float = _otlp("otlp.interval", 10.0, "Time between two pushes; 0s pushes every tick.",
        parsers.between("0s", "10m"), "DURATION", variables={"OTEL_METRIC_EXPORT_INTERVAL": parsers.milliseconds})
    otlp_timeout: float = _otlp("otlp.timeout", 10.0, "Time limit for a push.", parsers.between("100ms", "60s"),
        "DURATION",
        variables=_otel("TIMEOUT", parsers.milliseconds))
    otlp_compression: str = _otlp("otlp.compression", "gzip", "Compression of the metrics: gzip or none.",
        parsers.OneOf("gzip", "none"), "NAME",
        variables=_otel("COMPRESSION", parsers.OneOf("gzip", "none")))
    otlp_headers: str = _otlp("otlp.headers", "", "HTTP headers of a push, with percent-encoded values: KEY=VALUE,...",
        parsers.key_values, "PAIRS",
        variables=_otel("HEADERS", parsers.key_values))
    otlp_token_file: str = _otlp("otlp.token-file", "", "File with a bearer token; it is read for every push.", str,
        "PATH")
    otlp_ca_file: str = _otlp("otlp.ca-file", "",
        "Authorities that may sign the collector's certificate, in PEM. [those of the system]", str, "PATH",
        variables=_otel("CERTIFICATE", str))
    otlp_cert_file: str = _otlp("otlp.cert-file", "", "Certificate for the collector, in PEM.", str, "PATH",
        variables=_otel("CLIENT_CERTIFICATE", str))
    otlp_key_file: str = _otlp("otlp.key-file", "", "Its key, in PEM.", str, "PATH",
        variables=_otel("CLIENT_KEY", str))
    otlp_resource_attributes: str = _otlp("otlp.resource-attributes", "",
        "Attributes of this exporter, with percent-encoded values: KEY=VALUE,...", parsers.key_values, "PAIRS",
        variables={"OTEL_RESOURCE_ATTRIBUTES": parsers.key_values})
    metric_prefix: str = _series("metric-prefix", "gpu_process", "Prefix of the metric names in the process dialect.",
        parsers.prefix, "PREFIX")
    dcgm_counters: str = _dcgm("dcgm.counters", "",
        "CSV file in dcgm-exporter's format that selects the metrics of the dcgm dialect.", str, "PATH",
        ("collectors",), {"DCGM_EXPORTER_COLLECTORS": str})
    dcgm_names: str = _dcgm("dcgm.names", "both",
        "Names and units in the dcgm dialect: old (up to version 4.8), new (4.9) or both.",
        parsers.OneOf(*DCGM_NAMES), "NAMES")
    dcgm_pod_uid: bool = _dcgm("dcgm.pod-uid", False, "Add the label pod_uid to the metrics of the dcgm dialect.",
        parsers.switch, aliases=("kubernetes-enable-pod-uid",),
        variables={"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": parsers.switch})
    dcgm_shared: str = _dcgm("dcgm.shared", "device",
        "Series of a shared GPU in the dialects dcgm and dcgm1: device (the GPU once, without a pod), "
        "divide (the part of each pod) or copy (the GPU once for each pod).",
        parsers.OneOf(*SHARED), "MODE")
    dcgm_update_frequency: float = _dcgm("dcgm-update-frequency", 1.0,
        "Sampling period of DCGM, with --collector.dcgm.", parsers.between("100ms", "60s"), "DURATION")


# fmt: on
OPTIONS = options_of(Config)
CONFIG_FILE = Option("", "config.file", "", "YAML file with any of these settings.", str, "PATH", ("config",))
