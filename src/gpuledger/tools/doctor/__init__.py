"""Checks of this host for `gpuledger doctor`, and the archive for bug reports."""
