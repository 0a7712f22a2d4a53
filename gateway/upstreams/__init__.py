"""Address the configured servers: find their eras, read their lists, and open links to them."""
