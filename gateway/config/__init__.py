"""The operator's settings: their values, their sources, and the keys."""
