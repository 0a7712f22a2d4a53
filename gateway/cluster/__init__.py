"""Which replica owns a session, and how requests reach the owner."""
