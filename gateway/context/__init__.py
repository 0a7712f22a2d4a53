"""What a server is told and given of its session."""
