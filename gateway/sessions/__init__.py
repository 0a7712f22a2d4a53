"""From carriers to a session, and its life."""
