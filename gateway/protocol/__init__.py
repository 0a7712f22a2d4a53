"""Describe MCP as data: its methods, handshakes, capabilities and results. Pure: no I/O."""
