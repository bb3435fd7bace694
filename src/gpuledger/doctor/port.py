"""The addresses to listen on: free, or taken by a gpuledger that already runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger.doctor.finding import Finding, explained, ok, problem
from gpuledger.errors import ListenError
from gpuledger.export.listen import listen, parse_address


def ports(addresses: Sequence[str], is_ours: Callable[[str], bool]) -> list[Finding]:
    """One line an address; `is_ours` says whether a gpuledger answers at one."""
    return [_port(address, is_ours) for address in addresses]


def _port(address: str, is_ours: Callable[[str], bool]) -> Finding:
    name = f"listen {address}"
    _, port = parse_address(address)
    try:
        listen(address).close()
    except ListenError as error:
        if is_ours(address):
            return ok(name, "a gpuledger runs there already")
        said = explained(name, error)
        return problem(name, said.text, f"`sudo ss -ltnp 'sport = :{port}'` names who has it; {said.fix}")
    return ok(name, "free")
