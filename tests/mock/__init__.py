"""Tests with NVIDIA's mock of NVML; see docs/models.md."""
