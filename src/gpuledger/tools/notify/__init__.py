"""Messages to the owners of GPUs that are not used, or used far less than asked for."""
