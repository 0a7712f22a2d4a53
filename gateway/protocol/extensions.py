"""Find the extension that a method belongs to, and the extensions that capabilities declare. Pure.

SEP-2133 names extensions `vendor-prefix/name`, but has no rule for the names of their methods. So the gateway has its
own (`match`).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from transports.jsonrpc import UNREADABLE, Object

SKILLS: Final = "io.modelcontextprotocol/skills"
"""The Skills extension: its methods are in the table of methods."""

HANDLED: Final = frozenset({"io.modelcontextprotocol/tasks"})
"""Extensions that the gateway itself handles if client and server are of different eras. So a declaration of them is
not passed to the other era."""

HANDLED_CAPABILITIES: Final = frozenset({"tasks"})
"""Capabilities of the core protocol that only one era has. They are not passed to the other era."""

SPEC: Final = "io.modelcontextprotocol/"
"""The prefix of the names that MCP itself defines, for extensions and for keys of `_meta`."""

_NOTIFICATIONS: Final = "notifications/"
_CORE: Final = frozenset(
    """completions elicitation experimental extensions logging prompts resources roots sampling tasks tools""".split()
)
"""Names of the capabilities that the core protocol defines for clients and servers."""

MOST_NAMES: Final = 256
MOST_NAME_CHARS: Final = 256
"""Limits for declared names; names beyond them are ignored. Every call of an extension compares all names, which takes
time."""

_objects = msgspec.json.Decoder(Object)


def object_of(raw: msgspec.Raw | bytes | None) -> Object:
    """Return the members of a raw JSON object; empty for anything else."""
    try:
        return {} if raw is None else _objects.decode(raw)
    except UNREADABLE:
        return {}


def passed_on(capabilities: Object) -> Object:
    """Return the capabilities that are passed to the other era: all except those that the gateway handles itself."""
    plain = {name: raw for name, raw in capabilities.items() if name not in HANDLED_CAPABILITIES}
    if "extensions" in plain:
        extensions = object_of(plain["extensions"])
        if not extensions.keys().isdisjoint(HANDLED):
            kept = {name: raw for name, raw in extensions.items() if name not in HANDLED}
            del plain["extensions"]
            if kept:
                plain["extensions"] = msgspec.Raw(msgspec.json.encode(kept))
    return plain


def method_forms(method: str) -> tuple[str, ...]:
    """Return the names under which patterns and declarations may refer to a method: its own name, and for a
    notification also the name without the prefix `notifications/`."""
    plain = method.removeprefix(_NOTIFICATIONS)
    return (method,) if plain == method else (method, plain)


def match(method: str, declared: str) -> int:
    """Return how closely a method matches a declared extension; 0 if not at all.

    3: the method is the extension's name, or begins with this name and a slash. 2: it begins with the vendor prefix. 1:
    it begins with the last part of the name. A prefix `notifications/` is ignored. For `com.acme/search`, examples are
    `com.acme/search/query` (3), `notifications/com.acme/changed` (2) and `search/query` (1).
    """
    method = method_forms(method)[-1]
    vendor, slash, name = declared.rpartition("/")
    if method == declared or method.startswith(f"{declared}/"):
        return 3 if slash else 1
    if slash and method.startswith(f"{vendor}/"):
        return 2
    return int(method == name or method.startswith(f"{name}/"))


class Declared(msgspec.Struct, frozen=True):
    """The names that a client or a server declares: of extensions, of experimental capabilities, and of capabilities
    outside the core protocol."""

    names: tuple[str, ...] = ()
    """The first `MOST_NAMES` names that have up to `MOST_NAME_CHARS` characters."""
    is_open: bool = False
    """True if one of these names is not that of an official extension, so that its methods may have any name."""
    left_off: int = 0
    """The number of declared names that are not in `names`."""

    @classmethod
    def of(cls, capabilities: msgspec.Raw | bytes | None) -> "Declared":
        """Return the names that these capabilities declare. `capabilities` are JSON; None counts as empty."""
        declared = object_of(capabilities)
        extensions = object_of(declared.get("extensions"))
        own = (*object_of(declared.get("experimental")), *(name for name in declared if name not in _CORE))
        short = [name for name in (*extensions, *own) if len(name) <= MOST_NAME_CHARS]
        names = tuple(short[:MOST_NAMES])
        is_open = any(name not in extensions or not name.startswith(SPEC) for name in names)
        return cls(names, is_open=is_open, left_off=len(extensions) + len(own) - len(names))

    def match(self, method: str) -> int:
        """Return how closely the method matches the best of these names, from 0 (not at all) to 3 (see the function
        `match`)."""
        return max((match(method, name) for name in self.names), default=0)

    def takes(self, method: str) -> bool:
        """Return True if a client or server with these declarations may understand a method of an extension."""
        return self.is_open or self.match(method) > 0


def closest(method: str, parties: Iterable[tuple[str, Declared]]) -> list[str]:
    """Return the names of those parties (clients or servers) whose declared extensions match the method most closely;
    empty if no party has a matching extension."""
    matches = {name: declared.match(method) for name, declared in parties}
    best = max(matches.values(), default=0)
    return [name for name, found in matches.items() if found == best and best]
