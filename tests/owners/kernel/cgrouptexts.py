"""Cgroup paths: those of real runtimes, and random ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import strategies as st

from gpuledger.owners.kernel.cgroup import CgroupRef

VECTORS = json.loads((Path(__file__).parent / "vectors" / "cgroup.json").read_text())

C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
O = "560e3e12b1e0dafa161e62fb3327ad65c98b7cd53849b17c627e8d3e1d419d6a"  # noqa: E741 - the outer container
U = "2c9f8a79-5391-454b-88cb-86190881cb96"
u = U.replace("-", "_")
S = "13a4855d71cbbf718962270ad801737a"
CONTAINER_ID = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}-[0-9]+|[0-9a-f]{8}(-[0-9a-f]{4}){4}|[A-Za-z0-9_.:@+-]{1,255}")
POD_UID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

pieces = st.sampled_from(
    [C, O, U, u, S, "/", "/..", ":", "\n", "0::", "docker", "-", ".scope", ".service", ".slice", "kubepods", "pod",
     "burstable", "libpod", "crio", "conmon", "lxc", "lxc.payload.", "machine-", "payload", "\\x2d", "\\x2f", "\\x00",
     "slurm", "job_1", "step_0", "task_0", "ecs", "nomad", "garden", "@", " (deleted)", "é", "\ud800", "\x00"]
)  # fmt: skip
anything = st.one_of(
    st.text(),
    st.binary().map(lambda data: data.decode("utf-8", "replace")),
    st.lists(pieces | st.text(max_size=3), max_size=25).map("".join),
)


def well_formed(ref: CgroupRef) -> None:
    """What later stages rely on: ids from known alphabets, one line of text, no path inside."""
    assert ref.container_id is None or CONTAINER_ID.fullmatch(ref.container_id)
    assert (ref.container_id is None) == (ref.runtime is None)
    assert ref.claimed_by is None or ref.container_id
    assert ref.pod_uid is None or POD_UID.fullmatch(ref.pod_uid)
    assert ref.qos in (None, "guaranteed", "burstable", "besteffort")
    assert ref.pod_uid or ref.qos is None
    for text in (ref.unit, ref.step, ref.task, *(ref.job or ())):
        assert text is None or (text and "\n" not in text and "\x00" not in text)
    assert ref.unit is None or ref.unit.count("/") <= 1
    assert ref.job or ref.step is None
    assert ref.step or ref.task is None
    json.dumps(ref.to_dict())
