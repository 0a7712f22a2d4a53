"""What the protocol says, as tables. Pure."""
