"""The two ways to speak MCP, and the protocol versions of each."""

from enum import StrEnum
from typing import Final

__all__ = ["HANDSHAKE_VERSIONS", "LEGACY", "MODERN", "MODERN_VERSIONS", "Era"]

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that `initialize` negotiates, oldest first."""

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Versions that each request names."""


class Era(StrEnum):
    """How a peer speaks MCP: with the handshake (protocol ≤ 2025-11-25) or with facts in every request (2026-07-28)."""

    LEGACY = "legacy"
    MODERN = "modern"


# For code that runs for each message: to read a member of an enum takes ten times as long as to read a name.
LEGACY: Final = Era.LEGACY
MODERN: Final = Era.MODERN
