"""Every method of MCP that a client sends: one table, with what its params name and which policy decides on it.

Pure. Schemas of MCP 2024-11-05 to 2026-07-28.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

__all__ = ["METHODS", "Kind", "Method"]

Kind = Literal["tools", "prompts", "resources", "completions", "none"]
"""Whose policy decides: of tools, prompts or resources; of completions that of what they complete; of others none."""

LEGACY, MODERN, BOTH = frozenset({"legacy"}), frozenset({"modern"}), frozenset({"legacy", "modern"})


class Method(msgspec.Struct, frozen=True):
    """`named` is the key of the params that says what is meant, `listed` the key of a list in the result."""

    name: str
    eras: frozenset[str]
    kind: Kind = "none"
    named: str = ""
    listed: str = ""
    is_request: bool = True


_ROWS: Final = (
    Method("initialize", LEGACY),
    Method("ping", LEGACY),
    Method("server/discover", MODERN),
    Method("logging/setLevel", LEGACY),
    Method("tools/list", BOTH, "tools", listed="tools"),
    Method("tools/call", BOTH, "tools", named="name"),
    Method("prompts/list", BOTH, "prompts", listed="prompts"),
    Method("prompts/get", BOTH, "prompts", named="name"),
    Method("resources/list", BOTH, "resources", listed="resources"),
    Method("resources/templates/list", BOTH, "resources", listed="resourceTemplates"),
    Method("resources/read", BOTH, "resources", named="uri"),
    Method("resources/subscribe", LEGACY, "resources", named="uri"),
    Method("resources/unsubscribe", LEGACY, "resources", named="uri"),
    Method("completion/complete", BOTH, "completions", named="ref"),
    Method("subscriptions/listen", MODERN, "resources", named="notifications"),
    # Of calls that policy has let pass: whoever has the id of a task has made it.
    Method("tasks/get", LEGACY),
    Method("tasks/result", LEGACY),
    Method("tasks/list", LEGACY),
    Method("tasks/cancel", LEGACY),
    Method("notifications/initialized", LEGACY, is_request=False),
    Method("notifications/cancelled", BOTH, is_request=False),
    Method("notifications/progress", LEGACY, is_request=False),
    Method("notifications/roots/list_changed", LEGACY, is_request=False),
    Method("notifications/tasks/status", LEGACY, is_request=False),
)

METHODS: Final[Mapping[str, Method]] = {row.name: row for row in _ROWS}
