"""MCP Session Gateway: one durable, isolated session for every MCP client."""

__version__ = "0.1.0"
