"""The two ways to speak MCP."""

from enum import StrEnum

__all__ = ["Era"]


class Era(StrEnum):
    """How a peer speaks MCP: with the handshake (protocol ≤ 2025-11-25) or with facts in every request (2026-07-28)."""

    LEGACY = "legacy"
    MODERN = "modern"
