"""Which session a request belongs to, and the life of sessions."""
