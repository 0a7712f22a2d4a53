"""Lists the tasks that the gateway has made for a principal: whatever `tasks/get` finds (MCP 2025-11-25, Tasks).

First those of the session that asks, oldest first, and then those of the principal's other sessions, by their names.
All anonymous clients are one principal: they get those of their session.
"""

import math
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.identity.request_context import RequestContext
from gateway.tasks.made import MadeTasks
from gateway.tasks.quotas import TaskQuotas, parts_of
from session_store import Session, Task
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, encode

__all__ = ["PAGE", "TaskLists"]

T = TypeVar("T")

PAGE: Final = 64
"""Tasks of one page at most. A page has fewer, or none, where tasks have expired or are hidden: so many are read."""

_ELSEWHERE: Final = "/"
"""Begins what a page ends with, in other sessions: the rest is the name of a task. A place in the
session itself begins otherwise."""

_Place = tuple[float, str]
"""Where a task stands among those of its session: it stays where it is when others expire."""

_FIRST: Final[_Place] = (-math.inf, "")


class TaskLists:
    """Reads pages of tasks."""

    def __init__(self, made: MadeTasks, quotas: TaskQuotas) -> None:
        self._made = made
        self._quotas = quotas

    async def page(
        self, session: Session, endpoint: str, who: RequestContext, after: str, shown: Callable[[Task], T]
    ) -> tuple[list[T], str]:
        """Tasks that were made at that endpoint and that this request may see, as `shown` has them, and what the next
        page comes `after`: empty if there is none. `session` is that of the request. Not counted.

        Raises:
            Refused: `after` is no end of a page.
            StoreUnavailable: the store does not answer.
        """
        page: list[T] = []
        if not after.startswith(_ELSEWHERE):
            past_own = _place_of(after) if after else _FIRST
            own = sorted(await self._made.of_session(session, endpoint, who), key=_place)
            rest = [task for task in own if _place(task) > past_own]
            page += map(shown, rest[:PAGE])
            if len(rest) > PAGE:
                return page, encode(_place(rest[PAGE - 1])).decode()
            after = _ELSEWHERE
        if who.principal.is_anonymous:
            return page, ""
        past, room = after.removeprefix(_ELSEWHERE), PAGE - len(page)
        names = sorted(
            name
            for name in await self._quotas.of_principal(who.principal)
            if name > past and parts_of(name)[0] != session.id
        )
        for name in names[:room]:
            task = await self._made.seen(name, endpoint, who)
            if task is not None:
                page.append(shown(task))
        if len(names) <= room:
            return page, ""
        return page, _ELSEWHERE + (names[room - 1] if room else past)


def _place(task: Task) -> _Place:
    return task.created_at, task.id


def _place_of(after: str) -> _Place:
    """Where a page has ended. Raises `Refused`: it is nothing that the gateway has said."""
    try:
        place: _Place = msgspec.json.decode(after, type=tuple[float, str])
    except msgspec.MsgspecError:
        raise Refused(200, INVALID_PARAMS, "Invalid cursor") from None
    return place
