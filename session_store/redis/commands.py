"""Commands to Redis: those of concurrent requests share one round trip, and every failure is one of ours."""

import asyncio
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from session_store.base import StoreUnavailable

__all__ = ["TIMEOUT_S", "Commands", "Script", "explain", "script"]

TIMEOUT_S: Final = 1.0
_MOST_AT_ONCE: Final = 512
_IN_FLIGHT: Final = 2


class Script(NamedTuple):
    """A Lua script and the digest Redis knows it by."""

    source: bytes
    digest: str


def script(name: str) -> Script:
    """One of the scripts in `lua/`, behind what they have in common."""
    folder = files(__package__) / "lua"
    source = (folder / "prelude.lua").read_bytes() + (folder / f"{name}.lua").read_bytes()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


class Commands:
    """Runs commands on one client.

    redis-py spends more on a round trip than a request costs us elsewhere, so everything that is asked for while a
    round trip is under way goes out together with the next one, without a transaction around it.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._senders: set[asyncio.Task[None]] = set()

    async def run(self, *command: Any) -> Any:
        """The reply to one command. Raises `StoreUnavailable`, also for a command that Redis refuses."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, reply))
        if len(self._senders) < _IN_FLIGHT and (len(self._waiting) == 1 or not self._senders):
            sender = asyncio.create_task(self._send())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await reply

    async def call(self, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        """The reply of a script."""
        try:
            return await self.run("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, NoScriptError):  # a server that was restarted has none
                raise
        return await self.run("EVAL", script.source, len(keys), *keys, *arguments)

    async def _send(self) -> None:
        while self._waiting:
            batch = self._waiting[:_MOST_AT_ONCE]
            del self._waiting[:_MOST_AT_ONCE]
            pipeline = self._client.pipeline(transaction=False)
            for command, _ in batch:
                pipeline.execute_command(*command)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    replies = await pipeline.execute(raise_on_error=False)
            except (RedisError, OSError, TimeoutError) as error:
                # What waits behind it would wait for the same silence.
                batch += self._waiting
                self._waiting.clear()
                replies = [error] * len(batch)
            except asyncio.CancelledError:
                for _, reply in batch:
                    reply.cancel()
                raise
            for (_, reply), value in zip(batch, replies, strict=True):
                if reply.done():
                    continue
                if isinstance(value, Exception):
                    reply.set_exception(_ours(value))
                else:
                    reply.set_result(value)

    async def close(self) -> None:
        """Let what is under way end, and give the connections back."""
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._client.aclose()


def _ours(error: Exception) -> StoreUnavailable:
    ours = StoreUnavailable(explain(error))
    ours.__cause__ = error
    return ours


def explain(error: Exception) -> str:
    """What went wrong, in words that hold no address and no password."""
    if isinstance(error, TimeoutError):
        return f"Redis did not answer within {TIMEOUT_S:g} s"
    if isinstance(error, RedisError) and not isinstance(error, OSError):
        return f"Redis: {type(error).__name__}: {str(error)[:200]}"
    return f"Redis cannot be reached: {type(error).__name__}"
