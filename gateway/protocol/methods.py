"""The table of methods of MCP and its extensions: one row for each, with all properties that the gateway needs.

Pure. Covers MCP 2024-11-05 to 2026-07-28. An ordinary request, or the notification of a change, needs only a row here,
and a modern list, or a method with the header `Mcp-Name`, one in `transports.era`.
Any other notification also needs a rule in `gateway.calls.server_messages`. Only methods with special behaviour are
named in other modules: the unit tests list these, and compare the table with the SDK's.
The SDK itself is not imported: the command line reads this table, and the SDK takes a second to load.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gateway.protocol.extensions import SKILLS

Kind = Literal["tools", "prompts", "resources", "completions", "none"]
"""The kind of items whose policy decides on a method: tools, prompts or resources. For `completions`, it is the policy
for the item whose argument is completed."""

LEGACY, MODERN, BOTH = frozenset({"legacy"}), frozenset({"modern"}), frozenset({"legacy", "modern"})


class Method(msgspec.Struct, frozen=True):
    """One method, and its properties. The defaults fit a client's request that is passed to the session's server.

    `eras`: the eras that have the method.
    `kind`: the policy that decides on it.
    `named`: the key in the params that names the target of the request; `uri` means a resource's URI.
    `listed`: the key of the list in the result; `item_key`: the key of an item's name. If `named` is set too, the list
    belongs to that target, and is not one of the server's own lists.
    `extension`: the extension that defines the method. The method is not sent to a server that does not declare it.
    `setting`: the setting of the extension that must be true as well.
    `flag`: the key in a `subscriptions/listen` filter that asks for this notification.
    `sender`: who sends it.
    `is_cacheable`: the modern result may be cached, so it must not contain facts of one session.
    `is_repeatable`: the request may be sent twice without further effect. For tool calls, the annotations decide.
    `may_ask`: a modern server may answer it with questions to the client (`input_required`).
    `is_recorded`: its effect is stored in the session's record, and repeated for new processes of the server.
    `for_all`: it is sent to every server of an endpoint, not to the one that it names.
    `is_stream`: its response stays open, so its duration is not measured.
    `is_counted`: it has its own label in metrics.
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
        """Return True if the method needs no extension, or these `capabilities` declare its extension and setting."""
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
    """Return the table row of a method about one skill or directory (Skills extension). The policy for resources
    decides on the method. `listed` and `setting` are fields of `Method`."""
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
    """Return the table row of a method about one task (extension `io.modelcontextprotocol/tasks`, Routing Headers;
    experimental in MCP 2025-11-25). No policy decides on it, because the client has the task's id from an allowed
    call."""
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
"""Names of the methods that are requests, of clients and of servers. A message with such a method but without an id is
neither answered nor forwarded."""

NO_REQUESTS: Final[Mapping[str, frozenset[str]]] = {
    era: frozenset(row.name for row in ROWS if not row.is_request or row.sender == "server" or era not in row.eras)
    for era in sorted(BOTH)
}
"""For each era, the MCP methods that a client must not send as a request."""

SERVER_METHODS: Final[Mapping[str, Method]] = {row.name: row for row in ROWS if row.sender != "client"}
"""Methods that servers send, by name."""

LISTS: Final[Mapping[str, str]] = {row.name: row.listed for row in ROWS if row.listed and not row.named}
"""The list requests by name, with the key of the list in their results."""

LOCKED_LISTS: Final[Mapping[str, str]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/templates/list": "templates",
}
"""The list requests whose items the operator's lock file can approve, with the kind of these items."""

CACHEABLE: Final = frozenset(row.name for row in ROWS if row.is_cacheable)
REPEATABLE: Final = frozenset(row.name for row in ROWS if row.is_repeatable)
MAY_ASK: Final = frozenset(row.name for row in ROWS if row.may_ask)
ABOUT_TASKS: Final = frozenset(row.name for row in ROWS if row.named == "taskId")
OF_TASKS: Final = frozenset(row.name for row in ROWS if row.name.startswith("tasks/"))
RECORDED: Final = frozenset(row.name for row in ROWS if row.is_recorded)

CHANGES: Final[Mapping[str, Method]] = {row.name: row for row in ROWS if row.sender == "server" and row.kind != "none"}
"""Notifications by which servers say that a list or a resource has changed, by name."""

_LABELS: Final = {row.name: row.name for row in METHODS.values() if row.is_counted}


def metric_label(method: str) -> str:
    """Return the label of a method in metrics; `other` for a method that is not in the table, so that clients cannot
    add labels."""
    return _LABELS.get(method, "other")


def lists_of(kind: str) -> tuple[Method, ...]:
    """Return the list methods of one kind, such as `resources`."""
    return tuple(row for row in ROWS if row.name in LISTS and row.kind == kind)


_NOTIFICATIONS: Final = "notifications/"


def folded_method(method: str) -> str:
    """Return a method name in lower case and without empty parts between slashes. A lenient server may treat two names
    as the same method if this function returns the same for both."""
    return "/".join(filter(None, method.lower().split("/")))


_KNOWN: Final = frozenset(folded_method(row.name) for row in ROWS)


def may_be_relayed(method: str, *, is_request: bool) -> bool:
    """Return True if a method that MCP does not define may be passed from a client to servers. The name must be visible
    ASCII, so that it cannot imitate another name. It must differ from every method of MCP by more than case and empty
    parts. A request must not be named like a notification. The transport limits the length of the name."""
    if not (method.isascii() and method.isprintable()) or " " in method:
        return False
    folded = folded_method(method)
    return bool(folded) and folded not in _KNOWN and not (is_request and folded.startswith(_NOTIFICATIONS))
