"""The dialects as a user chooses them: flags, a list of counters, the name of the node."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario

LIST = """\
# temperature only
DCGM_FI_DEV_GPU_TEMP, gauge, Heat.
DCGM_FI_DEV_RETIRED_SBE, counter, Pages.
DCGM_EXP_P2P_STATUS, gauge, Links.
DCGM_FI_DEV_GPU_TEMP, gauge, Again.
dcgm_gpu_temp, gauge, Under its old name.
"""


def test_a_list_of_counters(tmp_path: Path) -> None:
    """It chooses; what we lack is one line of the log, as is what is there twice; hostname is the node's name."""
    scenario = Scenario(gpus=[Gpu(index=0, temperature=44)]).write(tmp_path / "scenario")
    (tmp_path / "counters.csv").write_text(LIST)
    flags = (f"--collectors={tmp_path}/counters.csv", "--web.dialect=dcgm", "--environment=none")

    with serving(*flags, env=surroundings(scenario, NODE_NAME="node7")) as server:
        body = server.metrics("^DCGM_FI_DEV_GPU_TEMP")
        log = server.log.read_text()

    assert body.startswith("# HELP DCGM_FI_DEV_GPU_TEMP Heat. ")
    assert 'Hostname="node7"} 44\n' in body
    assert body.count("# TYPE") == 2
    assert "# HELP dcgm_gpu_temp Under its old name. " in body
    assert log.count('duplicate counters, the first of each is used: DCGM_FI_DEV_GPU_TEMP"') == 1
    assert log.count("unknown counters are ignored: DCGM_FI_DEV_RETIRED_SBE, DCGM_EXP_P2P_STATUS") == 1


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    """One line, with the file and the line in it; also when it is no text, or far too long."""
    path = tmp_path / "counters.csv"
    answers = []
    for data in (b"DCGM_FI_DEV_GPU_TEMP\n", b"\xff\xfe", b"#" * 200_000):
        path.write_bytes(data)
        done = gpuledger("once", f"--dcgm.counters={path}")
        answers.append((done.returncode, done.stderr.replace(str(path), "FILE").strip()))

    begin = "gpuledger: --dcgm.counters: FILE"
    assert answers == [
        (2, f"{begin}: line 1: 'DCGM_FI_DEV_GPU_TEMP' does not have three columns; write `FIELD, type, help`"),
        (2, f"{begin} is not a text file in UTF-8; name a CSV file"),
        (2, f"{begin} has more than 100000 characters; name a CSV file"),
    ]


def test_once_in_the_names_of_others(tmp_path: Path) -> None:
    """For the textfile collector: two dialects, and the prefix of a process exporter."""
    scenario = Scenario(gpus=[Gpu(index=0)], processes=[Process(gpu=0, pid=4)]).write(tmp_path / "scenario")

    done = gpuledger(
        "once", "--web.dialect=dcgm1", "--web.dialect=process", "--metric-prefix=my_gpu", "--tick.interval=100ms",
        "--environment=none", env=surroundings(scenario),
    )  # fmt: skip

    assert done.returncode == 0
    assert "\ndcgm_power_usage{" in done.stdout
    assert '\nmy_gpu_memory_used_bytes{pid="4"' in done.stdout
    assert "\ngpu_power_watts{" not in done.stdout


def test_paths_of_dialects_and_the_original_flags(tmp_path: Path) -> None:
    """Each dialect has its path; the flags of a per-process exporter work, and an unused prefix is logged."""
    env = surroundings(Scenario([Gpu(index=0)], [Process(gpu=0, pid=7)]).write(tmp_path / "scenario"))
    flags = ("--metric-prefix=my_gpu_process", "--log-level=info", "--kubernetes-enabled=false")

    with serving(*flags, env=env) as server:
        server.metrics("^my_gpu_process_active", "/process/metrics")
        server.metrics("^gpu_memory_used_bytes", "/inference/metrics")
        assert "my_gpu_process" not in server.get("/metrics")
        assert "--metric-prefix has an effect only under /process/metrics" in server.log.read_text()
