"""Show operators all replicas, and let them end sessions and drain replicas: console, REST interface and metrics."""
