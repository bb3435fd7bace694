"""Where readings come from: the driver, or a recording of one."""
