"""Define the paths that the gateway serves."""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.config.settings import is_server_name

ALL: Final = "/mcp"
"""The endpoint of all servers. `/servers/NAME/mcp` is that of one server."""

_SERVERS: Final = "/servers/"
NOWHERE: Final = f"{_SERVERS}*{ALL}"
"""The endpoint for all names that no server has. It serves no server, exactly as a server's endpoint does for clients
that may not see the server: so names of hidden servers cannot be found out. It is absent if all clients see all."""

HOME: Final = frozenset({"/", ""})
"""The paths of the page for people. The empty one occurs where another app mounts the gateway."""

HEALTH: Final = "/healthz"
READY: Final = "/readyz"
CATALOG: Final = "/.well-known/ai-catalog.json"
"""The catalog of the servers that have a card (`gateway.discovery`)."""

JWKS: Final = "/.well-known/jwks.json"
"""The public keys that verify assertions (RFC 7517)."""


def served_paths(servers: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the names of servers by endpoint: one endpoint for all servers, and one for each."""
    return {ALL: servers, **{f"/servers/{name}/mcp": [name] for name in servers}}


def unserved(path: str) -> str:
    """Return the endpoint that answers for the path of an unknown server (`NOWHERE`); empty for other paths. Invalid
    names of servers have no endpoint, because the page for people repeats the name in commands to be copied."""
    name, _, rest = path.removeprefix(_SERVERS).partition("/")
    return f"{_SERVERS}*/{rest}" if path.startswith(_SERVERS) and is_server_name(name) else ""
