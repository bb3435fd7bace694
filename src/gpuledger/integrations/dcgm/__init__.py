"""Process statistics of DCGM, shown beside gpuledger's own numbers and never used by the books."""
