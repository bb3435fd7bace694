"""Token counts of language-model servers, joined with the energy of their owners."""
