"""What one batch job used of its GPUs: from an exporter, from a journal or from a Prometheus."""
