"""Give other programs the sessions of a gateway, or sessions without a gateway."""
