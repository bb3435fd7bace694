"""Idle allocations, ranked by cost, and workloads that would fit on one GPU."""
