"""The terminal view: the same picture as the page's, for people at a shell."""
