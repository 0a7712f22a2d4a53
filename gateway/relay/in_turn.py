"""Asks servers in an order of preference until one has what is looked for. One that hangs holds nobody up for long."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from gateway.relay.late_servers import UNAVAILABLE

__all__ = ["InTurn"]

T = TypeVar("T")

_AT_ONCE: Final = 4
"""Servers that are asked at the same time, after the first one."""


class InTurn(Generic[T]):
    """One search. `ask` asks the server of a name, and raises what is in `UNAVAILABLE` if it cannot be asked. `has`
    says of an answer whether the search is over. `late` are the servers that could not be asked, or did not answer in
    time.

    The first server is asked alone, because it is the likeliest, and the others in groups. The next group is asked when
    no server of the present one has it, or `wait_s` later. Of several that have it, the first in the order counts; one
    that has not answered `wait_s` after its group was asked does not hold up a later one. All take `within_s` at most.
    """

    def __init__(
        self,
        ask: Callable[[str], Coroutine[Any, Any, T]],
        has: Callable[[T], bool],
        *,
        wait_s: float,
        within_s: float,
    ) -> None:
        self.late: set[str] = set()
        self._ask = ask
        self._has = has
        self._wait_s = wait_s
        self._within_s = within_s
        self._asked: dict[str, asyncio.Task[T]] = {}

    async def first(self, names: Sequence[str]) -> tuple[str, T] | None:
        """The first server that has it, and its answer. `names` are in the order of preference."""
        now = asyncio.get_running_loop().time
        end = now() + self._within_s
        groups = [names[:1], *(names[n : n + _AT_ONCE] for n in range(1, len(names), _AT_ONCE))]
        try:
            for group in groups:
                if now() >= end:
                    self.late.update(group)
                    continue
                self._asked |= {name: asyncio.create_task(self._ask(name)) for name in group}
                if (found := await self._found(min(end, now() + self._wait_s), in_order=True)) is not None:
                    return found
            return await self._found(end, in_order=False)
        finally:
            await self._leave()

    async def _found(self, until: float, *, in_order: bool) -> tuple[str, T] | None:
        """What has been found when all have answered, or at that time of the loop. With `in_order`, a server that has
        not answered goes before those behind it until then."""
        now = asyncio.get_running_loop().time
        while True:
            pending = [task for task in self._asked.values() if not task.done()]
            is_over = not pending or now() >= until
            for name, task in self._asked.items():
                if not task.done():
                    if in_order and not is_over:
                        break
                elif (answer := self._answer(name, task)) is not None and self._has(answer):
                    return name, answer
            if is_over:
                return None
            await asyncio.wait(pending, timeout=until - now(), return_when=asyncio.FIRST_COMPLETED)

    def _answer(self, name: str, task: asyncio.Task[T]) -> T | None:
        try:
            return task.result()
        except UNAVAILABLE:
            self.late.add(name)
            return None

    async def _leave(self) -> None:
        """Cancel what is asked for still."""
        for name, task in self._asked.items():
            if not task.done():
                self.late.add(name)
                task.cancel()
        if self._asked:
            await asyncio.gather(*self._asked.values(), return_exceptions=True)
