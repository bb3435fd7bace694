"""Clients of servers: addresses, HTTP, TLS, gRPC, and limits and failures of answers."""
