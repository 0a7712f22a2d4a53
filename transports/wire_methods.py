"""What the wires need to know of methods: three columns of the table of methods, and the levels of log messages.

They stand here because transports import nothing of the gateway. `gateway.protocol.methods` has all columns; a test
holds that both agree, with each other and with the SDK's tables of the protocol (which have no extensions).
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["LOG_LEVELS", "NAME_SOURCES", "REMOVED", "SESSIONLESS"]

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Levels of log messages, the lowest first (RFC 5424 §6.2.1; MCP, Logging)."""

NAME_SOURCES: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The key of the params whose value a request repeats in the header `Mcp-Name` (MCP 2026-07-28, Transports; the
extension `io.modelcontextprotocol/tasks`, Routing Headers)."""

SESSIONLESS: Final = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
"""Modern requests about the server alone: they open no session. A client that has a session is served in it."""

REMOVED: Final = frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Requests of clients that MCP 2026-07-28 has no more."""
