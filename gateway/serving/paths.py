"""The fixed paths that the gateway serves."""

from typing import Final

__all__ = ["ALL", "CATALOG", "HEALTH", "HOME", "JWKS", "READY"]

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
