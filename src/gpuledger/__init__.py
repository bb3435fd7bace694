"""gpuledger says who uses your NVIDIA GPUs."""

__version__ = "0.1.0"
