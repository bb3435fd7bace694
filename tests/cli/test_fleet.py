"""`gpuledger fleet` as a user runs it, against a server that answers like a Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs

import pytest

from gpuledger.tools.prometheus.answer import PARTIAL
from tests.cli.running import gpuledger, serving, surroundings
from tests.integrations.dcgmexporter.server import Say, Upstream, hang, page, raw, upstream
from tests.tools.fleet.answers import vector

GOOD = vector(*[({"UUID": str(n)}, value) for n, value in enumerate((80.0, 40.0, 0.0, 0.0))])


@pytest.fixture
def server() -> Iterator[Upstream]:
    """Answers every query with four GPUs."""
    with upstream(page(GOOD)) as running:
        yield running


def test_once_prints_the_metrics(server: Upstream) -> None:
    """The classic average of the classic metric: 80, 40, 0, 0 gives 60."""
    done = gpuledger("fleet", "--once", f"--prometheus.url={server.root}", "--query=DCGM_FI_DEV_MEM_COPY_UTIL")

    assert (done.returncode, done.stderr) == (0, "")
    assert "\navg_GPU_utilization 60.0\n" in done.stdout
    assert '\ngpu_fleet_in_use_utilization_ratio{by="cluster"} 0.6\n' in done.stdout
    assert parse_qs(server.asked[0]["form"])["query"] == ["DCGM_FI_DEV_MEM_COPY_UTIL"]


def test_once_fails_in_one_line(server: Upstream) -> None:
    """Exit code 1 for a Prometheus that does not answer, 2 for what the user got wrong; no value is printed."""
    server.say = page(b"<html>", "401 Unauthorized")
    refused = gpuledger("fleet", "--once", f"--prometheus.url={server.root}")
    wrong = gpuledger("fleet", "--prometheus.url=prometheus:9090")
    unknown = gpuledger("fleet", "--tick.interval=5s")
    contradicting = gpuledger("fleet", "--max-age=1s")

    assert [one.returncode for one in (refused, wrong, unknown, contradicting)] == [1, 2, 2, 2]
    for one in (refused, wrong, unknown, contradicting):
        assert (one.stdout, one.stderr.count("\n")) == ("", 1)
    assert "status 401: authentication failed" in refused.stderr
    assert "is not a URL; write it as http://prometheus:9090" in wrong.stderr


@pytest.mark.parametrize(
    ("say", "says"),
    [
        (page(b"<!doctype html><html>Sign in</html>"), "responds with HTML"),
        (page(b"", "401 Unauthorized"), "status 401: authentication failed"),
        (page(b"404 page not found", "404 Not Found"), "check the path prefix of --prometheus.url"),
        (page(vector()), "returns nothing; check that the metric exists and that the exporters are scraped"),
        (page(vector(({"uuid": "a"}, nan), ({"uuid": "b"}, inf))), "returns 2 series, none with a finite value"),
        (page(b'{"status":"error","errorType":"timeout","error":"query timed out"}', "503 Service Unavailable"),
         "timed out in Prometheus: query timed out"),
        (page(b'{"status":"error","errorType":"bad_data","error":"parse error"}', "400 Bad Request"), "parse error"),
        (hang, "no complete answer from"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + GOOD[:50]), "closed the connection in the middle"),
    ],
)  # fmt: skip
def test_each_bad_answer_is_one_line_and_exit_code_1(server: Upstream, say: Say, says: str) -> None:
    """Nothing is printed to standard output."""
    server.say = say
    words = ["--prometheus.timeout=500ms"] if say is hang else []
    done = gpuledger("fleet", "--once", f"--prometheus.url={server.root}", "--query=q", *words)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("gpuledger: ")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1", "cannot reach http://127.0.0.1:1: Connection refused; check whether it is running"),
        ("http://nobody.invalid", "cannot reach"),
        ("https", "no TLS with https://"),
    ],
)
def test_an_unreachable_server_is_one_line_and_exit_code_1(server: Upstream, url: str, says: str) -> None:
    """A wrong port, a wrong name, and TLS where there is none."""
    given = server.root.replace("http:", "https:") if url == "https" else url
    done = gpuledger("fleet", "--once", f"--prometheus.url={given}")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert says in done.stderr


def test_values_that_are_not_numbers_are_dropped_and_counted(server: Upstream) -> None:
    """NaN and infinity beside numbers in a partial answer: the numbers are shown, and a warning."""
    tree = json.loads(vector(({"uuid": "a"}, nan), ({"uuid": "b"}, -inf), ({"uuid": "c"}, 0.5))) | {"isPartial": True}
    server.say = page(json.dumps(tree).encode())
    done = gpuledger("fleet", "--once", f"--prometheus.url={server.root}", "--query=q")

    assert (done.returncode, done.stderr) == (0, f"gpuledger: {PARTIAL}\n")
    assert '\ngpu_fleet_gpus{by="cluster"} 1\n' in done.stdout
    assert "\ngpu_fleet_query_dropped_series 8\n" in done.stdout  # two in each of four answers


def test_variables_of_one_command_do_not_stop_another(tmp_path: Path) -> None:
    """A shell may have the variables of both; a misspelt one is reported with a suggestion."""
    both = surroundings(GPULEDGER_PROMETHEUS_URL="http://a", GPULEDGER_TICK_INTERVAL="5s")
    for command in ("serve", "fleet"):
        assert gpuledger(command, "--print-config", env=both).returncode == 0
    misspelt = gpuledger("serve", "--print-config", env=surroundings(GPULEDGER_PROMETHEUS_URI="http://a"))

    assert misspelt.returncode == 2
    assert "did you mean GPULEDGER_PROMETHEUS_URL?" in misspelt.stderr
    path = tmp_path / "fleet.yml"
    path.write_text("tick.interval: 5s\n")
    assert "unknown setting tick.interval" in gpuledger("fleet", f"--config.file={path}").stderr


def test_the_service_outlives_its_prometheus(server: Upstream) -> None:
    """Values while Prometheus answers, none after --max-age, then values again; the log has one line each."""
    flags = [
        "--query=DCGM_FI_DEV_GPU_UTIL",
        f"--prometheus.url={server.root}",
        "--refresh=1s",
        "--max-age=2s",
        "--by=pod",
    ]
    with serving("fleet", *flags, env=surroundings()) as running:
        running.metrics("^avg_GPU_utilization 60")
        assert running.get("/readyz") == "ok\n"

        server.say = page(b"", "502 Bad Gateway")
        gone = running.metrics("^gpu_fleet_up 0")
        assert "avg_GPU_utilization" not in gone
        assert "gpu_fleet_in_use_utilization_ratio" not in gone
        with pytest.raises(HTTPError) as caught:
            running.get("/readyz")
        assert b"status 502" in caught.value.read()
        assert running.get("/healthz") == "ok\n"

        server.say = page(GOOD)
        running.metrics("^avg_GPU_utilization 60")
        code, took_s, log = running.stop()

    assert (code, took_s < 5) == (0, True)
    assert log.count("status 502") == 1
    assert "Prometheus responds again" in log


def test_the_configuration_is_printed_and_used_again(tmp_path: Path) -> None:
    """A configuration with a tenant's header."""
    printed = gpuledger("fleet", "--print-config", "--prometheus.header=X-Scope-OrgID: a", "--by=namespace+pod")
    path = tmp_path / "fleet.yml"
    path.write_text(printed.stdout)
    again = gpuledger("fleet", "--print-config", f"--config.file={path}")

    assert "X-Scope-OrgID: a" in printed.stdout
    assert (printed.returncode, again.stdout) == (0, printed.stdout)


def test_warnings_are_printed(server: Upstream) -> None:
    """A partial answer is a warning."""
    tree = json.loads(GOOD) | {"warnings": ["store 2 did not answer"]}
    server.say = page(json.dumps(tree).encode())
    done = gpuledger("fleet", "--once", "--query=DCGM_FI_DEV_GPU_UTIL", f"--prometheus.url={server.root}")

    assert (done.returncode, done.stderr) == (0, "gpuledger: store 2 did not answer\n")
    assert "gpu_fleet_query_warnings 1" in done.stdout
