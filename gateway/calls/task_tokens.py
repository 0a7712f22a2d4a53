"""The progress tokens of calls that were answered with a task, between clients and servers of the handshake era. Pure.

Such a token stays valid as long as its task (MCP 2025-11-25, Progress). Which tasks have ended is not known here: a
server sends no more progress then.
"""

from typing import Final, NamedTuple
from weakref import ref

import msgspec

__all__ = ["MOST", "TaskToken", "TaskTokens"]

MOST: Final = 256
"""Tokens of one conversation that are kept. Beyond it, the oldest one is forgotten."""


class TaskToken(NamedTuple):
    """A client's token, and the session that it belongs to, which may have ended."""

    token: msgspec.Raw
    session: "ref[object]"


class TaskTokens:
    """The tokens of one conversation, by the numbers that the server has for them."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: dict[int, TaskToken] = {}

    def keep(self, number: int, token: msgspec.Raw, session: object) -> None:
        """The call of that number was answered."""
        while len(self._tokens) >= MOST:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[number] = TaskToken(token, ref(session))

    def find(self, number: object) -> TaskToken | None:
        """The client's token for the server's; None if there is none (any more)."""
        return self._tokens.get(number) if isinstance(number, int) else None
