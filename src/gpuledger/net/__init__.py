"""Network clients: addresses, HTTP, TLS, deadlines and background polling."""
