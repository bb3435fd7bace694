"""TEMPORARY: fixes found by the text of a problem, for sources that do not fill `fix` and `kind` yet.

Delete this module when they do: `completed(p)`, `completed_provider(p)` and `split(p)` become `p`.
"""

from __future__ import annotations

from dataclasses import replace

from gpuledger.problem import Problem

HANG = "hang"
"""The kind of a driver call that does not return."""
HANG_FIX = "look for the reason with `sudo dmesg | grep -i -e nvrm -e xid`; if the call never returns, reboot"
DRIVER_FIXES = {
    "NVML Shared Library Not Found": "install the NVIDIA driver; in a container give it the GPUs: `docker run "
    "--gpus all`, on Kubernetes `runtimeClassName: nvidia`",
    "Driver Not Loaded": "`sudo modprobe nvidia`; if that fails, `sudo dmesg | grep -i nvrm` says why",
    "RM has detected an NVML/RM version mismatch.": "the driver was updated while the old one runs: reboot, or end all "
    "that use GPUs and `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`",
    "Insufficient Permissions": "let this user open the devices: `ls -l /dev/nvidia*`, then "
    "`sudo chmod a+rw /dev/nvidiactl /dev/nvidia[0-9]*`",
    "GPU is lost": "`sudo nvidia-smi --gpu-reset -i {gpu}`, or reboot; `sudo dmesg | grep -i xid` says why",
    "GPU requires restart": "`sudo nvidia-smi --gpu-reset -i {gpu}`",
    **dict.fromkeys(
        ("GPU not found", "No GPUs were found", "NVML Error with code 28"),
        "`nvidia-smi -L` lists the GPUs there are; reboot if one is missing",
    ),
}
START = {
    "docker": "`sudo systemctl start docker`",
    "podman": "`sudo systemctl start podman.socket`",
    "cri": "`sudo systemctl start containerd` (or crio)",
    "podresources": "`sudo systemctl start kubelet`",
}
MAY_ASK = {
    "docker": "`sudo usermod -aG docker USER` for the user who runs gpuledger",
    "podman": "run as the user whose socket it is, or as root",
    "cri": "run as root: the socket is root's",
    "podresources": "run as root: the socket is root's",
}
API_FIX = (
    "`kubectl auth can-i watch pods --all-namespaces --as=system:serviceaccount:NAMESPACE:ACCOUNT` must say yes: give "
    "it a ClusterRole with get, list and watch of pods"
)


def completed(problem: Problem, gpu: int | str = "ID") -> Problem:
    """A driver problem with its fix and kind."""
    if problem.fix:
        return problem
    if "does not return" in problem.what:
        return replace(problem, fix=HANG_FIX, kind=HANG)
    for words, fix in DRIVER_FIXES.items():
        if words in problem.what:
            return replace(problem, fix=fix.format(gpu=gpu))
    return problem


def completed_provider(problem: Problem, provider: str) -> Problem:
    """A provider's problem with its fix."""
    if problem.fix:
        return problem
    problem = split(problem)
    if "permission denied" in problem.what and provider in MAY_ASK:
        return replace(problem, fix=MAY_ASK[provider])
    if any(words in problem.what for words in ("no such", "refused", "nobody listens")) and provider in START:
        return replace(problem, fix=f"{START[provider]}; {problem.fix}")
    if provider == "kubernetes" and any(code in problem.what for code in ("(401", "(403")):
        return replace(problem, fix=API_FIX)
    return problem


def split(problem: Problem) -> Problem:
    """A problem whose text contains its fix after the last semicolon."""
    what, _, fix = problem.what.rpartition("; ")
    return replace(problem, what=what, fix=fix) if what and not problem.fix else problem
