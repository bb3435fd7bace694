"""From a pod to its workload: every case seen in clusters, and anything else without an error."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.net.address import Address, parse_place
from gpuledger.owners.providers.kubepods import metrics_url, workload

RAY = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "myjob"}
HASH = {"pod-template-hash": "7c9d8f6b5d"}


def owner(kind: str, name: str, **more: object) -> dict[str, object]:
    """A reference as the API server writes it."""
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", "controller": True} | more


@pytest.mark.parametrize(
    ("owners", "labels", "annotations", "expected"),
    [
        ([owner("ReplicaSet", "vllm-7c9d8f6b5d")], HASH, {}, ("Deployment", "vllm")),
        ([owner("ReplicaSet", "vllm-7c9d8f6b5d")], {}, {}, ("ReplicaSet", "vllm-7c9d8f6b5d")),
        ([owner("ReplicaSet", "vllm")], HASH, {}, ("ReplicaSet", "vllm")),
        ([owner("ReplicaSet", "-7c9d8f6b5d")], HASH, {}, ("ReplicaSet", "-7c9d8f6b5d")),
        ([owner("ReplicaSet", "vllm-7c9d8f6b5d")], {"pod-template-hash": ""}, {}, ("ReplicaSet", "vllm-7c9d8f6b5d")),
        ([owner("ReplicaSet", "ui-69b6795bb4")], {"rollouts-pod-template-hash": "69b6795bb4"}, {}, ("Rollout", "ui")),
        ([owner("Job", "nightly-29384756")], {}, {}, ("CronJob", "nightly")),
        ([owner("Job", "nightly-1609459200")], {}, {}, ("CronJob", "nightly")),
        ([owner("Job", "nightly-2938475")], {}, {}, ("Job", "nightly-2938475")),
        ([owner("Job", "train-20261115")], {}, {}, ("Job", "train-20261115")),
        ([owner("Job", "train-202611151200")], {}, {}, ("Job", "train-202611151200")),
        ([owner("Job", "29384756")], {}, {}, ("Job", "29384756")),
        ([owner("Job", "train")], {}, {}, ("Job", "train")),
        ([owner("RayCluster", "rc-x")], RAY, {}, ("RayJob", "myjob")),
        ([owner("Job", "myjob")], RAY, {}, ("RayJob", "myjob")),
        ([owner("RayCluster", "rc-x")], {}, {}, ("RayCluster", "rc-x")),
        ([owner("RayCluster", "rc-x")], {"ray.io/originated-from-crd": "RayJob"}, {}, ("RayCluster", "rc-x")),
        ([owner("RayCluster", "rc-x")], RAY | {"ray.io/originated-from-crd": "X"}, {}, ("RayCluster", "rc-x")),
        ([owner("StatefulSet", "db")], {}, {}, ("StatefulSet", "db")),
        ([owner("DaemonSet", "x")], {}, {}, ("DaemonSet", "x")),
        ([owner("PyTorchJob", "llama")], {}, {}, ("PyTorchJob", "llama")),
        ([], {}, {}, ("Pod", "p")),
        ([owner("Node", "gpu1")], {}, {}, ("Pod", "p")),
        ([owner("DaemonSet", "x")], {}, {"kubernetes.io/config.mirror": "0a1b"}, ("Pod", "p")),
        ([owner("Workflow", "w", controller=False)], {}, {}, ("Workflow", "w")),
        ([owner("A", "a", controller=False), owner("B", "b")], {}, {}, ("B", "b")),
        ([owner("A", "a", controller=False), owner("B", "b", controller=None)], {}, {}, ("Pod", "p")),
        ([{"kind": 7, "name": None}], {}, {}, ("Pod", "p")),
    ],
)
def test_workload(
    owners: list[dict[str, object]],
    labels: dict[str, str],
    annotations: dict[str, str],
    expected: tuple[str, str],
) -> None:
    """The owner above the owner is named only where the pod proves it."""
    assert workload(owners, labels, "p", annotations) == expected


TEXT = st.one_of(st.text(), st.sampled_from(["ReplicaSet", "Job", "x-29384756", "29384756", "pod-template-hash", "-"]))
JUNK: st.SearchStrategy[Any] = st.one_of(TEXT, st.none(), st.booleans(), st.integers(), st.lists(st.integers()))


@given(
    st.lists(st.dictionaries(st.one_of(st.sampled_from(["kind", "name", "controller"]), TEXT), JUNK)),
    st.dictionaries(st.one_of(st.sampled_from([*RAY, *HASH]), TEXT), TEXT),
    TEXT,
    st.dictionaries(TEXT, TEXT),
)
def test_total(owners: list[dict[str, object]], labels: dict[str, str], name: str, annotations: dict[str, str]) -> None:
    """Whatever a pod holds, there is an answer, and only a pod that has no name leaves it empty."""
    kind, found = workload(owners, labels, name, annotations)

    assert kind
    assert found or (kind, name) == ("Pod", "")


ANNOTATED = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"}


@pytest.mark.parametrize(
    ("more", "status", "expected"),
    [
        ({}, {"podIP": "10.0.0.7", "hostIP": "192.168.0.1"}, "http://10.0.0.7:8000/metrics"),
        ({"prometheus.io/path": "m?a=b"}, {"podIP": "10.0.0.7"}, "http://10.0.0.7:8000/m?a=b"),
        ({"prometheus.io/scheme": "https"}, {"podIP": "fd00::7"}, "https://[fd00::7]:8000/metrics"),
        ({"prometheus.io/scrape": "false"}, {"podIP": "10.0.0.7"}, ""),
        ({}, {}, ""),
        ({}, {"podIP": "192.168.0.1", "hostIP": "192.168.0.1"}, ""),
        ({"prometheus.io/port": "0"}, {"podIP": "10.0.0.7"}, ""),
        ({"prometheus.io/port": "99999"}, {"podIP": "10.0.0.7"}, ""),
        ({"prometheus.io/port": "80@node:1"}, {"podIP": "10.0.0.7"}, ""),
        ({"prometheus.io/path": "/a b\r\nHost: x"}, {"podIP": "10.0.0.7"}, ""),
        ({"prometheus.io/path": "@evil/"}, {"podIP": "10.0.0.7"}, "http://10.0.0.7:8000/@evil/"),
        ({"prometheus.io/path": "//evil/x"}, {"podIP": "10.0.0.7"}, ""),
        ({"prometheus.io/path": "/é"}, {"podIP": "10.0.0.7"}, ""),
        *(
            ({"prometheus.io/scheme": scheme}, {"podIP": "10.0.0.7"}, "")
            for scheme in ("unix", "ftp", "HTTP", " http", "http://evil/?", "http://evil/#", "//evil/?http", "http\n")
        ),
        *(
            ({"prometheus.io/port": port}, {"podIP": "10.0.0.7"}, "")
            for port in ("", "-1", " 80", "\uff18\uff10", "\u0668", "80/a?", "80@evil", "1e3", "65536", "080000")
        ),
        *(
            ({}, {"podIP": address}, "")
            for address in ("127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.7", "0.0.0.0", "::",
                            "169.254.169.254", "fe80::1", "fe80::1%eth0", "64:ff9b::a9fe:a9fe", "224.0.0.1", "ff02::1",
                            "127.1", "2130706433", "0x7f.1", "010.0.0.7", "localhost", "evil", "10.0.0.7/x?", "[::1]",
                            "10.0.0.7:1", "10.0.0.7 ", "fd00::7%eth0", "", None, 7)
        ),
    ],
)  # fmt: skip
def test_metrics_url(more: dict[str, str], status: dict[str, object], expected: str) -> None:
    """Annotations choose port and path at the pod's own address, and nothing else: no other host, no node's port."""
    assert metrics_url(ANNOTATED | more, {}, status) == expected


def test_pods_in_the_network_of_the_host() -> None:
    """Their address is that of the node, whatever the status names first."""
    assert not metrics_url(ANNOTATED, {"hostNetwork": True}, {"podIP": "fd00::1", "hostIP": "192.168.0.1"})


STARTS = st.sampled_from(["", "http", "https", "80", "/m", "http://evil/?", "@evil"])
PARTS = st.builds(str.__add__, STARTS, st.text("htps:/@?#[]%.0189\\ \r\n\xe9\uff18", max_size=5))


@given(scheme=PARTS, port=PARTS, path=PARTS)
def test_any_annotations(scheme: str, port: str, path: str) -> None:
    """Whatever they are, the exporter connects to the pod, and a request has one line."""
    chosen = {"scrape": "true", "scheme": scheme, "port": port, "path": path}
    url = metrics_url({f"prometheus.io/{name}": text for name, text in chosen.items()}, {}, {"podIP": "10.0.0.7"})

    if url:
        place = parse_place(url)
        assert place.address == Address(host="10.0.0.7", port=int(port), tls=scheme == "https")
        assert re.fullmatch("/[!-~]*", place.target)
