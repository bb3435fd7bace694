"""Whose process it is."""
