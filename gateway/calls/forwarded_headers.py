"""Headers of a client's request that a server behind a URL gets as they are.

MCP 2026-07-28, Streamable HTTP §Server Behavior for Custom Headers: an intermediary forwards every `Mcp-Param-*` header
that it does not recognize.
"""

from collections.abc import Mapping
from typing import Protocol, cast

from transports.upstream_port import Link

__all__ = ["ForwardsHeaders", "send_with"]


class _HttpLink(Protocol):
    def send(self, frame: bytes, forwarded: Mapping[str, str] | None = None) -> None:
        """As `Link.send`. The request has these headers, too."""
        ...


class ForwardsHeaders:
    """The part of an exchange that has the headers of its client's request."""

    forwarded: Mapping[str, str] | None = None

    def forward(self, headers: Mapping[str, str]) -> None:
        """Have the server behind a URL get these headers."""
        self.forwarded = headers or None


def send_with(link: Link, frame: bytes, headers: Mapping[str, str]) -> None:
    """Send a message over a link to a URL, with these headers. Raises `LinkClosed`."""
    cast("_HttpLink", link).send(frame, headers)
