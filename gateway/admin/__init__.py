"""For those who operate the gateway: what is there and what happens, on all replicas; ending, draining; metrics."""
