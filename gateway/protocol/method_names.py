"""Which names can be those of methods that MCP does not define. Pure.

A name that a person, or a lenient server, takes for a method of MCP must not pass: policy decides on the names of MCP.
"""

from typing import Final

from gateway.protocol.methods import ROWS

__all__ = ["folded_method", "may_be_relayed"]

_NOTIFICATIONS: Final = "notifications/"


def folded_method(method: str) -> str:
    """What all spellings have in common that a lenient server takes for the same method: case and further slashes."""
    return "/".join(filter(None, method.lower().split("/")))


_KNOWN: Final = frozenset(folded_method(row.name) for row in ROWS)


def may_be_relayed(method: str, *, is_request: bool) -> bool:
    """Whether a client's method that MCP does not define can pass to servers.

    It consists of visible ASCII, so that no letter looks like another one and no space is overlooked. In whatever case,
    it is no method of MCP, of clients or servers, and no request is named like a notification.
    The wire bounds its length.
    """
    if not (method.isascii() and method.isprintable()) or " " in method:
        return False
    folded = folded_method(method)
    return bool(folded) and folded not in _KNOWN and not (is_request and folded.startswith(_NOTIFICATIONS))
