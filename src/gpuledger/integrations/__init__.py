"""Other programs that the exporter reads or sends to: one folder each."""
