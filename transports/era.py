"""Define the two eras of MCP: the protocol versions of each, and the facts about methods that transports need."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that `initialize` negotiates, oldest first."""

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Versions without a handshake: each request names its version, in `_meta`."""

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `_meta` that names the version."""


class Era(StrEnum):
    """A way to speak MCP. Legacy (up to 2025-11-25): a handshake tells version and capabilities. Modern (2026-07-28):
    each request tells them."""

    LEGACY = "legacy"
    MODERN = "modern"


# For code that runs for each message: to read a member of an enum takes ten times as long as to read a name.
LEGACY: Final = Era.LEGACY
MODERN: Final = Era.MODERN

# Columns of the table of methods, which stand here because transports import nothing of the gateway.
# `gateway.protocol.methods` has all columns; a test holds that both agree, with each other and with the SDK's tables.

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
"""For each method, the parameter whose value the request repeats in the header `Mcp-Name` (MCP 2026-07-28, Transports;
the extension `io.modelcontextprotocol/tasks`, Routing Headers)."""

SESSIONLESS: Final = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "skills/list"}
)
"""Methods for which a modern request does not open a session, because they concern the server alone. A session that the
request names is used."""

REMOVED: Final = frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that legacy clients send and that MCP 2026-07-28 has removed."""

OF_ONE_RESOURCE: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})
"""Methods about one resource. For a subscription to many resources, the gateway sends one such request for each."""
