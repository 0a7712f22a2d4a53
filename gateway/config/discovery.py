"""Define the settings of discovery: what clients without a credential may find out."""

import re
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from gateway.config.addresses import is_loopback
from gateway.config.settings_base import Frozen

ALL_SERVERS: Final = "*"
"""The key of the card for `/mcp`, which serves all servers."""

_NAME: Final = r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class CardSettings(Frozen):
    """The card of one server: what everyone may know of it."""

    name: Annotated[str, Field(min_length=3, max_length=200, pattern=_NAME)]
    """The name in reverse-DNS form with one slash, for example `com.example/search`."""
    description: Annotated[str, Field(min_length=1, max_length=100)]
    """What the server does, in at most 100 characters."""
    version: Annotated[str, Field(min_length=1, max_length=255)] = "1.0.0"
    """The version of the server."""
    title: Annotated[str, Field(max_length=100)] = ""
    """A name for people."""


class DiscoverySettings(Frozen):
    """What clients without a credential may find out. Nothing about servers, unless there are cards."""

    url: str = ""
    """The address at which clients reach the gateway, without a path of a server, for example
    `https://mcp.example.com`. Required if there are cards."""
    publisher: str = ""
    """The domain in the identifiers of the catalog. Empty: the host of `url`."""
    cards: dict[str, CardSettings] = Field(default={})
    """Name of a server → its card. `*` is the card of `/mcp`, which serves all of them. A server without a card is not
    listed."""

    home_page: bool = True
    """Whether browsers that open `/` or the address of an endpoint get a page that says how to connect a client, and
    whether curl and the like get it at `/` as a text. It names no server and no session."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if not self.cards:
            return self
        parts = urlsplit(self.url)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        has_more = parts.query or parts.fragment or parts.username or parts.password  # a card is public
        if not parts.hostname or not (parts.scheme == "https" or is_local) or has_more:
            raise ValueError(
                f"discovery.url is {self.url!r}: cards need the address at which clients reach the gateway, with "
                "https, or http on this machine"
            )
        names = [card.name for card in self.cards.values()]
        if len({*names}) < len(names):
            raise ValueError("discovery.cards: two cards have the same name, which identifies a server")
        if not _DOMAIN.fullmatch(self.domain):
            raise ValueError(f"discovery.publisher: {self.domain!r} is not a domain, which identifiers need")
        return self

    @property
    def domain(self) -> str:
        """Return the domain for the identifiers in the catalog."""
        return self.publisher or urlsplit(self.url).hostname or ""
