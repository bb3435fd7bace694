"""GPU use by process and container. Pure: no clock, no files, no logging."""
