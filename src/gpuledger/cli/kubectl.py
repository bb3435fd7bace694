"""`kubectl gpu`: GPU use of pods and nodes, idle allocations, costs and reasons, with the rights of kubectl's user."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence

from gpuledger.cli import terminal
from gpuledger.errors import LostError, UsageError
from gpuledger.model.plaintext import escaped
from gpuledger.tools import answers
from gpuledger.tools.kubectl.cluster import connected
from gpuledger.tools.prices import Prices, amount, currency
from gpuledger.tools.text import aligned, fixed, gib, percent, short_name, span, whole
from gpuledger.tools.top.columns import View, cells, fit_rows, headings
from gpuledger.tools.top.rows import Choice
from gpuledger.tools.top.text import ASCII, HEAD, UNICODE, ansi, joined, plain, styled
from gpuledger.web.snapshot.schema import Snapshot

NAMESPACE = "gpuledger"
MIN_COLUMNS, WIDE_COLUMNS, DEFAULT_COLUMNS = 40, 400, 120
NODE_WIDTH = 24
KINDS = {"pods": "pods", "pod": "pods", "po": "pods", "nodes": "nodes", "node": "nodes", "no": "nodes"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plugin. Invalid input is exit code 2 and one line; 1 if no exporter answers or knows the pod."""
    arguments = _parser().parse_args(argv)
    flags = [f"--{name}={value}" for name in ("context", "kubeconfig") if (value := getattr(arguments, name))]
    try:
        with connected(flags, token=arguments.token, kubectl=arguments.kubectl) as cluster:
            namespace = "" if arguments.all_namespaces else arguments.namespace or cluster.namespace or "default"
            snapshots, failures = cluster.snapshots(arguments.gpuledger_namespace)
        for failure in failures:
            print(f"kubectl-gpu: {escaped(failure)}", file=sys.stderr)
        if not snapshots:
            return 1
        own = [answers.in_namespace(snapshot, namespace) for snapshot in sorted(snapshots, key=lambda s: s.node)]
        return _answer(arguments, snapshots if KINDS[arguments.kind] == "nodes" else own, namespace)
    except LostError as error:
        print(f"kubectl-gpu: {escaped(str(error))}", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"kubectl-gpu: {escaped(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-n", "--namespace", default="", help="namespace of the pods [that of the context]")
    common.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces that you may see")
    common.add_argument("-o", "--output", choices=("wide", "json"), default="", help="more columns, or JSON")
    common.add_argument("--context", default="", help="context of the kubeconfig")
    common.add_argument("--kubeconfig", default="", metavar="PATH", help="kubeconfig file")
    common.add_argument("--token", default="", help="bearer token for exporters that show own views [yours]")
    common.add_argument("--gpuledger-namespace", default=NAMESPACE, metavar="NAME",
                        help=f"namespace of the exporters [{NAMESPACE}]")  # fmt: skip
    common.add_argument("--kubectl", default="kubectl", help=argparse.SUPPRESS)
    parser = argparse.ArgumentParser(
        prog="kubectl gpu", description="GPU use, from the gpuledger exporters of the cluster."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    top = commands.add_parser("top", parents=[common], help="show the use of GPUs by pod or by node")
    top.add_argument("kind", choices=tuple(KINDS), metavar="pods|nodes", help="what to show")
    idle = commands.add_parser("idle", parents=[common], help="list allocated GPUs that are not used")
    why = commands.add_parser("why", parents=[common], help="show how it is known what a pod uses")
    why.add_argument("pod", metavar="POD", help="name of the pod")
    cost = commands.add_parser("cost", parents=[common], help="show GPU-hours, energy and cost by pod")
    for priced in (idle, cost):
        priced.add_argument("--price", default="", type=amount, help="price per kWh")
        priced.add_argument("--price-gpu-hour", default="", type=amount, help="price per GPU-hour")
        priced.add_argument("--currency", default="", type=currency, help="currency to show")
    for command in (idle, why, cost):
        command.set_defaults(kind="pods")
    return parser


def _answer(arguments: argparse.Namespace, snapshots: list[Snapshot], namespace: str) -> int:
    as_json = arguments.output == "json"
    if arguments.command == "why":
        lines = answers.why(snapshots, arguments.pod, namespace)
        if not lines:
            return terminal.fail(f"no exporter knows a pod {arguments.pod} that you may see; add -n NAMESPACE or -A")
        terminal.write((json.dumps(lines, indent=2) + "\n" if as_json else "\n".join(lines) + "\n").encode())
        return 0
    if arguments.command == "top":
        is_nodes = KINDS[arguments.kind] == "nodes"
        of_pods = (row for row in answers.who_uses(snapshots) if row.get("pod"))
        answer = answers.nodes(snapshots) if is_nodes else list(of_pods)
    else:
        kwh, gpu_hour = (float(text) if text else None for text in (arguments.price, arguments.price_gpu_hour))
        prices = Prices(kwh, gpu_hour, arguments.currency)
        answer = answers.idle(snapshots, prices) if arguments.command == "idle" else answers.costs(snapshots, prices)
    if as_json:
        terminal.write((json.dumps(answer, indent=2) + "\n").encode())
    elif not answer:
        print(f"kubectl-gpu: nothing to show in {namespace or 'any namespace'}", file=sys.stderr)
    elif arguments.command == "top" and KINDS[arguments.kind] == "pods":
        terminal.write(_pods(snapshots, is_wide=arguments.output == "wide").encode())
    else:
        terminal.write(("\n".join(_table(arguments.command, answer)) + "\n").encode())
    return 0


def _pods(snapshots: list[Snapshot], *, is_wide: bool) -> str:
    """The table of `top --once`, after the name of the node."""
    view = View(Choice("pod"))
    rows = [(snapshot.node, row) for snapshot, row in answers.uses(snapshots) if row.uses[0].pod]
    rows.sort(key=lambda item: (-(item[1].memory_bytes or 0), item[1].owner))
    width = min(NODE_WIDTH, max(len("NODE"), *(len(node) for node, _ in rows)))
    screen = WIDE_COLUMNS if is_wide else shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    glyphs, form = UNICODE if utf8 else ASCII, ansi if terminal.has_colour() else plain
    columns = fit_rows([row for _, row in rows], view, max(MIN_COLUMNS, screen - width - 1))
    lines = [styled(f"{'NODE':{width}} " + " ".join(headings(columns, view, glyphs)), HEAD)]
    for node, row in rows:
        name = escaped(node, in_columns=True)[:width]
        lines.append(joined([styled(f"{name:{width}}"), *((cell,) for cell in cells(columns, row, glyphs))], " "))
    return "".join(f"{form(line).rstrip()}\n" for line in lines)


def _table(command: str, answer: answers.Answer) -> list[str]:
    """Nodes, idle allocations or costs."""
    if command == "top":
        head = ["NODE", "GPUS", "IN USE", "BUSY%", "MEM GiB", "OF GiB", "WATTS"]
        body = [
            [row["node"], str(row["gpus"]), str(row["in_use"]), percent(row["utilization_ratio"]),
             gib(row["memory_used_bytes"]), gib(row["memory_total_bytes"]), whole(row["watts"])]
            for row in answer
        ]  # fmt: skip
    elif command == "idle":
        head = ["NODE", "OWNER", "GPU", "STATE", "IDLE FOR", "GPU-H", "COST", "WOULD BE FREED BY"]
        body = [
            [row["node"], short_name(row["owner"]), row["gpu"], row["state"], span(row["idle_seconds"]),
             fixed(row["gpu_hours"], 2), fixed(row["cost"], 2), row["command"] or "(shown after 1h)"]
            for row in answer
        ]  # fmt: skip
    else:
        head = ["NODE", "OWNER", "GPU-H", "kWh", f"COST {answer[0]['currency']}".rstrip()]
        body = [
            [
                row["node"],
                short_name(row["owner"]),
                fixed(row["gpu_hours"], 2),
                fixed(row["kwh"], 3),
                fixed(row["cost"], 2),
            ]
            for row in answer
        ]
    return list(aligned([head, *body], {*head} - {"NODE", "OWNER", "STATE", "WOULD BE FREED BY"}))
