"""Recordings of ticks: written, read and replayed."""
