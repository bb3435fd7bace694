"""What the command line makes of flags, and --print-config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger import __version__
from gpuledger.cli import COMMANDS, main


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What --print-config says."""
    assert main([*words, "--print-config"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("words", "group", "name", "expected"),
    [
        ("--listen-address :1234", "web", "listen-address", [":1234"]),
        ("--listen-address=:1 --web.listen-address=:2", "web", "listen-address", [":1", ":2"]),
        ("--metrics-path /gpu", "web", "telemetry-path", "/gpu"),
        ("--web.max-requests 5", "web", "max-connections", 5),
        ("--process-scan-interval 5s", "tick", "interval", "5s"),
        ("--metric-retention 10m", "", "metric-retention", "10m"),
        ("--metric-prefix my_gpu_process", "", "metric-prefix", "my_gpu_process"),
        ("--web.dialect native --web.dialect dcgm", "web", "dialect", ["native", "dcgm"]),
        ("--collectors /etc/counters.csv", "dcgm", "counters", "/etc/counters.csv"),
        ("--kubernetes-enable-pod-uid", "dcgm", "pod-uid", True),
        ("--kubernetes-enabled", "", "kubernetes-enabled", True),
        ("--kubernetes-enabled=true", "", "kubernetes-enabled", True),
        ("--kubernetes-enabled=false", "", "kubernetes-enabled", False),
        ("--kubernetes-enabled --no-kubernetes-enabled", "", "kubernetes-enabled", False),
        ("--no-collector.pcie-throughput", "collector", "pcie-throughput", False),
        ("--pod-resources-socket /run/x.sock", "", "pod-resources-socket", "/run/x.sock"),
        ("--dcgm-update-frequency 500ms", "", "dcgm-update-frequency", "500ms"),
        ("--collector.dcgm", "collector", "dcgm", True),
        ("--dcgm.hostengine node:5555", "dcgm", "hostengine", "node:5555"),
        ("--tick.interval 5s --tick.interval 6s", "tick", "interval", "6s"),
    ],
)
def test_flags_and_those_of_older_tools(
    words: str, group: str, name: str, expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each sets what it is documented to set; the last one wins, and addresses add up."""
    tree = printed(capsys, *words.split())

    assert (tree[group] if group else tree)[name] == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("EXPORTER_PORT=9835", {"web": {"listen-address": [":9835"]}}),
        ("SCRAPE_INTERVAL=3", {"tick": {"interval": "3s"}}),
        ("GPULEDGER_WEB_LISTEN_ADDRESS=:1, :2", {"web": {"listen-address": [":1", ":2"]}}),
        ("GPULEDGER_COLLECTOR_PCIE_THROUGHPUT=1", {"collector": {"pcie-throughput": True}}),
    ],
)
def test_variables(
    given: str,
    expected: dict[str, dict[str, object]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours and those of older tools, through the whole program."""
    variable, _, text = given.partition("=")
    monkeypatch.setenv(variable, text)

    tree = printed(capsys)

    for group, settings in expected.items():
        assert settings.items() <= tree[group].items()


def test_a_printed_configuration_can_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Fed back as a file it prints the same."""
    words = ["--tick.interval=1.234567s", "--listen-address=[::1]:1", "--kubernetes-enabled", "--source=replay:a: 'b'"]
    main([*words, "--print-config"])
    first = capsys.readouterr().out
    path = tmp_path / "x.yml"
    path.write_text(first)

    main(["--config", str(path), "--print-config"])

    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "words",
    [
        "report\n--prometheus.header=Authorization: Digest user=a, SECRET",
        "report\n--prometheus.header=Cookie: a,SECRET",
        "report\n--prometheus.header=SECRET",
        "report\n--prometheus.url=HTTP://h:9090/?token=SECRET",
        'report\n--carbon-query=x{token="SECRET"}',
        'report\n--carbon-query=x{token="a\\"SECRET"}',
        "serve\n--otlp.headers=x-scope-orgid: a,api-key=SECRET",
        "serve\n--otlp.headers=api-key:SECRET",
        "serve\n--otlp.headers=api-key=a,SECRET",
        "serve\n--otlp.headers=api key=SECRET",
        "serve\n--otlp.endpoint=https://h/v1/metrics;token=SECRET",
        "serve\n--otlp.endpoint=h/v1/metrics;token=SECRET",
        "serve\n--dcgm-exporter.url=http://h/metrics?a=1;b=SECRET",
        "serve\n--tokens.scrape=ml/a=http://h:1/metrics;SECRET",
    ],
)
def test_secrets_are_not_printed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither with the settings nor in the message about a malformed one."""
    main([*words.split("\n"), "--print-config"])
    captured = capsys.readouterr()

    assert "***" in captured.out + captured.err
    assert "SECRET" not in captured.out + captured.err


def test_help_shows_the_usual_settings_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are in `--help-all`; a hidden flag works as well."""
    main(["serve", "--help"])
    usual = capsys.readouterr().out
    main(["serve", "--help-all"])
    everything = capsys.readouterr().out

    assert "--web.listen-address" in usual
    assert "--dcgm.hostengine" not in usual
    assert "--dcgm.hostengine" in everything
    assert "more settings: gpuledger serve --help-all" in usual
    assert len(usual.splitlines()) < 70 < len(everything.splitlines())
    assert main(["serve", "--dcgm.hostengine=x", "--print-config"]) == 0


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line each."""
    assert main(words) == 0

    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Name and version come first, then where it is from and what it runs on."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"gpuledger {__version__} (from a source tree)\nPython 3.")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("serve --otlp.headers=api-key=hunter2,x=hunter2", "api-key=***,x=***"),
        ("serve --dcgm-exporter.url=http://gpu:9400/metrics?token=hunter2", "http://gpu:9400/metrics?token=***"),
        ("serve --tokens.scrape=ml/vllm-0=http://10.0.0.7:8000/metrics?key=hunter2&a=b",
         "ml/vllm-0=http://10.0.0.7:8000/metrics?key=***&a=***"),
        ("serve --otlp.endpoint=https://otlp:4318/v1/metrics?key=hunter2", "https://otlp:4318/v1/metrics?key=***"),
        ("report --prometheus.header=Authorization:\u00a0hunter2", "Authorization:"),
    ],
)  # fmt: skip
def test_a_printed_configuration_has_no_secrets(words: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends up in tickets and logs: headers and the values in the query of a URL are not in it."""
    assert main([*(word.replace("\u00a0", " ") for word in words.split(" ")), "--print-config"]) == 0
    printed = capsys.readouterr().out

    assert "hunter2" not in printed
    assert shown in printed
