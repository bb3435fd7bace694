"""What to do about what is wrong: the same words for the doctor and the page. Commands stand in backticks."""

from __future__ import annotations

from gpuledger.model import MemoryAccount, ProviderHealth

GIB = 1 << 30
HANGS = "does not return"
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
        (
            "GPU not found",
            "No GPUs were found",
            "NVML Error with code 28",
        ),  # the binding has no words of its own for it
        "`nvidia-smi -L` lists the GPUs there are; reboot if one is missing",
    ),
}
"""By NVML's own words, as they stand in a reason."""
NO_GPU_FIX = "`nvidia-smi -L` lists what the driver sees; in a container give it the GPUs: `docker run --gpus all`"
NAMESPACE_FIX = "`docker run --pid=host` or `podman run --pid=host`; on Kubernetes `hostPID: true`"
MEMORY_FIX = (
    "`sudo fuser -v /dev/nvidia*` names who has it open: a process of a VM, of another container, or a dead one"
)
OWNER_FIX = "`gpuledger explain PID` shows how far it gets, and why"
REPORT_FIX = "please report it, with `gpuledger doctor --bundle FILE`"

CALLED = {
    "docker": "docker",
    "podman": "podman",
    "cri": "container runtime",
    "podresources": "kubelet",
    "kubernetes": "api server",
    "hpcdir": "job directory",
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


def fix_of(reason: str, gpu: int | str = "ID") -> str:
    """What to do about a reason that the driver gave."""
    if HANGS in reason:
        return HANG_FIX
    for words, fix in DRIVER_FIXES.items():
        if words in reason:
            return fix.format(gpu=gpu)
    return "see what `nvidia-smi` says; `sudo dmesg | grep -i -e nvrm -e xid` may say why"


def of_memory(account: MemoryAccount) -> str:
    """What is wrong with a device on which memory is unknown."""
    text = f"{(account.unknown_bytes or 0) / GIB:.1f} GiB are used by nobody whom the driver lists"
    return text + (f"; inferred to {account.candidates} who may hold them" if account.inferred_bytes else "")


def kind_of(health: ProviderHealth) -> str:
    """What it is, whichever of several it is: docker-2 is a second Docker."""
    return health.name.partition("-")[0]


def called(health: ProviderHealth) -> str:
    """A provider as people call it."""
    kind = kind_of(health)
    return CALLED.get(kind, kind) + health.name.removeprefix(kind)


def of_provider(health: ProviderHealth) -> tuple[str, str]:
    """What is wrong with one that is down, and what to do: a command where there is one, else what it advises."""
    if health.problem is not None and health.problem.fix:
        return health.problem.what, health.problem.fix
    kind = kind_of(health)
    text, fix = explained(health.reason)
    if "permission denied" in text and kind in MAY_ASK:
        return text, MAY_ASK[kind]
    if any(words in text for words in ("no such", "refused", "nobody listens")) and kind in START:
        return text, f"{START[kind]}; {fix}"
    if kind == "kubernetes" and any(code in text for code in ("(401", "(403")):
        return text, API_FIX
    return text, fix


def explained(message: object) -> tuple[str, str]:
    """One of our own messages, which name what is wrong and, after a semicolon, what would be right."""
    text, _, fix = str(message).rpartition("; ")
    return (text, fix) if text else (fix, "`gpuledger once --log.level debug` says more")
