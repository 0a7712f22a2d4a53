"""`make bench-peers`: the gateway beside others that serve a stdio server over Streamable HTTP, each started as its
documentation says, and beside the SDK's own server, which relays nothing."""

import sys
from pathlib import Path
from typing import Final

from bench.load import Load
from bench.subjects import ROOT, Subject, echo_server
from bench.tables import Place, Row
from tests.support.free_ports import free_port
from tests.tools.obtain import node, npm_packages, python_with

CONTEXTFORGE: Final = {"mcp-contextforge-gateway": ">=1"}
FASTMCP: Final = {"fastmcp": ">=3"}
HANGAR: Final = {"mcp-hangar": ">=2"}
MCP_PROXY: Final = {"mcp-proxy": ">=0.11"}
SUPERGATEWAY: Final = {"supergateway": "latest"}
_SUBJECTS: Final = ROOT / "bench/subjects"


def peers(place: Place) -> list[Row]:
    """Of these, supergateway (stateful) and the gateway isolate sessions; the others share one process of a server."""
    echo = str(echo_server())

    def at(*command: str | Path, port: int) -> Subject:
        return Subject(command=tuple(map(str, command)), url=f"http://127.0.0.1:{port}/mcp")

    ports = [free_port() for _ in range(5)]
    super_script = npm_packages(SUPERGATEWAY) / "node_modules/supergateway/dist/index.js"
    proxy = python_with(MCP_PROXY).parent / "mcp-proxy"
    stateful = ("--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none")
    return [
        Row(name="gateway, redis", subject=place.gateway()),
        Row(name="gateway, modern client", subject=place.gateway(), load=Load(era="modern")),
        Row(
            name="supergateway, stateful",
            subject=at(node(), super_script, "--stdio", echo, *stateful, "--port", str(ports[0]), port=ports[0]),
        ),
        Row(
            name="mcp-proxy",
            subject=at(proxy, "--port", str(ports[1]), "--log-level", "ERROR", "--", echo, port=ports[1]),
        ),
        Row(
            name="FastMCP proxy",
            subject=at(python_with(FASTMCP), _SUBJECTS / "fastmcp_proxy.py", str(ports[2]), echo, port=ports[2]),
        ),
        Row(
            name="SDK's own server, event streams",
            subject=at(sys.executable, _SUBJECTS / "sdk.py", str(ports[3]), "sse", port=ports[3]),
        ),
        Row(
            name="SDK's own server, JSON, modern",
            subject=at(sys.executable, _SUBJECTS / "sdk.py", str(ports[4]), "json", port=ports[4]),
            load=Load(era="modern", stateless=True),
        ),
    ]
