"""The dcgm-exporter beside us."""
