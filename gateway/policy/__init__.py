"""What a session sees, may call, and how often."""
