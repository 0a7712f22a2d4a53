"""A corpus of hostile MCP servers: what each of them tries, and what the gateway's sandbox leaves of it."""
