"""Attacks on a running exporter: by tenants of the GPUs, by clients, and by the servers that it reads."""
