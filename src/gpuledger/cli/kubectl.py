"""`kubectl gpu`: GPU use of pods and nodes, idle allocations, costs and reasons, with the rights of kubectl's user."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

from gpuledger.cli import terminal
from gpuledger.config import durations
from gpuledger.errors import GpuledgerError, LostError, UsageError
from gpuledger.model import ADVICE_AFTER_S
from gpuledger.model.plaintext import escaped
from gpuledger.tools import answers
from gpuledger.tools.idle.formats import idle_object, idle_table
from gpuledger.tools.kubectl.cluster import connected
from gpuledger.tools.prices import Prices, amount, currency
from gpuledger.tools.text import aligned, fixed, gib, percent, short_name, whole
from gpuledger.tools.top.columns import View, cells, fit_rows, headings
from gpuledger.tools.top.rows import Choice, TableRow
from gpuledger.tools.top.text import ASCII, HEAD, UNICODE, ansi, joined, plain, styled
from gpuledger.web.snapshot.schema import Snapshot

NAMESPACE = "gpuledger"
MIN_COLUMNS, WIDE_COLUMNS, DEFAULT_COLUMNS = 40, 400, 120
NODE_WIDTH = 24
NODES = ("nodes", "node", "no")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plugin. Invalid input is exit code 2 and one line; 1 if no exporter answers or knows the pod."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # kubectl proxy must not outlive the plugin
        terminal.write(_run(_parser().parse_args(argv)).encode())
    except GpuledgerError as error:
        _warn(str(error))
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _warn(text: str) -> None:
    print(f"kubectl-gpu: {escaped(text)}", file=sys.stderr)


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
    priced = argparse.ArgumentParser(add_help=False)
    priced.add_argument("--price", default="", type=amount, help="price per kWh")
    priced.add_argument("--price-gpu-hour", default="", type=amount, help="price per GPU-hour")
    priced.add_argument("--currency", default="", type=currency, help="currency to show")
    about = "GPU use, from the gpuledger exporters of the cluster."
    parser = argparse.ArgumentParser(prog="kubectl gpu", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    top = commands.add_parser("top", parents=[common], help="show the use of GPUs by pod or by node")
    top.add_argument("kind", choices=("pods", "pod", "po", *NODES), metavar="pods|nodes", help="what to show")
    idle = commands.add_parser("idle", parents=[common, priced], help="list allocated GPUs that are not used")
    idle.add_argument("--min", default=ADVICE_AFTER_S, type=durations.parse, metavar="DURATION",
                      help=f"leave out those idle for less [{durations.show(ADVICE_AFTER_S)}]")  # fmt: skip
    why = commands.add_parser("why", parents=[common], help="show how it is known what a pod uses")
    why.add_argument("pod", metavar="POD", help="name of the pod")
    commands.add_parser("cost", parents=[common, priced], help="show GPU-hours, energy and cost by pod")
    return parser


def _run(arguments: argparse.Namespace) -> str:
    flags = [f"--{name}={value}" for name in ("context", "kubeconfig") if (value := getattr(arguments, name))]
    with connected(flags, arguments.token, arguments.kubectl) as cluster:
        namespace = "" if arguments.all_namespaces else arguments.namespace or cluster.namespace or "default"
        snapshots, failures = cluster.snapshots(arguments.gpuledger_namespace)
    for failure in failures:
        _warn(failure)
    if not snapshots:
        raise LostError("no exporter answers")
    snapshots.sort(key=lambda snapshot: snapshot.node)
    own = [answers.in_namespace(snapshot, namespace) for snapshot in snapshots]
    answer, text = _nodes(snapshots) if getattr(arguments, "kind", "") in NODES else _of_pods(arguments, own, namespace)
    if arguments.output == "json":
        return json.dumps(answer, indent=2) + "\n"
    if not answer and arguments.command != "idle":
        _warn(f"nothing to show in {namespace or 'any namespace'}")
        return ""
    return text


def _of_pods(arguments: argparse.Namespace, snapshots: list[Snapshot], namespace: str) -> tuple[list[Any], str]:
    """The answer as JSON, and as text."""
    if arguments.command == "why":
        lines = answers.why(snapshots, arguments.pod, namespace)
        if not lines:
            what = f"no exporter knows a pod {arguments.pod} that you may see"
            raise LostError(what, "add -n NAMESPACE or -A")
        return lines, "\n".join(lines) + "\n"
    if arguments.command == "top":
        pods = [(node, row) for node, row in answers.uses(snapshots) if row.uses[0].pod]
        return answers.who_uses(pods), _pods(pods, is_wide=arguments.output == "wide")
    prices = Prices.of(arguments.price, arguments.price_gpu_hour, arguments.currency)
    if arguments.command == "idle":
        idle, others = answers.idle(snapshots, prices, arguments.min)
        form: dict[str, Any] = {
            "nodes": True,
            "colour": terminal.has_colour(),
            "min_s": arguments.min,
            "others": others,
        }
        return [*map(idle_object, idle)], idle_table(idle, prices, **form)
    costs = answers.costs(snapshots, prices)
    head = ["NODE", "OWNER", "GPU-H", "kWh", f"COST {prices.currency}".rstrip()]
    return costs, _table(head, [
        [row["node"], short_name(row["owner"]), fixed(row["gpu_hours"], 2), fixed(row["kwh"], 3), fixed(row["cost"], 2)]
        for row in costs
    ])  # fmt: skip


def _nodes(snapshots: list[Snapshot]) -> tuple[list[Any], str]:
    answer = answers.nodes(snapshots)
    return answer, _table(["NODE", "GPUS", "IN USE", "BUSY%", "MEM GiB", "OF GiB", "WATTS"], [
        [row["node"], str(row["gpus"]), str(row["in_use"]), percent(row["utilization_ratio"]),
         gib(row["memory_used_bytes"]), gib(row["memory_total_bytes"]), whole(row["watts"])]
        for row in answer
    ])  # fmt: skip


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "".join(f"{line}\n" for line in aligned([head, *lines], {*head} - {"NODE", "OWNER"}))


def _pods(pods: list[tuple[str, TableRow]], *, is_wide: bool) -> str:
    """The table of `top --once`, after the name of the node."""
    width = min(NODE_WIDTH, max([len("NODE"), *(len(node) for node, _ in pods)]))
    screen = WIDE_COLUMNS if is_wide else shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    glyphs, form = UNICODE if utf8 else ASCII, ansi if terminal.has_colour() else plain
    view = View(Choice("pod"))
    columns = fit_rows([row for _, row in pods], view, max(MIN_COLUMNS, screen - width - 1))
    lines = [styled(f"{'NODE':{width}} " + " ".join(headings(columns, view, glyphs)), HEAD)]
    for node, row in pods:
        name = escaped(node, in_columns=True)[:width]
        lines.append(joined([styled(f"{name:{width}}"), *((cell,) for cell in cells(columns, row, glyphs))], " "))
    return "".join(f"{form(line).rstrip()}\n" for line in lines)
