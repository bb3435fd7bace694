"""Above one node: what a Prometheus knows of all GPUs, made into numbers for autoscalers."""
