"""The fixed paths that the gateway serves."""

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["ALL", "CATALOG", "HEALTH", "HOME", "JWKS", "READY", "served_paths"]

ALL: Final = "/mcp"
"""Serves every upstream; `/servers/NAME/mcp` serves one."""

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
