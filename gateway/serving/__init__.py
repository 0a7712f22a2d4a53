"""Build the parts of a gateway from its settings, and run it."""
