"""Pushes metrics to an OpenTelemetry collector."""
