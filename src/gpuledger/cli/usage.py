"""What `--help` shows of each command: two examples and the settings that most users need; hints for usual mistakes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuledger.config.exporter import OPTIONS
from gpuledger.config.settings import Option

EXAMPLES: dict[str, tuple[str, str]] = {
    "serve": (
        "gpuledger serve --journal.path /run/gpuledger/journal",
        "gpuledger serve --web.listen-address 127.0.0.1:9500 --environment docker",
    ),
    "once": ("gpuledger once", "gpuledger once --output /var/lib/node_exporter/gpuledger.prom"),
    "top": ("gpuledger top", "gpuledger top --connect http://gpu-host:9400 --group pod"),
    "demo": ("gpuledger demo", "gpuledger demo --web.listen-address 127.0.0.1:9500"),
    "doctor": ("sudo gpuledger doctor", "sudo gpuledger doctor --bundle problem.tar.gz"),
    "explain": ("sudo gpuledger explain 4711", "gpuledger explain --cgroup /proc/4711/cgroup"),
    "record": ("gpuledger record today.jsonl.gz --duration 5m", "gpuledger serve --source replay:today.jsonl.gz"),
    "fingerprints": (
        "gpuledger fingerprints export learned.json --journal.path /run/gpuledger/journal",
        "gpuledger fingerprints import learned.json --journal.path /run/gpuledger/journal",
    ),
    "fleet": (
        "gpuledger fleet --prometheus.url http://prometheus:9090",
        "gpuledger fleet --prometheus.url http://prometheus:9090 --once",
    ),
    "idle": (
        "gpuledger idle --price-gpu-hour 2.50 --currency EUR",
        "gpuledger idle --prometheus.url http://prometheus:9090 --pairs",
    ),
    "job": (
        "gpuledger job 211 --price-gpu-hour 2.50 --currency EUR",
        "gpuledger job 211 --prometheus.url http://prometheus:9090 --short",
    ),
    "mcp": (
        "gpuledger mcp --connect http://gpu-host:9400",
        "gpuledger mcp --connect gpu-host --exporter.token-file token",
    ),
    "report": (
        "gpuledger report --prometheus.url http://prometheus:9090 --since 7d --by namespace",
        "gpuledger report --prometheus.url http://prometheus:9090 --month 2026-10 --by account --output october.html",
    ),
    "translate": ("gpuledger translate rules.yml dashboard.json", "gpuledger translate --to old --write rules.yml"),
}
USUAL = {
    "serve": (
        "web.listen-address", "web.dialect", "web.config.file", "tick.interval", "environment", "docker.host",
        "kubernetes.api", "slurm.job-mapping-dir", "journal.path", "dcgm-exporter.url", "log.level",
    ),
    "demo": ("web.listen-address", "web.dialect", "tick.interval"),
    "fingerprints": ("journal.path",),
}  # fmt: skip
"""The exporter's settings in the help of these commands."""
USUAL_ELSEWHERE = ("environment", "source", "log.level")
"""The exporter's settings in the help of all other commands."""
GUESSES = {
    "--web.listen-address :9400": ("-p", "--port", "--listen", "--host", "--bind", "--addr", "--address", "--web.port"),
    "--tick.interval 5s": ("--interval", "--scrape-interval", "--collect-interval", "--delay"),
    "--config.file FILE": ("-c", "--conf", "--configuration"),
    "--log.level debug": ("-v", "-d", "--verbose", "--debug"),
    "--web.telemetry-path /metrics": ("--path", "--metrics-path"),
    "--environment kubernetes": ("-k", "--kubernetes", "--k8s"),
}
"""The flag that each group of guesses means."""


def is_usual(command: str, option: Option) -> bool:
    """Whether the help of a command shows the setting; a command's own settings are always shown."""
    return option not in OPTIONS or option.key in USUAL.get(command, USUAL_ELSEWHERE)


def examples(command: str, hidden: int) -> str:
    """The text below the flags."""
    lines = ["examples:", *(f"  {example}" for example in EXAMPLES[command]), ""]
    if hidden:
        lines.append(f"{hidden} more settings: gpuledger {command} --help-all")
    return "\n".join(lines)


def guess(flag: str, value: str, known: Sequence[str]) -> str:
    """A suggestion for a flag that other programs have; empty if there is none."""
    meant = next((meant for meant, guesses in GUESSES.items() if flag in guesses), "")
    if meant.endswith(":9400"):
        meant = meant.replace(":9400", _address(value))
    return f"did you mean {meant}?" if meant.partition(" ")[0] in known else ""


def _address(value: str) -> str:
    """The address that a port, a host or both mean; the default if the value is none of them."""
    if value.isdecimal():
        return f":{value}"
    if re.fullmatch(r"[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*", value):
        return f"[{value}]:9400"
    if re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[\w.]([\w.-]{0,252})?)?:\d+", value, re.ASCII):
        return value
    return f"{value}:9400" if re.fullmatch(r"[\w.][\w.-]{0,252}", value, re.ASCII) else ":9400"
