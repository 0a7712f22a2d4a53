"""What the wires need to know of a method: two columns of the table of methods.

They stand here because transports import nothing of the gateway, and follow the SDK's tables of the protocol, so that a
method of a later revision comes with the SDK. `gateway.protocol.methods` has all columns. A test holds that both agree.
"""

from collections.abc import Mapping
from typing import Final

from mcp.shared.inbound import NAME_BEARING_METHODS
from mcp_types.methods import CLIENT_REQUESTS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

__all__ = ["MODERN_REQUESTS", "NAME_SOURCES", "SESSIONLESS"]

NAME_SOURCES: Final[Mapping[str, str]] = NAME_BEARING_METHODS
"""The key of the params whose value a request repeats in the header `Mcp-Name` (MCP 2026-07-28, Transports)."""

MODERN_REQUESTS: Final = frozenset(method for method, version in CLIENT_REQUESTS if version in MODERN_PROTOCOL_VERSIONS)

SESSIONLESS: Final = frozenset(
    method for method in MODERN_REQUESTS if method == "server/discover" or method.endswith("/list")
)
"""Modern requests about the server alone: they open no session. A client that has a session is served in it."""
