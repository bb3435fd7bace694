"""Writing a tick out: text, OpenMetrics, and the server that hands them to whoever asks."""
