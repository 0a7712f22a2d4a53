"""The sessions of the gateway in programs of others."""
