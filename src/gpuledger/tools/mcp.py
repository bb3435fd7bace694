"""A server of the Model Context Protocol: four read-only questions to an exporter. Pure, but for the exporter itself.

Messages are JSON-RPC 2.0, one on each line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from gpuledger import __version__
from gpuledger.errors import GpuledgerError
from gpuledger.tools import answers
from gpuledger.tools.idle.formats import idle_object
from gpuledger.tools.prices import Prices
from gpuledger.web.snapshot.schema import Snapshot

VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first."""
LONGEST_LINE = 1 << 20
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INSTRUCTIONS = (
    "GPU use of one host by owner: pod, container, job or process. Energy is joules; `measured` is exact, `estimated` "
    "is a share of a shared GPU. Nothing is ever changed or deleted: commands in answers are for the user to run."
)
NAMESPACE = {"namespace": {"type": "string", "description": "Only pods of this Kubernetes namespace."}}
OWNER = {"owner": {"type": "string", "description": "Name of a pod, or an owner as in who_uses."}}
TOOLS = {
    "who_uses": "Owners of the GPUs: memory, utilization, power and energy of each.",
    "why": "How it is known what one owner uses: allocation, processes, memory and energy.",
    "idle": "Allocated GPUs that are not used, since when, and what that costs.",
    "cost": "GPU-hours, energy and cost of each owner since the exporter started.",
}


class ProtocolError(Exception):
    """A message that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class McpServer:
    """Answers messages. `fetch` returns the current snapshot, or raises GpuledgerError."""

    def __init__(self, fetch: Callable[[], Snapshot], prices: Prices) -> None:
        self._fetch, self._prices = fetch, prices

    def answer(self, line: bytes) -> bytes | None:
        """The response to a line; None to a notification."""
        number, is_request = None, True
        try:
            message = _parsed(line)
            number, is_request = message.get("id"), "id" in message
            response = {"result": self._result(message["method"], message.get("params") or {})}
        except ProtocolError as error:
            response = {"error": {"code": error.code, "message": str(error)}}
        if not is_request:
            return None
        return json.dumps({"jsonrpc": "2.0", "id": number, **response}).encode() + b"\n"

    def _result(self, method: str, params: Any) -> dict[str, Any]:
        if not isinstance(params, dict):
            raise ProtocolError(INVALID_PARAMS, "params is not an object")
        if method == "initialize":
            wanted = params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "gpuledger", "version": __version__},
                "instructions": INSTRUCTIONS,
            }
        if method == "ping" or method.startswith("notifications/"):
            return {}
        if method == "tools/list":
            return {"tools": [{"name": name, **_described(name)} for name in TOOLS]}
        if method == "tools/call":
            return self._call(params.get("name"), params.get("arguments") or {})
        raise ProtocolError(NO_METHOD, f"no method {method[:100]}")

    def _call(self, name: object, arguments: object) -> dict[str, Any]:
        if not isinstance(name, str) or name not in TOOLS:
            raise ProtocolError(INVALID_PARAMS, f"no tool {str(name)[:100]!r}; use {', '.join(TOOLS)}")
        if not isinstance(arguments, dict) or not all(isinstance(value, str) for value in arguments.values()):
            raise ProtocolError(INVALID_PARAMS, "arguments is not an object of texts")
        schema = _described(name)["inputSchema"]
        if not set(schema["required"]) <= arguments.keys() <= schema["properties"].keys():
            takes, required = (", ".join(schema[key]) or "nothing" for key in ("properties", "required"))
            raise ProtocolError(INVALID_PARAMS, f"{name} takes {takes}, and requires {required}")
        try:
            text, is_error = self._text(name, arguments), False
        except GpuledgerError as error:
            text, is_error = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": is_error}

    def _text(self, name: str, arguments: Mapping[str, str]) -> str:
        snapshots = [answers.in_namespace(self._fetch(), arguments.get("namespace", ""))]
        if name == "why":
            reasons = answers.why(snapshots, arguments["owner"])
            return "\n".join(reasons) or f"the exporter knows no owner {arguments['owner']!r} that you may see"
        if name == "idle":
            answer = [idle_object(row) for row in answers.idle(snapshots, self._prices)[0]]
        else:
            answer = (
                answers.costs(snapshots, self._prices) if name == "cost" else answers.who_uses(answers.uses(snapshots))
            )
        return json.dumps(answer, ensure_ascii=False)


def _described(name: str) -> dict[str, Any]:
    properties, required = (OWNER | NAMESPACE, ["owner"]) if name == "why" else (NAMESPACE, [])
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"description": TOOLS[name], "inputSchema": schema, "annotations": {"readOnlyHint": True}}


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of a line that is too long, the beginning."""
    while line := stream.readline(LONGEST_LINE):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
        yield line


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "the message is not JSON") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        raise ProtocolError(INVALID_REQUEST, "the message is not a request of JSON-RPC 2.0")
    return message
