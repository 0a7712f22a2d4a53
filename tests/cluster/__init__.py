"""Several gateways on one Redis."""
