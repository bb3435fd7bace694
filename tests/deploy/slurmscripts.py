"""The prolog and epilog of deploy/slurm, run as slurmd runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"


def run(script: str, directory: Path, **variables: str) -> None:
    """A script as slurmd runs it: without PATH. It must succeed, because Slurm drains a node otherwise."""
    env = {f"SLURM_{name}": value for name, value in variables.items()}
    command = [str(SCRIPTS / script)]
    done = subprocess.run(command, env={**env, "GPULEDGER_JOB_DIR": str(directory)}, check=False, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")
