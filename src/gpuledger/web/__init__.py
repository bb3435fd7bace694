"""The HTTP server: formats, API, snapshot and page."""
