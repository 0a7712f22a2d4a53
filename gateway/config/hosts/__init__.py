"""The files of other MCP hosts: which there are, what they mean, and how one of their entries is written."""
