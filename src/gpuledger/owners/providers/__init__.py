"""Name providers: one module for each source of names."""
