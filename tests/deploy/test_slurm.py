"""The prolog and epilog of deploy/slurm, with the environment that slurmd gives them, and docs/slurm.md."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from gpuledger.config import load as config
from gpuledger.owners.names import Names
from gpuledger.owners.providers.hpcdir import HpcProvider
from gpuledger.tools.report.settings import ReportSettings
from tests.cli.running import serving, surroundings
from tests.components import program
from tests.deploy.slurmscripts import SCRIPTS, run
from tests.fakedriver import Gpu, Scenario

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "slurm.md").read_text()


def names(directory: Path) -> Names:
    """What the exporter reads."""
    return HpcProvider(directory).fetch()


def test_a_job_is_recorded_and_removed(tmp_path: Path) -> None:
    """With all its GPUs, its account and its user; other jobs stay."""
    directory = tmp_path / "gpu-jobs"
    run("prolog.sh", directory, JOB_ID="211", JOB_GPUS="0,1", JOB_ACCOUNT="physics", JOB_UID="1001")
    run("prolog.sh", directory, JOB_ID="212", JOB_GPUS="1", JOB_ACCOUNT="chemistry", JOB_UID="x")
    both = names(directory)
    run("epilog.sh", directory, JOB_ID="211", JOB_GPUS="0,1", JOB_ACCOUNT="physics")
    one = names(directory)
    run("epilog.sh", directory, JOB_ID="212")

    assert both.jobs == {(0, None): ("211",), (1, None): ("211", "212")}
    assert (both.job_uids, one.job_uids) == ({"211": "1001"}, {})
    assert both.accounts == {"211": "physics", "212": "chemistry"}
    assert (one.jobs, one.accounts) == ({(1, None): ("212",)}, {"212": "chemistry"})
    assert (names(directory).jobs, names(directory).accounts) == ({}, {})
    assert sorted(path.name for path in directory.iterdir()) == ["0", "1"]


def test_jobs_that_start_and_end_at_the_same_time(tmp_path: Path) -> None:
    """Forty jobs share a GPU: no line is lost, and a prolog that runs twice writes one line."""
    jobs = [str(number) for number in range(100, 140)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: run("prolog.sh", tmp_path, JOB_ID=job, JOB_GPUS="3"), [*jobs, *jobs]))
        recorded = names(tmp_path).jobs
        list(pool.map(lambda job: run("epilog.sh", tmp_path, JOB_ID=job), jobs[1:]))

    assert sorted(recorded[3, None]) == jobs
    assert names(tmp_path).jobs == {(3, None): (jobs[0],)}


def test_files_are_for_all_to_read_and_for_the_owner_to_write(tmp_path: Path) -> None:
    """Whatever the umask of slurmd is."""
    before = os.umask(0o077)
    try:
        run("prolog.sh", tmp_path / "jobs", JOB_ID="7", JOB_GPUS="0", JOB_ACCOUNT="physics")
    finally:
        os.umask(before)

    modes = [(path.name, path.stat().st_mode & 0o777) for path in (tmp_path / "jobs").iterdir()]
    assert sorted(modes) == [("0", 0o644), ("account.7", 0o644)]
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_nothing_drains_a_node(tmp_path: Path, script: str) -> None:
    """No job, an odd id, odd GPUs, and a directory that cannot be written: exit code 0, and no file elsewhere."""
    directory = tmp_path / "jobs"
    run(script, directory)
    run(script, directory, JOB_ID="../7", JOB_GPUS="0")
    run(script, directory, JOB_ID="7", JOB_GPUS="../../x,MIG-1,,*")
    (tmp_path / "file").write_text("")
    run(script, tmp_path / "file", JOB_ID="7", JOB_GPUS="0", JOB_ACCOUNT="physics")

    assert not directory.exists() or list(directory.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path != directory) == ["file"]


@pytest.mark.parametrize("field", ["Comment", "AdminComment"])
def test_the_epilog_writes_a_comment(tmp_path: Path, field: str) -> None:
    """What `gpuledger job` prints, before the job is removed; without the variable, nothing is written."""
    directory, written = tmp_path / "gpu-jobs", tmp_path / "written"
    run("prolog.sh", directory, JOB_ID="211", JOB_GPUS="0")
    for name, line in (("gpuledger", f'cat {directory}/0; echo "$@"'), ("sacctmgr", f'echo "$@" >{written}')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    script = (SCRIPTS / "epilog.sh").read_text().replace("PATH=", f"PATH={tmp_path}:")
    (tmp_path / "epilog.sh").write_text(script)
    env = {"SLURM_JOB_ID": "211", "GPULEDGER_JOB_DIR": str(directory), "GPULEDGER_JOB_COMMENT": field,
           "GPULEDGER": str(tmp_path / "gpuledger")}  # fmt: skip
    done = subprocess.run(["/bin/sh", tmp_path / "epilog.sh"], env=env, check=False, capture_output=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert written.read_text() == f"-i modify job where jobid=211 set {field}=211\njob 211 --short\n"
    assert names(directory).jobs == {}


def test_a_comment_that_fails_drains_no_node(tmp_path: Path) -> None:
    """The job is removed even if gpuledger is not installed."""
    run("prolog.sh", tmp_path, JOB_ID="211", JOB_GPUS="0")
    env = {"SLURM_JOB_ID": "211", "GPULEDGER_JOB_DIR": str(tmp_path), "GPULEDGER_JOB_COMMENT": "Comment",
           "GPULEDGER": "/nonexistent"}  # fmt: skip
    done = subprocess.run([SCRIPTS / "epilog.sh"], env=env, check=False, capture_output=True)

    assert (done.returncode, done.stdout) == (0, b"")
    assert names(tmp_path).jobs == {}


def test_an_allocation_has_its_job_and_account(tmp_path: Path) -> None:
    """From the prolog to /metrics, before the job has started a process."""
    directory = tmp_path / "gpu-jobs"
    run("prolog.sh", directory, JOB_ID="211", JOB_GPUS="0", JOB_ACCOUNT="physics")
    scenario = Scenario(gpus=[Gpu(index=0, uuid="GPU-0")]).write(tmp_path / "scenario")
    flags = ["--tick.interval=100ms", "--environment=slurm", f"--slurm.job-mapping-dir={directory}"]
    with serving("serve", *flags, env=surroundings(scenario)) as exporter:
        body = exporter.metrics("^gpu_job_allocation_info")

    expected = 'gpu_job_allocation_info{gpu="0",uuid="GPU-0",batch_job="211",batch_account="physics"} 1'
    assert expected in body.splitlines()


def blocks(language: str) -> list[str]:
    """The examples of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_files_and_flags_that_exist() -> None:
    """Scripts, the unit, flags of the exporter, and all settings of its reports."""
    for name in re.findall(r"deploy/[\w./-]+", PAGE):
        assert (ROOT / name).exists(), name
    commands = [line.replace("\\\n", " ") for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    reports = [line.split()[2:] for line in commands if line.startswith("gpuledger report")]
    assert len(reports) >= 2
    for words in reports:
        flags: dict[str, list[str]] = {}
        for flag, value in re.findall(r"--([\w.-]+) ('[^']+'|\S+)", " ".join(words)):
            flags.setdefault(flag, []).append(value.strip("'"))
        config.load_as(ReportSettings, flags, {})


def test_scripts_of_the_site_are_kept() -> None:
    """Its prolog and its epilog are linked into the directories that the same page names in slurm.conf."""
    conf = dict(line.split("=", 1) for line in blocks("ini")[0].split())
    for name in ("Prolog", "Epilog"):
        folder = conf[name].removesuffix("*")
        assert f"deploy/slurm/{name.lower()}.sh {folder}50-gpuledger.sh" in PAGE
        assert f"sudo ln -s /opt/site/{name.lower()}.sh {folder}10-site.sh" in PAGE


@pytest.mark.needs("promtool")
def test_prometheus_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    """Checked by promtool; labels of the exporter are kept."""
    path = tmp_path / "prometheus.yml"
    path.write_text(blocks("yaml")[0])
    done = subprocess.run(
        [program("promtool"), "check", "config", str(path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert all(job["honor_labels"] for job in yaml.safe_load(path.read_text())["scrape_configs"])
