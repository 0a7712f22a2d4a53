"""Describe MCP as data: methods, handshakes, capabilities, results. Pure: no I/O."""
