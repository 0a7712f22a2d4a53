"""Connect to MCP servers: child processes, URLs, and objects in this process. `upstream_port.py` defines the
interface."""
