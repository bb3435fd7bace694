"""Talking to other programs: addresses, HTTP, TLS, deadlines and background polling."""
