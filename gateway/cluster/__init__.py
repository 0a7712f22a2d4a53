"""Decide which replica owns each session, and forward requests to the owners."""
