"""Authenticate requests, and derive the context of a session from credential claims."""
