"""The configured servers: what they speak, list and are started with."""
