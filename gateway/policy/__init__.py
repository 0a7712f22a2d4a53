"""Decide what a session sees, what it may call, and how often."""
