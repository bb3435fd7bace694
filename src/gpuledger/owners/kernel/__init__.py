"""What the kernel reports about a process: procfs, cgroups, devices and memory maps."""
