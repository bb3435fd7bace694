"""Grafana dashboards as code: `python -m tools.dashboards` writes them to mixin/dashboards."""
