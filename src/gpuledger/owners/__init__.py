"""The owners of processes and devices: containers, pods, systemd units and batch jobs."""
