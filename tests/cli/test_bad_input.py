"""Whatever a user gets wrong is exit code 2 and one line: what, why, and what would be right."""

from __future__ import annotations

import gzip
import re
import socket
import subprocess
from pathlib import Path

import pytest

from gpuledger.cli import COMMANDS, main
from gpuledger.cli.idle import IdleSettings
from gpuledger.cli.job import JobSettings
from gpuledger.cli.mcp import McpSettings
from gpuledger.cli.usage import EXAMPLES
from gpuledger.config.exporter import ENVIRONMENTS, OPTIONS
from gpuledger.config.settings import options_of
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.report.settings import ReportSettings
from tests.cli.running import COMMAND, gpuledger, surroundings


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting comes from outside, and files are in the folder of the test."""
    for name in ("EXPORTER_PORT", "SCRAPE_INTERVAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


DURATION = "is not a duration; write it as 500ms, 10s or 5m"
ADDRESSES = "write for example :9400, 127.0.0.1:9400 or [::1]:9400"

# The command line and the one line it gets.
LINES = [
    ("srve", "unknown command 'srve'; did you mean serve?"),
    ("frobnicate", "unknown command 'frobnicate'; see gpuledger --help"),
    ("--tick.intervall=5s", "unknown flag --tick.intervall; did you mean --tick.interval?"),
    ("serve --listen-adress :1", "unknown flag --listen-adress; did you mean --listen-address?"),
    ("serve --kubernets-enabled", "unknown flag --kubernets-enabled; did you mean --kubernetes-enabled?"),
    ("serve --tick 5s", "unknown flag --tick; see gpuledger serve --help-all"),
    ("serve --port 9500", "unknown flag --port; did you mean --web.listen-address :9500?"),
    ("serve --host=h", "unknown flag --host; did you mean --web.listen-address h:9400?"),
    ("serve --bind 0.0.0.0", "unknown flag --bind; did you mean --web.listen-address 0.0.0.0:9400?"),
    ("serve --listen 127.0.0.1:80", "unknown flag --listen; did you mean --web.listen-address 127.0.0.1:80?"),
    ("serve --host ::1", "unknown flag --host; did you mean --web.listen-address [::1]:9400?"),
    ("serve --host --tick.interval=1s", "unknown flag --host; did you mean --web.listen-address :9400?"),
    ("report -v", "unknown flag -v; see gpuledger report --help-all"),
    ("-x", "unknown flag -x; see gpuledger serve --help-all"),
    ("serve now", "unexpected argument 'now'; see gpuledger serve --help"),
    (
        "--log.level debug once",
        "the command 'once' must come first; write gpuledger once --tick.interval 5s",
    ),
    ("record", "the following arguments are required: FILE; see gpuledger record --help"),
    ("record a b", "unexpected argument 'b'; see gpuledger record --help"),
    ("--tick.interval", ("argument --tick.interval/--process-scan-interval: expected one argument;"
                         " see gpuledger serve --help")),
    ("--tick.interval 5", f"--tick.interval: '5' {DURATION}"),
    ("--tick.interval=-5s", f"--tick.interval: '-5s' {DURATION}"),
    ("--tick.interval=", f"--tick.interval: '' {DURATION}"),
    ("--tick.interval 1ms", "--tick.interval: '1ms' is out of range; choose from 100ms to 60s"),
    ("--process-scan-interval 2m", "--tick.interval: '2m' is out of range; choose from 100ms to 60s"),
    ("--dcgm-update-frequency 0s", "--dcgm-update-frequency: '0s' is out of range; choose from 100ms to 60s"),
    ("--dcgm.hostengine tcp://a",
     "--dcgm.hostengine: 'tcp://a' is not an address; write it as localhost, 10.0.0.1:5555 or unix:///tmp/nv-hostengine"),
    ("--metric-retention 2d", "--metric-retention: '2d' is out of range; choose from 1s to 1d"),
    ("--metric-prefix 9gpu",
     "--metric-prefix: '9gpu' is not a valid start of a metric name; use letters, digits and _"),
    ("--web.dialect dcgm2", "--web.dialect: 'dcgm2' is not one of native, dcgm, dcgm1, inference, process, jobstats"),
    ("--dcgm.counters no.csv", "--dcgm.counters: cannot read no.csv: No such file or directory; name a CSV file"),
    ("once --web.dialect dcgm --format openmetrics",
     "--format: OpenMetrics does not allow the names of dialect dcgm; use --format text"),
    ("--web.listen-address 9400",
     "--web.listen-address: '9400' is not a listen address: the port is missing; write :9400"),
    ("--web.listen-address http://:1",
     f"--web.listen-address: 'http://:1' is not a listen address: this is a URL; {ADDRESSES}"),
    ("--web.listen-address ::1:9400",
     ("--web.listen-address: '::1:9400' is not a listen address: an IPv6 address needs brackets;"
      " write for example [::1]:9400")),
    ("--web.listen-address :99999",
     "--web.listen-address: ':99999' is not a listen address: the port is too large; choose one from 1 to 65535"),
    ("--web.telemetry-path metrics", "--web.telemetry-path: 'metrics' is not a path; write it as /metrics"),
    ("--metrics-path /a?b", "--web.telemetry-path: '/a?b' is not a path; write it as /metrics"),
    ("--metrics-path /", "--web.telemetry-path: '/' is not a path; write it as /metrics"),
    ("--metrics-path /healthz",
     "--web.telemetry-path: '/healthz' is already in use; choose another path, such as /metrics"),
    ("--metrics-path /-/ready",
     "--web.telemetry-path: '/-/ready' is already in use; choose another path, such as /metrics"),
    ("--web.max-connections 0", "--web.max-connections: '0' is not a number from 1 to 10000"),
    ("--web.max-connections " + "9" * 5000,
     "--web.max-connections: '" + "9" * 5000 + "' is not a number from 1 to 10000"),
    ("--docker.host tcp://a:99999",
     "--docker.host: 'tcp://a:99999' is not an address; write unix:///var/run/docker.sock or tcp://host:2375"),
    ("--kubernetes.pod-labels [",
     "--kubernetes.pod-labels: '[' is not a valid regular expression: unterminated character set at position 0"),
    ("--environment mesos",
     f"--environment: 'mesos' is not one of {', '.join(ENVIRONMENTS)}"),
    ("--kubernetes-enabled=perhaps",
     "--kubernetes-enabled: 'perhaps' is not a boolean; write true or false"),
    ("--log.level loud", "--log.level: 'loud' is not one of debug, info, warn, error"),
    ("--log.format xml", "--log.format: 'xml' is not one of logfmt, json"),
    ("--source dcgm", "--source: 'dcgm' is not a source; write nvml or replay:FILE"),
    ("--source replay:", "--source: 'replay:' is not a source; write nvml or replay:FILE"),
    ("--source replay:no.gz",
     "cannot replay no.gz: No such file or directory; name a file that `gpuledger record` wrote"),
    ("--source replay:.", "cannot replay .: not a regular file; name a file that `gpuledger record` wrote"),
    ("--source replay:text", ("cannot replay text: damaged or not a recording: Not a gzipped file (b'gp');"
                                " name a file that `gpuledger record` wrote")),
    ("--source replay:cut.gz", "cannot replay cut.gz: truncated; record it again"),
    ("once --source replay:newer.gz",
     ("cannot replay newer.gz: format version 99, but this gpuledger reads 1 and older;"
      " install a newer gpuledger")),
    ("--path.procfs /nowhere", "--path.procfs: /nowhere is not a proc file system; name its mount point"),
    ("--path.procfs=", "--path.procfs: '' is not a path"),
    ("--config.file no.yml", "--config.file: cannot read no.yml: No such file or directory; name a YAML file"),
    ("--config .", "--config.file: cannot read .: Is a directory; name a YAML file"),
    ("--config.file bad.yml", ("bad.yml, line 2: unknown setting web.listen-adress;"
                               " did you mean web.listen-address?")),
    ("record x.gz --duration soon", f"--duration: 'soon' {DURATION}"),
    ("record x.gz --duration 0s", "--duration: '0s' is shorter than a tick; choose 1s or more"),
    ("record x.gz --tick.interval 5s --duration 3s", "--duration: '3s' is shorter than a tick; choose 5s or more"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), LINES, ids=[words[:50] for words, _ in LINES])
def test_a_mistake_is_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Flags, values, durations, paths, recordings and files: the thing, what is wrong with it, what would be right."""
    (tmp_path / "text").write_text("gpu_up 1\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b'{"gpuledger": "recording", "version": 1}\n')[:-3])
    (tmp_path / "newer.gz").write_bytes(gzip.compress(b'{"gpuledger": "recording", "version": 99}\n'))
    (tmp_path / "bad.yml").write_text("web:\n  listen-adress: ':1'\n")

    assert main(words.split(" ")) == 2

    captured = capsys.readouterr()
    assert captured.err == f"gpuledger: {line}\n"
    assert captured.out == ""


def test_a_wrong_choice_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Its words are those of the Python it runs on."""
    assert main(["once", "--format", "xml"]) == 2

    line = capsys.readouterr().err
    assert line.startswith("gpuledger: argument --format: invalid choice: 'xml' (choose from ")
    assert line.count("\n") == 1


@pytest.mark.parametrize("output", [".", "/", "no/such/folder/x", "/dev/null", "text/x"])
def test_an_output_that_cannot_be_written_is_one_line(
    output: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of `once` and of `record`; nothing is put in its place."""
    (tmp_path / "text").write_text("")
    demo = Path(__file__).parents[2] / "src" / "gpuledger" / "demo.jsonl.gz"

    for words in (["once", "--output", output], ["record", output]):
        assert main([*words, "--source", f"replay:{demo}", "--tick.interval", "100ms"]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"gpuledger: cannot write {output}: ")
        assert line.count("\n") == 1
    assert Path("/dev/null").is_char_device()


def test_a_misspelt_variable_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right one."""
    monkeypatch.setenv("GPULEDGER_LOG_LEVL", "debug")

    assert main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "gpuledger: GPULEDGER_LOG_LEVL: unknown setting; did you mean GPULEDGER_LOG_LEVEL?\n"
    )


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And no thread or socket of ours stays behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--log.level=warn", "--web.listen-address", f"127.0.0.1:{port}"]) == 2

    assert capsys.readouterr().err == (
        f"gpuledger: cannot listen on 127.0.0.1:{port}: address already in use;"
        " stop the other program or choose another --web.listen-address\n"
    )


def test_what_a_user_wrote_cannot_break_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Line ends and terminal sequences in a name are shown, not obeyed."""
    assert main(["--config.file", "a\nb\x1b[31m"]) == 2

    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "a\\nb\\x1b[31m" in line


@pytest.mark.parametrize(
    "words",
    [["--tick.intervall=5s"], ["serve", "--web.listen-address", "9400"], ["once", "--source", "replay:/nowhere"]],
)
def test_a_real_process_says_one_line_and_exits_with_2(words: list[str]) -> None:
    """No traceback, nothing on standard output."""
    done = gpuledger(*words)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpuledger: ")


def test_a_name_that_is_not_utf8_is_one_line() -> None:
    """File names are bytes."""
    done = subprocess.run(
        [*[word.encode() for word in COMMAND], b"--source", b"replay:/\xff\xfe"],
        env=surroundings(), capture_output=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("words", [["--print-config"], ["--help"], ["once", "--help"], ["--version"], ["version"]])
def test_a_full_disk_or_a_reader_that_left_is_no_traceback(words: list[str]) -> None:
    """`gpuledger ... > /dev/full` says why; `gpuledger ... | true` says nothing."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*COMMAND, *words], env=surroundings(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "gpuledger: cannot write to standard output: No space left on device; redirect it elsewhere\n"

    with subprocess.Popen(
        [*COMMAND, *words], env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of usage, what it is for, all flags with what they do, and two examples; exit code 0."""
    assert main([name, "--help-all"]) == 0

    shown = capsys.readouterr().out
    assert all(f"\n  {example}\n" in shown for example in EXAMPLES[name])
    assert re.match(rf"usage: gpuledger {name}( [A-Z]+)* \[FLAGS\]\n\n{re.escape(COMMANDS[name])}\.\n", shown)
    text = " ".join(shown.split())
    own = {
        "fleet": options_of(FleetSettings),
        "idle": options_of(IdleSettings),
        "job": options_of(JobSettings),
        "mcp": options_of(McpSettings),
        "report": options_of(ReportSettings),
    }
    for option in own.get(name, OPTIONS):
        assert f"--{option.key}" in text
        assert option.help + (f" [{option.default_text}]" if option.default_text else "") in text
