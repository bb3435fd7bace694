"""The command that would free a device."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.web.snapshot.release import free_command


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (("research", "notebook-dana-0", "notebook", ""), "kubectl delete pod -n research notebook-dana-0"),
        (("", "static", "main", ""), "kubectl delete pod static"),
        (("", "", "triton", ""), "docker stop triton"),
        (("", "", "", "211"), "scancel 211"),
        (("", "", "", ""), ""),
        (("", "", "x; rm -rf /", ""), "docker stop 'x; rm -rf /'"),
        (("", "", "--all", ""), ""),
        (("", "", "a\nb", ""), ""),
    ],
)
def test_commands(names: tuple[str, str, str, str], command: str) -> None:
    """A name that could be an option or has control characters gives no command."""
    assert free_command(*names) == command


@given(st.text(), st.text(min_size=1), st.text())
def test_a_name_is_always_one_word(namespace: str, pod: str, container: str) -> None:
    """Tenants choose names: whatever they are, a shell sees each as one word that is no option."""
    command = free_command(namespace, pod, container, "")
    if command:
        words = shlex.split(command)
        assert words == ["kubectl", "delete", "pod", *(["-n", namespace] if namespace else []), pod]
        assert not pod.startswith("-")
