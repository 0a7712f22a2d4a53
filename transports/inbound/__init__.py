"""The wires on which clients reach the gateway."""
