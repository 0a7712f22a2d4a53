"""Clients we did not write, against a running gateway."""
