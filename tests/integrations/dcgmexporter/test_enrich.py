"""Which pod goes on which series."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from gpuledger.catalog.dialects.dcgmnames import RENAMES
from gpuledger.integrations.dcgmexporter.enrich import enrich
from gpuledger.model import Device
from gpuledger.model.holders import DevicePods, HolderLabels, device_pods
from gpuledger.web.text import escape
from tests.components import program
from tests.integrations.dcgmexporter.world import (
    GPUS,
    MIGS,
    NAMES,
    body,
    given,
    labelled,
    parsed,
    pods,
    samples,
    text,
    tick,
    uuid,
)

ABOUT = ("gpu", "namespace", "pod", "container")


def test_whole_gpus() -> None:
    """Each series gets the pod that holds its GPU; series of a free GPU or a CPU are not changed."""
    page = text(labelled(body("whole"), tick(*given(GPUS[0], "ml/llama-0/main"))))

    assert pods(page, "DCGM_FI_DEV_SM_CLOCK", *ABOUT) == [
        ("0", "ml", "llama-0", "main", "1980"),
        ("1", "", "", "", "345"),
    ]
    assert pods(page, "DCGM_FI_CPU_TEMP_CURRENT", "cpu", "pod") == [("0", "", "47")]


@pytest.mark.parametrize("file", ["whole", "mig", "timeslicing", "nvlink"])
def test_names_of_4_9(file: str) -> None:
    """Names, units and labels of 4.9 change neither which series get a pod nor which pod they get."""
    holders = tick(*given(GPUS[0], "ml/llama-0/main"), *given(MIGS[0], "ml/a/main"))
    newer = body(file)
    for rename in RENAMES:
        newer = re.sub(rf"\b{rename.old}\b".encode(), rename.new.encode(), newer)
    newer = newer.replace(b"DCGM_FI_DRIVER_VERSION", b"DCGM_FI_SYSTEM_DRIVER_VERSION")
    old, new = labelled(body(file), holders), labelled(newer, holders)

    assert newer != body(file)
    assert (new.with_pod, new.series) == (old.with_pod, old.series)
    assert text(new).count('pod="llama-0"') == text(old).count('pod="llama-0"')


def test_mig_instances() -> None:
    """By parent and instance; the GPU itself and an unknown instance get no pod."""
    now = tick(*given(MIGS[0], "ml/a/main"), *given(MIGS[2], "ml/c/x"), *given(MIGS[3], "ml/c/y"))

    page = text(labelled(body("mig"), now))

    assert pods(page, "DCGM_FI_DEV_FB_USED", "GPU_I_ID", *ABOUT[1:]) == [
        ("", "", "", "", "4"),
        ("1", "ml", "a", "main", "1024"),
        ("2", "", "", "", "66"),
        ("9", "ml", "c", "", "12"),  # two containers of one pod have one compute instance each
    ]
    gone = replace(MIGS[0], gpu_instance_id=5)
    assert (
        enrich(parsed(body("mig")), DevicePods((gone,), ((gone.uuid, (HolderLabels("ml", "a", "main"),)),))).with_pod
        == 0
    )


def test_a_shared_gpu_keeps_its_value_once_without_a_pod() -> None:
    """Also where dcgm-exporter had named one of its pods; that pod's uid goes too. What it split itself stays."""
    page = text(labelled(body("timeslicing"), tick(*given(GPUS[0], "ml/llama-0/main", "ml/llama-1/main"))))

    assert pods(page, "DCGM_FI_DEV_POWER_USAGE", *ABOUT, "pod_uid") == [
        ("0", "", "", "", "", "402"),
        ("1", "", "", "", "", "80"),
    ]
    assert pods(page, "DCGM_FI_DEV_GPU_UTIL", "gpu", "pod", "vgpu") == [
        ("0", "llama-0", "0", "30"),
        ("0", "llama-1", "1", "50"),
        ("1", "", "", "0"),
    ]


def test_copies_for_each_pod_on_request() -> None:
    """One for each container, however many replicas of the GPU it has."""
    now = tick(*given(GPUS[0], "ml/llama-0/main", "ml/llama-0/main", "ml/llama-1/main"))

    page = text(labelled(body("timeslicing"), now, copied=True))

    assert pods(page, "DCGM_FI_DEV_POWER_USAGE", *ABOUT) == [
        ("0", "ml", "llama-0", "main", "402"),
        ("0", "ml", "llama-1", "main", "402"),
        ("1", "", "", "", "80"),
    ]


def test_nvlinks() -> None:
    """Their label is gpu_uuid; a switch has no pod."""
    page = text(labelled(body("nvlink"), tick(*given(GPUS[1], "ml/b/main"))))

    sent = pods(page, "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", "gpu", "nvlink", "pod")
    assert [row[:3] for row in sent] == [("0", str(n), "") for n in range(3)] + [("1", str(n), "b") for n in range(3)]
    assert len(pods(page, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gpu", "nvlink")) == 6
    assert page.count("# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL counter\n") == 1
    assert pods(page, "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", "pod") == [("", "44")]


def test_names_of_1x() -> None:
    """The labels have the old names too, whether they were there and empty or not."""
    page = text(labelled(body("old"), tick(*given(GPUS[0], "ml/llama-0/main"))))

    for metric, value in (("dcgm_gpu_temp", "61"), ("dcgm_gpu_utilization", "97")):
        found = pods(page, metric, "gpu", "pod_namespace", "pod_name", "container_name", "pod")
        assert found[0] == ("0", "ml", "llama-0", "main", "", value)
        assert found[1][1:5] == ("", "", "", "")


@pytest.mark.parametrize(
    ("labels", "is_found"),
    [
        (f'UUID="{uuid(1)}"', True),
        (f'uuid="{uuid(1)}"', True),
        (f'gpu_uuid="{uuid(1)}"', True),
        ('UUID="MIG-2-1-0"', False),
        ('UUID="",pci_bus_id="0000:11:00.0"', True),
        ('pci_bus_id="00000000:11:00.0"', True),
        ('device="nvidia1"', True),
        ('device="nvidia7"', False),
        ('gpu="1"', False),
        ('UUID="GPU-of-another-host",device="nvidia1"', False),
        (f'UUID="{uuid(1)}",GPU_I_ID="1"', False),
        ('pci_bus_id="x",device="y"', False),
    ],
)
def test_labels_that_identify_a_device(labels: str, is_found: bool) -> None:
    """By uuid, else by bus id, else by nvidiaN; an index alone does not identify a device."""
    page = labelled(f"a{{{labels}}} 1\n".encode(), tick(*given(GPUS[1], "ml/b/main")))

    assert page.with_pod == is_found


def test_nvidia_n_means_nothing_where_minor_and_index_differ() -> None:
    """dcgm-exporter writes its own number there, others that of /dev."""
    swapped = DevicePods(
        (Device(0, "GPU-x", minor=1), Device(1, "GPU-y", minor=0)), (("GPU-x", (HolderLabels("n", "p", "c"),)),)
    )

    assert enrich(parsed(b'a{device="nvidia0"} 1\na{device="nvidia1"} 2\n'), swapped).with_pod == 0


@pytest.mark.parametrize(
    ("there", "holders", "expected"),
    [
        ('pod="p",namespace="n",container="c",pod_uid="u"', [], ("n", "p", "c", "u")),
        ('pod="p",namespace="n",container="c",pod_uid="u"', ["n/p/c"], ("n", "p", "c", "u")),
        ('pod="p",namespace="n",container="",pod_uid="u"', ["n/p/c"], ("n", "p", "c", "u")),
        ('pod="old",namespace="n",container="c",pod_uid="u"', ["n/new/d"], ("n", "new", "d", "")),
        ('pod="p",namespace="other",container="c",pod_uid="u"', ["n/p/c"], ("n", "p", "c", "")),
        ('pod="p",namespace="n",container="c",pod_uid="u"', ["n/p/c", "n/q/c"], ("", "", "", "")),
        ('pod="p",namespace="n",container="c",pod_uid="u"', ["n/p/c", "n/p/d"], ("n", "p", "", "u")),
    ],
    ids=["unknown", "agrees", "container added", "other pod", "other namespace", "shared", "two containers"],
)
def test_labels_that_are_there_already(there: str, holders: list[str], expected: tuple[str, ...]) -> None:
    """Kept where they agree or we know nothing; else ours win."""
    line = f'a{{UUID="{uuid(0)}",{there}}} 1\n'.encode()

    page = text(labelled(line, tick(*given(GPUS[0], *holders))))

    assert pods(page, "a", "namespace", "pod", "container", "pod_uid") == [(*expected, "1")]


def test_duplicates_are_dropped_and_counted() -> None:
    """The same labels in another order, or with an empty one, are the same series."""
    gpu = f'UUID="{uuid(0)}"'
    data = (
        f'a{{{gpu},x="1"}} 1\na{{x="1",{gpu}}} 2\na{{x="1",{gpu},y=""}} 3\nb{{{gpu},x="1"}} 4\n'
        f'c{{{gpu},pod="p"}} 5\nc{{pod="p",{gpu}}} 6\nd 7\nd{{}} 8\n'
    ).encode()

    found = labelled(data, tick(*given(GPUS[0], "n/r/c")))

    assert sorted(samples(text(found)).values()) == [1, 4, 5, 7]
    assert (found.series, found.with_pod, found.duplicates) == (4, 3, 4)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("holders", [["ml/a/main"], ["ml/a/main", "ml/b/main"]], ids=["one", "two"])
def test_what_was_split_by_pod_stays(holders: list[str], copied: bool) -> None:
    """Without `vgpu` too, and for any holders: the values differ, and all but one would be lost."""
    gpu = f'UUID="{uuid(0)}"'
    data = (
        f'u{{{gpu},namespace="ml",pod="a",container="main"}} 30\n'
        f'u{{{gpu},namespace="ml",pod="b",container="main"}} 50\n'
        f'u{{pod="b",{gpu},namespace="ml",container="main"}} 51\nu{{{gpu}}} 5\n'
        f'dcgm_u{{{gpu},pod_name="a"}} 1\ndcgm_u{{{gpu},pod_name="b"}} 2\n'
        f'whole{{{gpu},namespace="ml",pod="b",container="main"}} 80\n'
    ).encode()

    found = labelled(data, tick(*given(GPUS[0], *holders)), copied=copied)

    page = text(found)
    assert pods(page, "u", "namespace", "pod", "container") == [
        ("", "", "", "5"),
        ("ml", "a", "main", "30"),
        ("ml", "b", "main", "50"),
    ]
    assert pods(page, "dcgm_u", "pod_name") == [("a", "1"), ("b", "2")]
    whole = {(1, False): ["a"], (1, True): ["a"], (2, False): [""], (2, True): ["a", "b"]}
    expected = whole[len(holders), copied]
    assert pods(page, "whole", "pod") == [(pod, "80") for pod in expected]
    assert (found.duplicates, found.with_pod) == (1, 4 + len([pod for pod in expected if pod]))


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_labels_changes(name: str, copied: bool) -> None:
    """Read by prometheus_client: upstream's samples, all of them, plus at most the labels of a pod."""
    now = tick(*given(GPUS[0], "ml/llama-0/main"), *given(GPUS[1], "ml/x/main"), *given(MIGS[0], "ml/a/main"))
    mine = {"namespace", "pod", "container", "pod_uid", "pod_namespace", "pod_name", "container_name"}
    families = parsed(body(name))
    as_read = [(family.head, n, block or b"", value) for family in families for n, block, value in family.series]

    page = text(labelled(body(name), now, copied=copied))

    def without_pods(page: str) -> list[tuple[str, list[tuple[str, str]], float]]:
        found = samples(page).items()
        return sorted((n, sorted(p for p in labels if p[0] not in mine), value) for (n, labels), value in found)

    before = b"".join(b"%b%b{%b} %b\n" % row for row in as_read).decode()
    assert without_pods(page) == without_pods(before)
    heads = "".join(family.head.decode() for family in families)
    assert [line for line in page.splitlines() if line.startswith("#")] == heads.splitlines()


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("name", NAMES)
def test_prometheus_reads_it(name: str) -> None:
    """Its linter dislikes dcgm-exporter's names and labels, but can read every line; of NVLinks' own text it cannot."""
    promtool = program("promtool")

    def check(page: str) -> str:
        done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "parsing error" not in check(text(labelled(body(name), tick(*given(GPUS[0], "ml/llama-0/main")))))
    assert ("parsing error" in check(body(name).decode())) == (name == "nvlink")


ANY = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10) | st.text('\\"\n{}=,é', min_size=1, max_size=6)


@examples(ANY, ANY, ANY, ANY)
def test_any_names(namespace: str, pod: str, container: str, model: str) -> None:
    """Whatever a pod is called and whatever else the series says, what is served can be read, and says it."""
    line = f'a{{modelName="{escape(model)}",UUID="{uuid(0)}"}} 1\n'.encode()
    held = DevicePods((GPUS[0],), ((uuid(0), (HolderLabels(namespace, pod, container),)),))

    page = text(enrich(parsed(line), held))

    expected = {"modelName": model, "UUID": uuid(0), "namespace": namespace, "pod": pod, "container": container}
    assert list(samples(page)) == [("a", frozenset(expected.items()))]


def test_processes_name_the_pod_without_an_allocation() -> None:
    """A GPU without an allocation, with processes of one pod only. An allocation takes precedence."""
    now = tick(
        *given(GPUS[0], "ml/granted/main"),
        residents={uuid(0): [1], uuid(1): [1, 2], uuid(2): [1], uuid(3): [1, 3], "MIG-2-1-0": [4], "MIG-2-2-0": [5]},
        by_pid={1: "ml/a/main", 2: "ml/a/side", 3: "", 4: "ml/d/main"},
    )

    assert dict(device_pods(now).holders) == {
        uuid(0): (HolderLabels("ml", "granted", "main"),),
        uuid(1): (HolderLabels("ml", "a", "main"), HolderLabels("ml", "a", "side")),
        "MIG-2-1-0": (HolderLabels("ml", "d", "main"),),
    }


def test_processes_of_two_pods_name_no_holder() -> None:
    """Without an allocation, the holder is not known."""
    now = tick(residents={uuid(1): [1, 2]}, by_pid={1: "ml/a/main", 2: "ml/b/main"})

    assert device_pods(now).holders == ()
