"""Who asks, and what their credential grants."""
