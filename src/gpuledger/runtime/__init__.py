"""Threads and time: workers, pollers, deadlines, look-ups that may block, and logs of state changes."""
