"""A dcgm-exporter that runs beside us: its metrics, with the pod that holds the device on every series."""
