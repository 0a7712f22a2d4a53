"""The lists of tools, prompts and resources that one conversation has received from its server."""

from gateway.protocol.listing import Names, Tools
from gateway.protocol.methods import lists_of

__all__ = ["Listed", "Lists"]

Listed = Tools | Names


class Lists:
    """Received lists, by the method of the list. A server may list different items to each session."""

    __slots__ = ("asked_at", "changed", "known")

    def __init__(self) -> None:
        self.known: dict[str, Listed] = {}
        self.changed: set[str] = set()
        self.asked_at: dict[str, float] = {}

    def forget(self, kind: str) -> None:
        """Drop the lists of a kind (tools, prompts, resources): the server has announced a change."""
        for row in lists_of(kind):
            self.known.pop(row.name, None)
            self.asked_at.pop(row.name, None)
            self.changed.add(row.name)
