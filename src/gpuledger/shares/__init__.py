"""The shares of processes that use one GPU at the same time: the estimate, what it learns, and its error. Pure."""
