"""Define the paths that the gateway serves."""

from typing import Final

from gateway.config.settings import is_server_name

ALL: Final = "/mcp"
"""The endpoint of all servers. `/servers/NAME/mcp` is that of one server."""

_SERVERS: Final = "/servers/"
NOWHERE: Final = f"{_SERVERS}*{ALL}"
"""The endpoint for names that no server has. It answers exactly as the endpoint of a hidden server, so that clients
cannot find out the names of hidden servers. It is absent if all clients see all servers."""

HOME: Final = frozenset({"/", ""})
"""The paths of the page for people. The path is empty if another app mounts the gateway."""

HEALTH: Final = "/healthz"
READY: Final = "/readyz"
CATALOG: Final = "/.well-known/ai-catalog.json"
"""The catalog of the servers that have a card (`gateway.cards`)."""

JWKS: Final = "/.well-known/jwks.json"
"""The public keys that verify assertions (RFC 7517)."""


def path_of(server: str) -> str:
    """Return the path of the endpoint that serves this server alone."""
    return f"{_SERVERS}{server}{ALL}"


def unserved(path: str) -> str:
    """Return the endpoint that answers a request to `path` if no server has the name in it, as `/servers/*/mcp`
    (`NOWHERE`). Return an empty string if `path` does not begin with `/servers/NAME`, or the name is invalid: the page
    for people would repeat an invalid name in commands to copy."""
    name, _, rest = path.removeprefix(_SERVERS).partition("/")
    return f"{_SERVERS}*/{rest}" if path.startswith(_SERVERS) and is_server_name(name) else ""
