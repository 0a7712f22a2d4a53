"""Resolves requests to sessions, and creates, keeps and ends sessions."""
