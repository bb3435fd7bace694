"""Files of the exporter: the journal and the fingerprints, atomic writes, and one codec of records."""
