"""Represent the configured servers (upstreams): find which era of MCP each speaks, read its lists, and open links to
it."""
