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
Tool = tuple[str, dict[str, Any], tuple[str, ...]]
TOOLS: dict[str, Tool] = {
    "who_uses": ("Owners of the GPUs: memory, utilization, power and energy of each.", NAMESPACE, ()),
    "why": (
        "How it is known what one owner uses: allocation, processes, memory and energy.",
        OWNER | NAMESPACE,
        ("owner",),
    ),
    "idle": ("Allocated GPUs that are not used, since when, and what that costs.", NAMESPACE, ()),
    "cost": ("GPU-hours, energy and cost of each owner since the exporter started.", NAMESPACE, ()),
}
"""Description, parameters, and which of them are required, by name."""


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
            return {"tools": [_described(name, *tool) for name, tool in TOOLS.items()]}
        if method == "tools/call":
            return self._call(params)
        raise ProtocolError(NO_METHOD, f"no method {method[:100]}")

    def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or name not in TOOLS:
            raise ProtocolError(INVALID_PARAMS, f"no tool {str(name)[:100]!r}; use {', '.join(TOOLS)}")
        _, known, required = TOOLS[name]
        if not isinstance(arguments, dict) or not all(isinstance(value, str) for value in arguments.values()):
            raise ProtocolError(INVALID_PARAMS, "arguments is not an object of texts")
        if (unknown := arguments.keys() - known.keys()) or (unknown := set(required) - arguments.keys()):
            raise ProtocolError(
                INVALID_PARAMS, f"{name} takes {', '.join(known)}, not {', '.join(sorted(unknown))[:100]}"
            )
        try:
            text, is_error = self._text(name, arguments), False
        except GpuledgerError as error:
            text, is_error = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": is_error}

    def _text(self, name: str, arguments: Mapping[str, str]) -> str:
        snapshots = [answers.in_namespace(self._fetch(), arguments.get("namespace", ""))]
        if name == "why":
            lines = answers.why(snapshots, arguments["owner"])
            return "\n".join(lines) or f"the exporter knows no owner {arguments['owner']!r} that you may see"
        answer = {
            "who_uses": lambda: answers.who_uses(snapshots),
            "idle": lambda: answers.idle(snapshots, self._prices),
            "cost": lambda: answers.costs(snapshots, self._prices),
        }[name]()
        return json.dumps(answer, ensure_ascii=False)


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


def _described(name: str, about: str, parameters: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": about, "inputSchema": schema, "annotations": {"readOnlyHint": True}}
