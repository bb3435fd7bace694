"""A Slurm cluster of one node: real munged, slurmctld and slurmd, with fake GPUs, ports and folders of their own."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.components import PATH, program
from tests.deploy.slurmscripts import SCRIPTS
from tests.real.daemons import answers, start, stop, wait_until
from tests.real.prometheus import free_port

FREEZER = Path("/sys/fs/cgroup/freezer")
IS_V1 = FREEZER.is_dir()
CRED_EXPIRE_S = 5
"""How long slurmd remembers a job that was requeued. The default is 120 s."""
CONFIG = """\
ClusterName=gpuledger
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthInfo=socket={folder}/munge/socket,cred_expire={cred_expire}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PrologFlags=Alloc
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
KillWait=1
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""
SCRIPT = """\
#!/bin/sh
export GPULEDGER_JOB_DIR={folder}/jobs SLURM_CONF={folder}/slurm.conf
export GPULEDGER_JOB_COMMENT=Comment GPULEDGER={folder}/gpuledger
exec {script} 2>>{folder}/scripts.log
"""


class Cluster:
    """One that runs."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder, self.node, self.jobs = folder, node, folder / "jobs"
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run([program(words[0]), *words[1:]], env=self.environment, capture_output=True, text=True,
                              timeout=20, check=False)  # fmt: skip
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}{self.log()}"
        return done.stdout

    def submit(self, *words: str) -> str:
        """The number of a new job. It writes its pid and that of one step into files, and then sleeps."""
        flags = ["--parsable", "--output=/dev/null", f"--chdir={self.folder}", "--requeue"]
        return self.run("sbatch", *flags, *words, str(self.folder / "job.sh")).strip()

    def pid(self, job: str, step: str, run: int = 0) -> int:
        """The process of a step of a job, once it runs; `run` is the number of requeues."""
        file = self.folder / "pids" / f"{job}.{step}.{run}"
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 20)
        return int(file.read_text())

    def show(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says of a job; of an array, it shows all tasks, each with its raw id."""
        lines = self.run("scontrol", "show", "job", "-d", "-o", job).splitlines()
        line = next(line for line in lines if line.startswith(f"JobId={job} "))
        return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|$)", line.strip()))

    def log(self) -> str:
        """The end of each log."""
        logs = [self.folder / f"{name}.log" for name in ("slurmctld", "slurmd", "scripts")]
        return "".join(f"\n{path.name}:\n{path.read_text()[-1500:]}" for path in logs if path.exists())


@contextmanager
def cluster(gpus: int) -> Iterator[Cluster]:
    """A cluster without jobs; at the end all its jobs are cancelled."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # for jobs of other users
    node, host = f"gl{os.getpid()}", socket.gethostname().partition(".")[0]
    for name in ("munge", "state", "spool", "dev", "pids", "jobs"):
        (folder / name).mkdir()
    (folder / "pids").chmod(0o777)
    for gpu in range(gpus):
        (folder / "dev" / f"nvidia{gpu}").symlink_to("/dev/null")  # Slurm wants a character device
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    fields = {"folder": folder, "host": host, "node": node, "gpus": gpus, "controller_port": free_port(),
              "node_port": free_port(), "cred_expire": CRED_EXPIRE_S,
              "proctrack": "cgroup" if IS_V1 else "linuxproc"}  # fmt: skip
    (folder / "slurm.conf").write_text(CONFIG.format(**fields))
    (folder / "gres.conf").write_text(f"NodeName={node} Name=gpu File={folder}/dev/nvidia[0-{gpus - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" if IS_V1 else "")
    step = f"echo $$ >{folder}/pids/$SLURM_JOB_ID.$0.${{SLURM_RESTART_COUNT:-0}}; exec sleep 300"
    (folder / "step.sh").write_text(f"#!/bin/sh\n{step.replace('$0', '$1')}\n")
    (folder / "job.sh").write_text(f"#!/bin/sh\nsrun --overlap {folder}/step.sh 0 &\nexec {folder}/step.sh batch\n")
    for name in ("prolog", "epilog"):
        (folder / f"{name}.sh").write_text(SCRIPT.format(folder=folder, script=SCRIPTS / f"{name}.sh"))
    for path in folder.glob("*.sh"):
        path.chmod(0o755)
    slurm = Cluster(folder, node)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={folder}/munge/{name}" for flag, name in files.items()]
        munged = ["munged", "--foreground", "--force", *flags]
        stack.callback(stop, start(munged, folder / "munged.log", answers(folder / "munge" / "socket")))
        for argv, answered in (
            (["slurmctld", "-D", "-i", "-f", slurm.environment["SLURM_CONF"]], lambda: _ping(slurm)),
            (["slurmd", "-D", "-N", node], lambda: "idle" in slurm.run("sinfo", "-h", "-o", "%T")),
        ):
            daemon = start(argv, folder / f"{argv[0]}.log", answered, environment=slurm.environment)
            stack.callback(stop, daemon)
        stack.callback(_remove_cgroups, node)
        stack.callback(_cancel, slurm)
        yield slurm


def _ping(slurm: Cluster) -> bool:
    done = subprocess.run([program("scontrol"), "ping"], env=slurm.environment, capture_output=True, check=False)
    return b"is UP" in done.stdout


def _cancel(slurm: Cluster) -> None:
    slurm.run("scancel", "--full", "--signal=KILL", "--user=root")
    slurm.run("scancel", "--state=PENDING")
    slurm.run("scancel", "--state=RUNNING")
    with suppress(TimeoutError):
        wait_until(lambda: not slurm.run("squeue", "-h", "-t", "all", "-o", "%T").count("ING"), 15)


def _remove_cgroups(node: str) -> None:
    root = FREEZER / f"slurm_{node}"
    for path in sorted(root.glob("**/"), key=lambda path: -len(path.parts)):
        with suppress(OSError):
            path.rmdir()
