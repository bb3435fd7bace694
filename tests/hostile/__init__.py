"""Attacks by tenants, clients and senders against a running exporter."""
