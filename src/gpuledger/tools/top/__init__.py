"""The terminal view: the same snapshot as the page, for users at a shell."""
