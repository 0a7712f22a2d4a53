"""List the methods of MCP and its extensions: one row for each, with all that the gateway has to know of it.

Pure. Schemas of MCP 2024-11-05 to 2026-07-28. A request that works as others do, or a change of a list, needs a row and
nothing else. Another notification also needs its rule in `gateway.calls.server_messages`. Only a method with behaviour
of its own is named elsewhere: the unit tests list those, and compare the table with the SDK's.
The SDK itself is not imported: the command line reads this table, and the SDK takes a second to load.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gateway.protocol.extensions import SKILLS

Kind = Literal["tools", "prompts", "resources", "completions", "none"]
"""The policy that decides: that of tools, prompts or resources; for completions, that of the completed item."""

LEGACY, MODERN, BOTH = frozenset({"legacy"}), frozenset({"modern"}), frozenset({"legacy", "modern"})


class Method(msgspec.Struct, frozen=True):
    """One method. The defaults are those of a client's request that only the session's server understands.

    `eras`: the eras that have the method.
    `kind`: the policy that decides on it.
    `named`: the key of the params that names the target of the request; `uri` means a resource's URI.
    `listed`: the key of the list in the result; `item_key`: the key by which an item of the list is known. With `named`
    too, the list is of what the request names, and none of the server's lists.
    `extension`: the extension that has the method. A server that does not declare it must not get the method.
    `setting`: the setting of the extension that must be true, too.
    `flag`: the key of a `subscriptions/listen` filter that asks for this notification.
    `sender`: who sends it.
    `is_cacheable`: the modern result may be cached, so it must contain nothing of the session.
    `is_repeatable`: making the request twice does no more than making it once; of tools, each tool says so itself.
    `may_ask`: a modern server may answer it with questions to the client (`input_required`).
    `is_recorded`: its effect is kept in the session's record, for servers that are started anew.
    `for_all`: every server of an endpoint gets it, instead of the one that it names.
    `is_stream`: its response stays open, so its duration is no measure.
    `is_counted`: metrics have a label of its own for it.
    """

    name: str
    eras: frozenset[str]
    kind: Kind = "none"
    named: str = ""
    listed: str = ""
    item_key: str = "name"
    extension: str = ""
    setting: str = ""
    flag: str = ""
    sender: Literal["client", "server", "both"] = "client"
    is_request: bool = True
    is_cacheable: bool = False
    is_repeatable: bool = False
    may_ask: bool = False
    is_recorded: bool = False
    for_all: bool = False
    is_stream: bool = False
    is_counted: bool = True

    def is_offered(self, capabilities: Mapping[str, Any]) -> bool:
        """Return whether a server that declares these capabilities may get the method, as far as extensions decide."""
        if not self.extension:
            return True
        extensions = capabilities.get("extensions")
        settings = extensions.get(self.extension) if isinstance(extensions, dict) else None
        return isinstance(settings, dict) and (not self.setting or settings.get(self.setting) is True)


def _list(name: str, kind: Kind, listed: str, item_key: str = "name", extension: str = "") -> Method:
    return Method(
        name,
        BOTH,
        kind,
        listed=listed,
        item_key=item_key,
        extension=extension,
        is_cacheable=True,
        is_repeatable=True,
    )


def _of_skills(name: str, listed: str, setting: str = "") -> Method:
    """Return a method about one skill or directory, which has the rules of resources (the Skills extension)."""
    return Method(
        name,
        BOTH,
        "resources",
        "uri",
        listed,
        "uri",
        extension=SKILLS,
        setting=setting,
        is_cacheable=True,
        is_repeatable=True,
    )


def _notification(name: str, eras: frozenset[str], sender: Literal["client", "server", "both"] = "client") -> Method:
    return Method(name, eras, sender=sender, is_request=False, is_counted=False)


def _change(name: str, kind: Kind, flag: str = "", named: str = "") -> Method:
    return Method(name, BOTH, kind, named, flag=flag, sender="server", is_request=False, is_counted=False)


def _task(name: str, eras: frozenset[str]) -> Method:
    """Return a method about one task (the extension `io.modelcontextprotocol/tasks`, Routing Headers; experimental in
    MCP 2025-11-25). It needs no policy: the client has the id from a call that was allowed."""
    return Method(name, eras, named="taskId", is_repeatable=True, is_counted=False)


ROWS: Final = (
    Method("initialize", LEGACY),
    Method("ping", LEGACY, sender="both", is_repeatable=True),
    Method("server/discover", MODERN, is_cacheable=True, is_repeatable=True),
    Method("logging/setLevel", LEGACY, is_repeatable=True, is_recorded=True, for_all=True),
    _list("tools/list", "tools", "tools"),
    Method("tools/call", BOTH, "tools", named="name", may_ask=True),
    _list("prompts/list", "prompts", "prompts"),
    Method("prompts/get", BOTH, "prompts", named="name", is_repeatable=True, may_ask=True),
    _list("resources/list", "resources", "resources", "uri"),
    _list("resources/templates/list", "resources", "resourceTemplates", "uriTemplate"),
    Method("resources/read", BOTH, "resources", "uri", is_cacheable=True, is_repeatable=True, may_ask=True),
    Method("resources/subscribe", LEGACY, "resources", named="uri", is_repeatable=True, is_recorded=True),
    Method("resources/unsubscribe", LEGACY, "resources", named="uri", is_repeatable=True, is_recorded=True),
    _list("skills/list", "resources", "skills", "uri", SKILLS),
    _of_skills("skills/get", "skill"),
    _of_skills("resources/directory/read", "resources", "directoryRead"),
    Method("completion/complete", BOTH, "completions", named="ref", is_repeatable=True),
    Method("subscriptions/listen", MODERN, "resources", named="notifications", is_repeatable=True, is_stream=True),
    _task("tasks/get", BOTH),
    _task("tasks/update", MODERN),
    _task("tasks/cancel", BOTH),
    Method("tasks/result", LEGACY, named="taskId", is_counted=False),
    Method("tasks/list", LEGACY, is_counted=False),
    _notification("notifications/initialized", LEGACY),
    _notification("notifications/cancelled", BOTH, "both"),
    _notification("notifications/progress", BOTH, "both"),
    _notification("notifications/roots/list_changed", LEGACY),
    _notification("notifications/tasks/status", LEGACY, "both"),
    Method("sampling/createMessage", LEGACY, sender="server"),
    Method("elicitation/create", LEGACY, sender="server"),
    Method("roots/list", LEGACY, sender="server"),
    _change("notifications/tools/list_changed", "tools", "toolsListChanged"),
    _change("notifications/prompts/list_changed", "prompts", "promptsListChanged"),
    _change("notifications/resources/list_changed", "resources", "resourcesListChanged"),
    _change("notifications/resources/updated", "resources", named="uri"),
    _notification("notifications/message", BOTH, "server"),
    _notification("notifications/elicitation/complete", LEGACY, "server"),
    _notification("notifications/subscriptions/acknowledged", MODERN, "server"),
)

METHODS: Final[Mapping[str, Method]] = {row.name: row for row in ROWS if row.sender != "server"}
"""Methods that clients send, by name."""

REQUESTS: Final = frozenset(row.name for row in ROWS if row.is_request)
"""Requests of clients and of servers. One that comes without an id gets no answer, and no server gets it."""

NO_REQUESTS: Final[Mapping[str, frozenset[str]]] = {
    era: frozenset(row.name for row in ROWS if not row.is_request or row.sender == "server" or era not in row.eras)
    for era in sorted(BOTH)
}
"""Method names of MCP that a client of an era must not send as a request, by era."""

SERVER_METHODS: Final[Mapping[str, Method]] = {row.name: row for row in ROWS if row.sender != "client"}
"""Methods that servers send, by name."""

LISTS: Final[Mapping[str, str]] = {row.name: row.listed for row in ROWS if row.listed and not row.named}
"""The list requests, and the key of the list in their results."""

CACHEABLE: Final = frozenset(row.name for row in ROWS if row.is_cacheable)
REPEATABLE: Final = frozenset(row.name for row in ROWS if row.is_repeatable)
MAY_ASK: Final = frozenset(row.name for row in ROWS if row.may_ask)
ABOUT_TASKS: Final = frozenset(row.name for row in ROWS if row.named == "taskId")
OF_TASKS: Final = frozenset(row.name for row in ROWS if row.name.startswith("tasks/"))
RECORDED: Final = frozenset(row.name for row in ROWS if row.is_recorded)

CHANGES: Final[Mapping[str, Method]] = {row.name: row for row in ROWS if row.sender == "server" and row.kind != "none"}
"""Notifications of servers that something has changed: a list, or a resource."""

_LABELS: Final = {row.name: row.name for row in METHODS.values() if row.is_counted}


def metric_label(method: str) -> str:
    """Return the method's label in metrics; `other` for unknown ones, so that no client can add a label."""
    return _LABELS.get(method, "other")


def lists_of(kind: str) -> tuple[Method, ...]:
    """Return the list methods that the policy of that kind decides on."""
    return tuple(row for row in ROWS if row.name in LISTS and row.kind == kind)


_NOTIFICATIONS: Final = "notifications/"


def folded_method(method: str) -> str:
    """Return a method in lower case and without empty parts between slashes. A lenient server may take all methods with
    the same result for one."""
    return "/".join(filter(None, method.lower().split("/")))


_KNOWN: Final = frozenset(folded_method(row.name) for row in ROWS)


def may_be_relayed(method: str, *, is_request: bool) -> bool:
    """Return whether a client's method that MCP does not define can pass to servers.

    It must be visible ASCII, so that no letter looks like another one and no space is overlooked. In any case of its
    letters, it must be no method of MCP. A request must not be named like a notification. The wire bounds its length.
    """
    if not (method.isascii() and method.isprintable()) or " " in method:
        return False
    folded = folded_method(method)
    return bool(folded) and folded not in _KNOWN and not (is_request and folded.startswith(_NOTIFICATIONS))
