"""The NVIDIA driver through NVML.

- `call`: one driver call; kind of problem and fix for each NVML error code
- `values`, `slow`, `processes`, `gpm`: the values of one GPU
- `events`: XID errors
- `reader`: one GPU with its MIG instances, read in a thread of its own
- `source`: all GPUs, and the state of the driver
"""
