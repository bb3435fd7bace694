"""GPU use through kubectl, with the rights of its user."""
