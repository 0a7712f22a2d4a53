"""Run commands and scripts on a Redis server. Every failure is a `StoreUnavailable`."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelConnectionPool

from session_store.ports.errors import StoreUnavailable
from session_store.redis.connection import TIMEOUT_S, Connection, encoded

__all__ = ["TIMEOUT_S", "Commands", "Prepared", "Script", "failures_of", "in_parts", "prepared", "script"]

_AT_ONCE: Final = 64
_KEYLESS: Final = frozenset({"CONFIG", "PUBLISH"})
"""Commands whose arguments are no keys, so that any server of a cluster can run them."""

T = TypeVar("T")
Result = TypeVar("Result")


class Script(NamedTuple):
    """A Lua script, and the SHA-1 digest by which `EVALSHA` names it."""

    source: bytes
    digest: str


def script(name: str) -> Script:
    """Load the script of that name from `lua/`, with the common prelude before it."""
    folder = files(__package__) / "lua"
    source = (folder / "prelude.lua").read_bytes() + (folder / f"{name}.lua").read_bytes()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


class Prepared(NamedTuple):
    """An encoded script call (RESP), and its first key."""

    packed: bytes
    key: str


def prepared(script: Script, keys: Sequence[str], *arguments: Any) -> Prepared:
    """Encode a script call, for callers that send the same call many times."""
    return Prepared(encoded("EVALSHA", script.digest, len(keys), *keys, *arguments), keys[0])


async def in_parts(work: Callable[[T], Awaitable[Result]], items: Sequence[T]) -> list[Result]:
    """Return the results of `work` for all items, in order. Run at most `_AT_ONCE` at the same time: the commands for
    thousands, and their replies, would block the event loop."""
    results: list[Result] = []
    for at in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*map(work, items[at : at + _AT_ONCE]))
    return results


async def failures_of(replies: Sequence[Awaitable[Any]]) -> list[StoreUnavailable | None]:
    """Wait for all replies. Return the failure of each command, None for success. Raises other exceptions."""
    failures: list[StoreUnavailable | None] = []
    for reply in await asyncio.gather(*replies, return_exceptions=True):
        if isinstance(reply, BaseException) and not isinstance(reply, StoreUnavailable):
            raise reply
        failures.append(reply if isinstance(reply, StoreUnavailable) else None)
    return failures


class Commands:
    """Run commands on one server. The subclass `ClusterCommands` is for a cluster."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connection = Connection(client)

    async def run(self, *command: Any) -> Any:
        """Send one command and return its reply. Raises `StoreUnavailable`, also for a command that Redis refuses."""
        has_key = len(command) > 1 and command[0] not in _KEYLESS
        return await self.deliver(str(command[1]) if has_key else None, encoded(*command))

    async def deliver(self, key: str | None, packed: bytes) -> Any:
        """Send an encoded command to the server that has the key, or to any server if `key` is None. Return the reply.
        Raises `StoreUnavailable`."""
        return await self._connection.reply_to(packed)

    async def call(self, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        """Call a script with these keys and arguments, and return its reply. Raises `StoreUnavailable`."""
        return await self.send(prepared(script, keys, *arguments), script)

    async def send(self, prepared: Prepared, script: Script) -> Any:
        """Send a prepared call of `script`, and return its reply. Raises `StoreUnavailable`."""
        try:
            return await self.deliver(prepared.key, prepared.packed)
        except StoreUnavailable as error:
            if "NOSCRIPT" not in str(error):  # a server loses its scripts when it restarts
                raise
        await self.deliver(prepared.key, encoded("SCRIPT", "LOAD", script.source))
        return await self.deliver(prepared.key, prepared.packed)

    async def send_all(self, calls: Sequence[Prepared], script: Script) -> list[StoreUnavailable | None]:
        """Send prepared calls of `script` together, and wait for all replies.

        Return the failure of each call, None for success. Raises `StoreUnavailable` if no call was sent.
        """
        if not self._connection.is_open:
            await self._connection.open()
        failures = await failures_of([self._connection.send(call.packed) for call in calls])
        forgotten = [at for at, failure in enumerate(failures) if failure is not None and "NOSCRIPT" in str(failure)]
        again = await failures_of([self.send(calls[at], script) for at in forgotten])
        for at, failure in zip(forgotten, again, strict=True):
            failures[at] = failure
        return failures

    def node_of(self, key: str) -> Hashable:
        """Return an identifier of the server that has the key; None if there is only one server. One server may fail
        while others answer."""
        return None

    def together(self, keys: Sequence[str]) -> Iterable[Sequence[str]]:
        """Divide keys, in their order, into groups that may be used in one script call."""
        return [keys]

    def client_for(self, key: str) -> Redis:
        """Return redis-py's client for the server that has the key."""
        return self._client

    def client(self) -> Redis:
        """Return redis-py's client for a server at which topics can be subscribed to."""
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        await asyncio.sleep(0)  # an aborted transport is closed in the next iteration of the event loop
        await self._client.aclose()
        if isinstance(self._client.connection_pool, SentinelConnectionPool):
            for sentinel in self._client.connection_pool.sentinel_manager.sentinels:
                await sentinel.aclose()
