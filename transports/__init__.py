"""Wires: how messages come in and go out. Knows nothing of policy, stores or the gateway."""
