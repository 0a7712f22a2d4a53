"""Carry messages between clients, servers and replicas. Knows nothing of policy, stores or the gateway."""
