"""Define, read and check the operator's settings, and read the keys."""
