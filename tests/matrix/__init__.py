"""What passes through the gateway, in every cell of the era matrix."""
