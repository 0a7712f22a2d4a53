"""Find, read and edit the configuration files of other MCP hosts."""
