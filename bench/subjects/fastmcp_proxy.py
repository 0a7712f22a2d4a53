"""FastMCP's proxy before the echo server, as its documentation has it: `fastmcp_proxy.py PORT ECHO`."""

import sys

from fastmcp.server import create_proxy  # type: ignore[import-not-found]  # in an environment of its own

if __name__ == "__main__":
    proxy = create_proxy({"mcpServers": {"echo": {"command": sys.argv[2], "args": []}}})
    proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="error")
