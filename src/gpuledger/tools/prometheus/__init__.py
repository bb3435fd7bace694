"""A client of the Prometheus HTTP API: queries, answers, and the PromQL of metrics in the catalog."""
