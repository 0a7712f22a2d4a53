"""The fixed paths that the gateway serves."""

from typing import Final

__all__ = ["ALL", "HEALTH", "JWKS", "READY"]

ALL: Final = "/mcp"
"""Serves every upstream; `/servers/NAME/mcp` serves one."""

HEALTH: Final = "/healthz"
READY: Final = "/readyz"
JWKS: Final = "/.well-known/jwks.json"
"""The public keys that verify assertions (RFC 7517)."""
