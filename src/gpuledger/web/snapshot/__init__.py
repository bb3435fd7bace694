"""The typed snapshot of a tick, its history and its problems: the source of the API, the page, `top` and `doctor`."""
