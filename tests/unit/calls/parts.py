"""Parts of the room: a server as questions and messages use it, its messages, and turns of the loop."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import Deadlines
from gateway.errors import CANCELLED
from session_store import Entry, MemoryEventLog, Reserved, StoreUnavailable
from transports.jsonrpc import Message, encode, parse


class Server:
    """A server that asks, and its conversation."""

    name, deadlines = "s", Deadlines(start_s=1, call_s=60, suspended_s=60, idle_stop_s=60)

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, Any]] = []
        self.errors: list[Any] = []
        self.refusals: list[tuple[bytes, int]] = []
        self.cancelled: list[str] = []
        self.notified: list[tuple[str, Any]] = []

    def answer(self, request_id: bytes, message: Message) -> None:
        if isinstance(message.result, msgspec.Raw):
            self.answers.append((request_id, msgspec.json.decode(message.result)))
        else:
            self.errors.append(msgspec.json.decode(encode(message.error)))

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        self.refusals.append((request_id, code))

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        self.cancelled.append(reason)
        exchange.fail(code, reason)

    def notify(self, method: str, params: bytes | None) -> None:
        self.notified.append((method, params and msgspec.json.decode(params)))

    @property
    def conversation(self) -> Conversation:
        return cast("Conversation", self)


class Events(MemoryEventLog):
    """A log that a process can leave to the next one. `fails`: the store does not answer."""

    fails = False

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        if self.fails:
            raise StoreUnavailable
        return await super().unfinished(session_id)

    async def keep(self, session_id: str, stream: str) -> None:
        """Store the first event of a call, with its request."""
        nonce, number = await self.reserve(session_id, 1) or Reserved("", 0)
        await self.write({session_id: [Entry(number, stream, b"", nonce=nonce, request=b"call")]})

    async def release(self, session_id: str) -> None: ...


def request(method: str, server_id: object = 1, **params: object) -> Message:
    return parse(encode({"jsonrpc": "2.0", "id": server_id, "method": method, "params": params}))


def notification(method: str, params: object) -> Message:
    return parse(encode({"jsonrpc": "2.0", "method": method, "params": params}))


async def turns(count: int = 10) -> None:
    """Let what was begun come to where it waits."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - each turn is looked at
            await asyncio.sleep(0)
