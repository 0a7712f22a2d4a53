"""The fixed paths that the gateway serves."""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.config.settings import is_server_name

__all__ = ["ALL", "CATALOG", "HEALTH", "HOME", "JWKS", "NOWHERE", "READY", "served_paths", "unserved"]

ALL: Final = "/mcp"
"""Serves every upstream; `/servers/NAME/mcp` serves one."""

_SERVERS: Final = "/servers/"
NOWHERE: Final = f"{_SERVERS}*{ALL}"
"""Stands for the path of every name that no server has, where some may not know which names servers have. It serves no
server, as the path of a server does for whoever may not see it."""

HOME: Final = frozenset({"/", ""})
"""The page for people; without a slash where another app mounts the gateway."""

HEALTH: Final = "/healthz"
READY: Final = "/readyz"
CATALOG: Final = "/.well-known/ai-catalog.json"
"""The servers that have a card (`gateway.discovery`)."""

JWKS: Final = "/.well-known/jwks.json"
"""The public keys that verify assertions (RFC 7517)."""


def served_paths(servers: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The servers behind each path: one path for all, and one for each."""
    return {ALL: servers, **{f"/servers/{name}/mcp": [name] for name in servers}}


def unserved(path: str) -> str:
    """The path that stands for that of a server which does not exist; empty for other paths. Names that no server can
    have get none: the page for people repeats the name, in commands to be copied."""
    name, _, rest = path.removeprefix(_SERVERS).partition("/")
    return f"{_SERVERS}*/{rest}" if path.startswith(_SERVERS) and is_server_name(name) else ""
