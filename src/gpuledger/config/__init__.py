"""Settings: their declarations, parsers, and how they are loaded."""
