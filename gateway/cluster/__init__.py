"""Decides which replica owns each session, and forwards requests to the owners."""
