"""What people look at: the page and the terminal show the same picture of a tick."""
