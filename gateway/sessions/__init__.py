"""Resolve requests to sessions, and create, keep and end sessions."""
