"""Rewrites PromQL from the names of one version of dcgm-exporter to those of another."""
