"""Define the cards of servers: what clients without a credential may find out."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gateway.config.settings_base import Frozen

ALL_SERVERS: Final = "*"
"""The key of the card for `/mcp`, which serves all servers."""

_NAME: Final = r"^[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*/[a-zA-Z0-9._-]+$"


class CardSettings(Frozen):
    """The card of one server: what everyone may know of it."""

    name: Annotated[str, Field(min_length=3, max_length=200, pattern=_NAME)]
    """The name in reverse-DNS form with one slash, for example `com.example/search`. The catalog identifies the server
    by it."""
    description: Annotated[str, Field(min_length=1, max_length=100)]
    """What the server does, in at most 100 characters."""
    version: Annotated[str, Field(min_length=1, max_length=255)] = "1.0.0"
    """The version of the server."""

    @property
    def identifier(self) -> str:
        """Return the server's identifier in the AI catalog, a URN that is made of the card's `name`: first the domain,
        then the name of the server."""
        domain, _, name = self.name.partition("/")
        return f"urn:air:{'.'.join(reversed(domain.lower().split('.')))}:mcp:{name}"


def _have_own_names(cards: dict[str, CardSettings]) -> dict[str, CardSettings]:
    if len({card.identifier for card in cards.values()}) < len(cards):
        raise ValueError("two cards have the same name, which identifies a server; case does not count in its domain")
    return cards


Cards = Annotated[dict[str, CardSettings], AfterValidator(_have_own_names)]
"""Name of a server → its card."""
