"""The idle ledger: how long allocated devices were busy and idle. Pure."""
