"""Checks of the session store: that it answers in time, keeps what it is given, and has the time we have."""

from collections.abc import AsyncIterator
from typing import Final

from gateway.doctor.findings import Finding, bad, doubtful, good
from session_store import Backend, StoreError
from session_store.connect import shown
from session_store.redis import RedisBackend
from session_store.redis.health import RedisFacts, look

__all__ = ["check_store"]

_OLDEST: Final = (6, 2)
_SLOW_S: Final = 0.005
_TOO_SLOW_S: Final = 0.25
_FULL: Final = 0.8
_CLOCK_S: Final = 1.0
_CLOCK_BAD_S: Final = 5.0
"""What one gateway seals for another is good for 10 s."""


async def check_store(url: str, backend: Backend) -> AsyncIterator[Finding]:
    """Look at the store of that URL."""
    try:
        await backend.open()
        await backend.ping()
    except StoreError as error:
        do = "start it, and see that this machine may reach it with that name, port and password"
        yield bad("store", f"{shown(url)}: {error}", do)
        return
    try:
        if isinstance(backend, RedisBackend):
            facts = await look(backend.commands)
            yield good(
                "store", f"Redis {'.'.join(map(str, facts.version))} answers in {facts.latency_s * 1_000:.2f} ms"
            )
            for finding in _of_redis(facts):
                yield finding
        elif backend.is_durable:
            yield good("store", "the file can be used")
        else:
            yield good("store", "in memory: sessions end with the gateway")
    except StoreError as error:
        yield bad("store", f"{shown(url)}: {error}", "give the gateway's user +info, and what docs/deploying.md lists")
    finally:
        await backend.close()


def _of_redis(facts: RedisFacts) -> list[Finding]:
    found = [_clock(facts)]
    if facts.version < _OLDEST:
        found.append(bad("store version", f"{'.'.join(map(str, facts.version))} is too old", "use Redis 6.2 or later"))
    if facts.role != "master":
        do = "give the master's address, or use redis+sentinel://"
        found.append(bad("store role", "it is a replica, which takes no writes", do))
    found += [_eviction(facts), _persistence(facts)]
    if facts.memory_limit_bytes and facts.memory_bytes > facts.memory_limit_bytes * _FULL:
        share = facts.memory_bytes / facts.memory_limit_bytes
        do = "raise maxmemory: when it is full, no session can be opened"
        found.append(doubtful("store memory", f"{share:.0%} of maxmemory is in use", do))
    if facts.latency_s > _SLOW_S:
        state = bad if facts.latency_s > _TOO_SLOW_S else doubtful
        do = "put it into the gateways' network: each request waits for it, and after 1 s it is given up"
        found.append(state("store latency", f"an answer takes {facts.latency_s * 1_000:.1f} ms", do))
    return found


def _clock(facts: RedisFacts) -> Finding:
    off = facts.ahead_s
    if abs(off) < _CLOCK_S:
        return good("clock", "this machine's and the store's agree")
    which = f"the store's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this machine's"
    do = "let both follow a time server (chrony, systemd-timesyncd): sessions and tokens expire by them"
    return (bad if abs(off) > _CLOCK_BAD_S else doubtful)("clock", which, do)


def _eviction(facts: RedisFacts) -> Finding:
    if facts.eviction == "noeviction":
        return good("store eviction", "none: what is kept stays until it expires")
    if not facts.memory_limit_bytes:
        do = "set maxmemory-policy noeviction before somebody sets maxmemory"
        return doubtful("store eviction", f"maxmemory-policy is {facts.eviction}, without a maxmemory yet", do)
    what = f"maxmemory-policy is {facts.eviction}: sessions in use are thrown away when memory is short"
    return bad("store eviction", what, "set maxmemory-policy noeviction, and keep caches in another Redis")


def _persistence(facts: RedisFacts) -> Finding:
    if facts.persists:
        return good("store persistence", "on")
    if facts.persists is None:
        return doubtful("store persistence", "the server does not tell", "see that its restart keeps its data")
    what = "off: all sessions end when it restarts"
    return bad("store persistence", what, "set appendonly yes, or use a replica with redis+sentinel://")
