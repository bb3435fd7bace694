"""Names and secrets that must not leave the host."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.catalog import CATALOG
from gpuledger.config import load as config
from gpuledger.tools.doctor.bundle import PLAIN_LABELS, Redactor
from gpuledger.web.text import escape

UUID = "GPU-0f1e2d3c-0000-4000-8000-000000000000"
C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
NAMING = {
    "uuid", "parent_uuid", "serial", "container", "container_id", "namespace", "pod", "pod_uid", "image", "user",
    "workload_name", "process_name", "unit", "label", "value", "replica", "library", "batch_job", "batch_step",
    "batch_task", "batch_account", "fabric_uuid", "server", "model_name", "outer_container",
}  # fmt: skip


def test_every_label_is_thought_about() -> None:
    """A new label of the catalog is hashed until it is added to PLAIN_LABELS."""
    labels = {label for one in CATALOG for label in (*one.of.labels, *one.labels)} | {
        label for family in CATALOG for label in family.of.labels
    }

    assert labels - PLAIN_LABELS == NAMING
    assert set() == NAMING & PLAIN_LABELS


def test_metrics_keep_their_shape() -> None:
    """The same name is the same token everywhere, values and plain labels stay, and what is empty stays empty."""
    text = (
        '# HELP gpu_up pod="x" From nvml.\n'
        f'gpu_up{{gpu="0",uuid="{UUID}"}} 1\n'
        f'gpu_process_x{{gpu="0",uuid="{UUID}",pod="",container="a \\"b\\", c"}} 5.5\n'
    )

    shown = Redactor().metrics(text)

    tokens = re.findall(r'uuid="(x[0-9a-f]{12})"', shown)
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert re.sub(r"x[0-9a-f]{12}", "T", shown) == (
        '# HELP gpu_up pod="x" From nvml.\ngpu_up{gpu="0",uuid="T"} 1\n'
        'gpu_process_x{gpu="0",uuid="T",pod="",container="T"} 5.5\n'
    )


def test_names_of_metrics_are_known_in_texts() -> None:
    """So a log line and a series can still be put side by side."""
    names = Redactor()
    names.metrics('a{container="payroll"} 1\n')

    assert names.text("docker: payroll is gone, payrolls are not") == (
        f"docker: {names.token('payroll')} is gone, payrolls are not"
    )


@pytest.mark.parametrize(
    "name",
    [UUID, C, C[:12], "0f1e2d3c-1111-4000-8000-000000000000", "MIG-0f1e2d3c-0000-4000-8000-000000000000"],
)
def test_what_looks_like_a_name(name: str) -> None:
    """Is one, whether it was met or not."""
    assert name not in Redactor().text(f"answered 500 to /containers/{name}/json: no")


@pytest.mark.parametrize("name", ["x\fpayroll", "x\vpayroll", "x\u2028payroll", 'x"payroll', "x\\payroll", "größe"])
def test_odd_names(name: str) -> None:
    """A separator of lines does not end a label; escapes of labels and of the log do not hide a name."""
    redactor = Redactor()
    line = f'gpu_process_info{{process_name="{escape(name)}"}} 1\n'

    assert redactor.metrics(line + line) == f'gpu_process_info{{process_name="{redactor.token(name)}"}} 1\n' * 2
    assert redactor.text(f"msg={json.dumps(f'process {name} ended')}") == f'msg="process {redactor.token(name)} ended"'


def test_homes_and_accounts() -> None:
    """Name people and teams."""
    shown = Redactor().text("/home/alice/.kube/config of system:serviceaccount:payroll:gpuledger")

    assert "alice" not in shown
    assert "payroll" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "tcp://me:hunter2@host:2375",
        "cannot talk to docker at me:hunter2@host:2375: no",
        "http://host/metrics?key=hunter2",
        "Authorization: Bearer hunter2hunter2",
        "password=hunter2",
        '"token": "hunter2"',
    ],
)
def test_secrets_by_where_they_stand(text: str) -> None:
    """In any text, whoever wrote it."""
    assert "hunter2" not in Redactor().text(text)


WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?&=*"), min_size=3, max_size=20)


@given(user=WORD, password=WORD)
def test_login_of_a_setting_is_nowhere(user: str, password: str) -> None:
    """Whatever characters it is made of, and however a message breaks it up."""
    address = f"tcp://{user.replace(':', '')}-:{password}@host:2375"
    shown = Redactor(addresses=(address,)).text(f"cannot open {address}; tried «{password}» at host")

    assert f"«{password}»" not in shown
    assert f"{password}@" not in shown


@given(value=WORD)
def test_query_of_a_setting_is_nowhere(value: str) -> None:
    """Tokens are often there."""
    address = f"http://host:9400/metrics?key={value}"

    assert f"«{value}»" not in Redactor(addresses=(address,)).text(f"{address} answers 401 to «{value}»")


def test_settings() -> None:
    """Secrets are gone, the rest is as it was."""
    settings = replace(config.load({}, {}), docker_host=("tcp://me:hunter2@h:1", "/run/docker.sock"))

    shown = Redactor().settings(settings)

    assert shown.docker_host == ("tcp://***@h:1", "/run/docker.sock")
    assert shown.web_listen_address == settings.web_listen_address
    assert shown.tick_interval == settings.tick_interval
    assert shown.pod_resources_socket == settings.pod_resources_socket
