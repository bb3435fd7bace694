"""A Slurm cluster of one node: real munged, MariaDB and daemons of Slurm, with fake GPUs, own ports and own folders."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.components import PATH, program
from tests.deploy.slurmscripts import SCRIPTS
from tests.real.daemons import answers, listens, run, start, stop
from tests.waiting import free_port, wait_until

FREEZER = Path("/sys/fs/cgroup/freezer")
IS_V1 = FREEZER.is_dir()
CRED_EXPIRE_S = 5
"""How long slurmd remembers a job that was requeued. The default is 120 s."""
UP = ("idle", "mixed", "allocated")
"""States of a node that works."""
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
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PrologFlags=Alloc
Prolog={folder}/prolog.d/*
Epilog={folder}/epilog.d/*
KillWait=1
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""
ACCOUNTING_CONFIG = """\
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""
SCRIPT = """\
#!/bin/sh
export GPULEDGER_JOB_DIR={folder}/jobs SLURM_CONF={folder}/slurm.conf
export GPULEDGER_JOB_COMMENT=Comment GPULEDGER={folder}/gpuledger
exec {script} 2>>{folder}/scripts.log
"""


class Cluster:
    """One that runs."""

    def __init__(self, folder: Path, node: str, accounting_port: int) -> None:
        self.folder, self.node, self.jobs = folder, node, folder / "jobs"
        self._accounting_port = accounting_port
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, name: str) -> None:
        """Start a daemon of Slurm, and wait until it answers."""
        flags, answered = {
            "slurmdbd": (["-D"], lambda: listens(self._accounting_port)),
            "slurmctld": (["-D", "-i", "-f", self.environment["SLURM_CONF"]], lambda: _ping(self)),
            "slurmd": (["-D", "-N", self.node], lambda: self.run("sinfo", "-h", "-o", "%T").strip() in UP),
        }[name]
        log = self.folder / f"{name}.log"
        self._daemons[name] = start([name, *flags], log, answered, environment=self.environment)

    def stop(self, name: str) -> None:
        """Stop a daemon; jobs go on."""
        stop(self._daemons.pop(name))

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

    def accounted(self, job: str) -> dict[str, str]:
        """What `sacct` says of a job: account, user, times, resources and comment."""
        fields = "JobIDRaw,Account,User,State,Start,End,ElapsedRaw,AllocTRES,Comment"
        rows = self.run("sacct", "-X", "-P", "-n", "--duplicates", "-j", job, "-o", fields).splitlines()
        return dict(zip(fields.split(","), rows[-1].split("|"), strict=True)) if rows else {}

    def log(self) -> str:
        """The end of each log."""
        logs = [self.folder / f"{name}.log" for name in ("slurmdbd", "slurmctld", "slurmd", "scripts")]
        return "".join(f"\n{path.name}:\n{path.read_text()[-1500:]}" for path in logs if path.exists())


@contextmanager
def cluster(gpus: int, accounts: Sequence[str]) -> Iterator[Cluster]:
    """A cluster without jobs, with accounts for the users root and nobody; at the end all its jobs are cancelled."""
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
    database_port, accounting_port, password = free_port(), free_port(), secrets.token_hex()
    fields = {"folder": folder, "host": host, "node": node, "gpus": gpus, "controller_port": free_port(),
              "node_port": free_port(), "cred_expire": CRED_EXPIRE_S,
              "accounting_port": accounting_port, "database_port": database_port, "password": password,
              "proctrack": "cgroup" if IS_V1 else "linuxproc"}  # fmt: skip
    (folder / "slurm.conf").write_text(CONFIG.format(**fields))
    (folder / "slurmdbd.conf").write_text(ACCOUNTING_CONFIG.format(**fields))
    (folder / "slurmdbd.conf").chmod(0o600)  # slurmdbd refuses any other mode
    (folder / "gres.conf").write_text(f"NodeName={node} Name=gpu File={folder}/dev/nvidia[0-{gpus - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" if IS_V1 else "")
    step = f"echo $$ >{folder}/pids/$SLURM_JOB_ID.$0.${{SLURM_RESTART_COUNT:-0}}; exec sleep 300"
    (folder / "step.sh").write_text(f"#!/bin/sh\n{step.replace('$0', '$1')}\n")
    (folder / "job.sh").write_text(f"#!/bin/sh\nsrun --overlap {folder}/step.sh 0 &\nexec {folder}/step.sh batch\n")
    for name in ("prolog", "epilog"):
        directory = folder / f"{name}.d"
        directory.mkdir()
        (directory / "50-gpuledger.sh").write_text(SCRIPT.format(folder=folder, script=SCRIPTS / f"{name}.sh"))
        (folder / f"site-{name}.sh").write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >>{folder}/site-{name}\n')
        (directory / "10-site.sh").symlink_to(folder / f"site-{name}.sh")
    for path in (*folder.glob("*.sh"), *folder.glob("*.d/50-*.sh")):
        path.chmod(0o755)
    slurm = Cluster(folder, node, accounting_port)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={folder}/munge/{name}" for flag, name in files.items()]
        munged = ["munged", "--foreground", "--force", *flags]
        stack.callback(stop, start(munged, folder / "munged.log", answers(folder / "munge" / "socket")))
        stack.callback(stop, _start_database(folder, database_port, password))
        for name in ("slurmdbd", "slurmctld", "slurmd"):
            slurm.start(name)
            stack.callback(slurm.stop, name)
            if name == "slurmdbd":
                slurm.run("sacctmgr", "-i", "add", "cluster", "gpuledger")
                slurm.run("sacctmgr", "-i", "add", "account", ",".join(accounts))
                slurm.run("sacctmgr", "-i", "add", "user", "root,nobody", f"account={','.join(accounts)}")
        stack.callback(_remove_cgroups, node)
        stack.callback(_cancel, slurm)
        yield slurm


def _start_database(folder: Path, port: int, password: str) -> subprocess.Popen[bytes]:
    """MariaDB with an empty database for slurmdbd, which reaches it only by TCP."""
    data = ["--no-defaults", f"--datadir={folder}/database", "--user=root"]
    run("mariadb-install-db", *data, "--auth-root-authentication-method=normal", "--skip-test-db")
    (folder / "init.sql").write_text(
        f"CREATE DATABASE slurm;\nGRANT ALL ON slurm.* TO slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
    )
    flags = [f"--socket={folder}/database.socket", f"--pid-file={folder}/database.pid", f"--port={port}",
             f"--init-file={folder}/init.sql", "--bind-address=127.0.0.1", "--skip-name-resolve"]  # fmt: skip
    return start(["mariadbd", *data, *flags], folder / "mariadbd.log", lambda: listens(port))


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
