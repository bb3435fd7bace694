"""GPU use by process and container, in integers that balance. Pure: no clock, no files, no logging."""
