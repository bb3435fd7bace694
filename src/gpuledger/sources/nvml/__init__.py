"""The NVIDIA driver through NVML.

- `call`: one call, its errors sorted into unsupported, passing, lost and gone
- `device`, `slow`, `processes`, `gpm`: what is read of one GPU
- `events`: XID errors as they happen
- `reader`: one GPU with its MIG instances, in a thread of its own
- `source`: all GPUs, and the driver coming and going
"""
