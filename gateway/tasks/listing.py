"""Lists the tasks that the gateway has made for a principal: whatever `tasks/get` finds (MCP 2025-11-25, Tasks).

First those of the session that asks, oldest first, and then those of the principal's other sessions, by their names.
All anonymous clients are one principal: they get those of their session.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.identity.request_context import RequestContext
from gateway.tasks.made import MadeTasks
from gateway.tasks.quotas import TaskQuotas, parts_of
from session_store import Session, Task, TaskStore
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, encode

__all__ = ["PAGE", "TaskLists"]

T = TypeVar("T")

PAGE: Final = 64
"""Tasks of one page at most. A page has fewer, or none, where tasks have expired or are hidden: so many are read."""

_ELSEWHERE: Final = "/"
"""Begins what a page ends with, in other sessions: the rest is the name of a task. A place in the session
itself begins otherwise."""

_FIRST: Final = (0.0, "")


class TaskLists:
    """Reads pages of tasks."""

    def __init__(self, made: MadeTasks, quotas: TaskQuotas, store: TaskStore) -> None:
        self._made = made
        self._quotas = quotas
        self._store = store

    async def page(
        self, session: Session, endpoint: str, who: RequestContext, after: str, shown: Callable[[Task], T]
    ) -> tuple[list[T], str]:
        """Tasks that were made at that endpoint and that this request may see, as `shown` has them, and what the next
        page comes `after`: empty if there is none. `session` is that of the request. `shown` gets no outcome
        (`TaskStore`). Not counted.

        Raises:
            Refused: `after` is no end of a page.
            StoreUnavailable: the store does not answer.
        """
        heads: list[Task] = []
        more = ""
        if not after.startswith(_ELSEWHERE):
            heads = await self._store.of_session(
                session.id, after=_place_of(after) if after else _FIRST, limit=PAGE + 1
            )
            if len(heads) > PAGE:
                del heads[PAGE:]
                more = encode(heads[-1].place).decode()
            after = _ELSEWHERE
        if not more and not who.principal.is_anonymous:
            past, room = after.removeprefix(_ELSEWHERE), PAGE - len(heads)
            names = sorted(
                name
                for name in await self._quotas.of_principal(who.principal)
                if name > past and parts_of(name)[0] != session.id
            )
            heads += await self._store.heads(names[:room])
            if len(names) > room:
                more = _ELSEWHERE + (names[room - 1] if room else past)
        return [shown(task) for task in await self._made.seen(heads, endpoint, who)], more


def _place_of(after: str) -> tuple[float, str]:
    """Where a page has ended. Raises `Refused`: it is nothing that the gateway has said."""
    try:
        place: tuple[float, str] = msgspec.json.decode(after, type=tuple[float, str])
    except msgspec.MsgspecError:
        raise Refused(200, INVALID_PARAMS, "Invalid cursor") from None
    return place
