"""gpuledger attributes the use of NVIDIA GPUs to processes, containers and pods."""

__version__ = "0.1.0"
