"""Authenticates requests, and derives the context of a session from credential claims."""
