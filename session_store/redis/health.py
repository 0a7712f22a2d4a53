"""What a Redis says of itself that matters to those who keep sessions in it."""

import contextlib
from dataclasses import dataclass
from time import perf_counter, time
from typing import Final

from session_store.ports.errors import StoreUnavailable
from session_store.redis.commands import Commands

__all__ = ["RedisFacts", "look"]

_PINGS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """`persists` is None where the server does not tell. `latency_s` is the median of some answers, `ahead_s` how far
    its clock is ahead of ours."""

    version: tuple[int, ...]
    role: str
    eviction: str
    memory_bytes: int
    memory_limit_bytes: int
    persists: bool | None
    latency_s: float
    ahead_s: float


async def look(commands: Commands) -> RedisFacts:
    """Ask one server. Raises `StoreUnavailable`."""
    told = {
        name: value
        for line in bytes(await commands.run("INFO")).decode("utf-8", "replace").splitlines()
        for name, colon, value in [line.partition(":")]
        if colon
    }
    persists = True if told.get("aof_enabled") == "1" else None
    if persists is None:
        with contextlib.suppress(StoreUnavailable):  # hosted ones often keep their configuration to themselves
            saved = await commands.run("CONFIG", "GET", "save")
            persists = len(saved) > 1 and bool(saved[1])
    took = []
    for _ in range(_PINGS):
        began = perf_counter()
        await commands.run("PING")
        took.append(perf_counter() - began)
    before = time()
    seconds, micros = await commands.run("TIME")
    now = (before + time()) / 2
    return RedisFacts(
        version=tuple(int(part) for part in told.get("redis_version", "0").split(".") if part.isdigit()),
        role=told.get("role", "master"),
        eviction=told.get("maxmemory_policy", "noeviction"),
        memory_bytes=int(told.get("used_memory", 0)),
        memory_limit_bytes=int(told.get("maxmemory", 0)),
        persists=persists,
        latency_s=sorted(took)[_PINGS // 2],
        ahead_s=int(seconds) + int(micros) / 1e6 - now,
    )
