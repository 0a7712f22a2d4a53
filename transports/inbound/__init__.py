"""The wires on which clients reach us."""
