"""Decides which replica owns a session, and forwards requests to the owner."""
