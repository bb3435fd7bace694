"""The MCP server: the protocol, its tools, and the rights of its user."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import LostError
from gpuledger.tools import answers
from gpuledger.tools.answers import costs
from gpuledger.tools.mcp import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LONGEST_LINE,
    NO_METHOD,
    PARSE_ERROR,
    TOOLS,
    VERSIONS,
    McpServer,
    lines,
)
from gpuledger.tools.prices import Prices
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.schema import AllocationRow, Snapshot
from tests.cli.running import serving, surroundings
from tests.web.snapshot.nodes import Node


def node() -> Snapshot:
    """A node with pods, containers and jobs."""
    made = Node(2, 40)
    ticks = [made.tick() for _ in range(5)]
    return snapshot(ticks[-1], ticks[0], node="n1")


SERVER = McpServer(node, Prices(0.3, 2.0, "EUR"))


def ask(method: str, server: McpServer = SERVER, **params: Any) -> dict[str, Any]:
    """The response to a request."""
    line = server.answer(json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode())
    assert line is not None
    response: dict[str, Any] = json.loads(line)
    assert (response["jsonrpc"], response["id"], line.count(b"\n")) == ("2.0", 7, 1)
    return response


def call(name: str, server: McpServer = SERVER, **arguments: str) -> Any:
    """The text of a tool."""
    result = ask("tools/call", server, name=name, arguments=arguments)["result"]
    return result["content"][0]["text"] if not result["isError"] else result


def test_the_handshake() -> None:
    """A version that both know, or the newest one of ours; notifications get no response."""
    for wanted, expected in (("2024-11-05", "2024-11-05"), ("1999-01-01", VERSIONS[0]), (None, VERSIONS[0])):
        result = ask("initialize", protocolVersion=wanted, capabilities={}, clientInfo={})["result"]
        assert (result["protocolVersion"], result["serverInfo"]["name"]) == (expected, "gpuledger")
    assert SERVER.answer(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}') is None
    assert SERVER.answer(b'{"jsonrpc": "2.0", "method": "notifications/unknown"}') is None
    assert SERVER.answer(b'{"jsonrpc": "2.0", "method": "tools/call", "params": [1]}') is None
    assert ask("ping")["result"] == {}


def test_tools_are_described_and_read_only() -> None:
    """Each has a schema of its arguments."""
    tools = ask("tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == list(TOOLS) == ["who_uses", "why", "idle", "cost"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools)
    assert tools[1]["inputSchema"]["required"] == ["owner"]


def test_answers() -> None:
    """The same as those of kubectl gpu."""
    uses = json.loads(call("who_uses"))
    assert {row["node"] for row in uses} == {"n1"}
    assert {row.get("namespace") for row in json.loads(call("who_uses", namespace="team-2"))} == {"team-2"}
    assert "GiB listed by the driver" in call("why", owner=uses[0]["owner"])
    assert call("why", owner="nothing") == "the exporter knows no owner 'nothing' that you may see"
    assert json.loads(call("idle")) == []
    costs = json.loads(call("cost"))
    assert all(row["cost"] == pytest.approx(2 * row["gpu_hours"] + 0.3 * row["kwh"]) for row in costs if row["kwh"])


def test_names_cannot_command_a_terminal() -> None:
    """Nor look like another line of the answer: tenants choose the names of their processes."""
    given = node()
    row = replace(given.processes[0], process_name="x\x1b[2J\n  allocated   all GPUs")
    text = "\n".join(answers.why([replace(given, processes=(row,))], row.owner))

    assert "allocated   all GPUs" in text
    assert "\x1b" not in text
    assert "\n  allocated   all GPUs" not in text


def test_hours_on_a_shared_device_in_an_own_view() -> None:
    """How many share it is hidden, so hours and cost are unknown; with a part that was asked for, they are known."""
    row = AllocationRow(gpu=0, uuid="GPU-0", owner="slurm/7", job="slurm/7", allocated_seconds=3600.0, shared_by=None)
    for asked, hours in ((None, None), (0.25, 0.25)):
        view = Snapshot(node="n1", allocations=(replace(row, asked_ratio=asked),))
        (entry,) = costs([view], Prices(None, 2.0, "EUR"))
        assert (entry["gpu_hours"], entry["cost"]) == (hours, None if hours is None else 0.5)


def test_an_exporter_that_does_not_answer() -> None:
    """The agent gets the reason as the result of the tool."""

    def fetch() -> Snapshot:
        raise LostError("cannot reach http://h", "check whether it is running")

    result = call("who_uses", McpServer(fetch, Prices()))
    assert result == {
        "content": [{"type": "text", "text": "cannot reach http://h; check whether it is running"}], "isError": True,
    }  # fmt: skip


CALL = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": %s}'
MISTAKES = [
    (b"{", PARSE_ERROR),
    (b"[" * 5000, PARSE_ERROR),
    (b"\xff", PARSE_ERROR),
    (b"[]", INVALID_REQUEST),
    (b"{}", INVALID_REQUEST),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/delete"}', NO_METHOD),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', INVALID_PARAMS),
    ((CALL % '{"name": "rm"}').encode(), INVALID_PARAMS),
    ((CALL % '{"name": []}').encode(), INVALID_PARAMS),
    ((CALL % '{"name": "why"}').encode(), INVALID_PARAMS),
    ((CALL % '{"name": "idle", "arguments": {"x": "y"}}').encode(), INVALID_PARAMS),
    ((CALL % '{"name": "idle", "arguments": {"namespace": 5}}').encode(), INVALID_PARAMS),
]


@pytest.mark.parametrize(("line", "code"), MISTAKES)
def test_mistakes(line: bytes, code: int) -> None:
    """Each has its code."""
    response = SERVER.answer(line)
    assert response is not None
    assert json.loads(response)["error"]["code"] == code


def test_a_line_that_is_too_long_is_one_message() -> None:
    """Its end is no message of its own, even if it looks like one."""
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    stream = io.BytesIO(b"[" * LONGEST_LINE * 2 + ping + ping + ping.strip())
    responses = [json.loads(SERVER.answer(line) or b"") for line in lines(stream)]

    assert [response.get("error", {}).get("code") for response in responses] == [PARSE_ERROR, None, None]


WORDS = st.sampled_from(["jsonrpc", "id", "method", "params", "name", "arguments"]) | st.text(max_size=3)
TREES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)


@given(st.binary(max_size=200) | TREES.map(lambda tree: json.dumps(tree).encode()))
def test_any_line_gets_a_response_or_none(line: bytes) -> None:
    """No input ends the server."""
    response = SERVER.answer(line)
    assert response is None or json.loads(response)["jsonrpc"] == "2.0"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A real exporter."""
    with serving("demo", env=surroundings()) as exporter:
        exporter.metrics("^container_gpu_energy_joules_total.*pod=")
        yield exporter.url


def test_over_standard_input(url: str) -> None:
    """A whole conversation with a real exporter; standard output has responses only."""
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": VERSIONS[0]}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "who_uses", "arguments": {}}},
    ]
    text = "".join(json.dumps(line) + "\n\n" for line in lines)
    command = [sys.executable, "-m", "gpuledger", "mcp", f"--connect={url}"]
    done = subprocess.run(command, check=True, input=text, capture_output=True, text=True, timeout=60)

    responses = [json.loads(line) for line in done.stdout.splitlines()]
    assert [response["id"] for response in responses] == [1, 2]
    assert json.loads(responses[1]["result"]["content"][0]["text"])[0]["memory_bytes"] > 0
    assert done.stderr == ""
