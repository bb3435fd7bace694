"""Who used what over a time, from the counters that a Prometheus has kept."""
