"""Check that a Redis server is fit to store sessions: version, role, eviction, persistence, latency and clock."""

import contextlib
from dataclasses import dataclass
from time import perf_counter, time
from typing import Final

from session_store.ports.backend import Observation
from session_store.ports.errors import StoreUnavailable
from session_store.redis.commands import Commands

__all__ = ["RedisFacts", "inspect", "look"]

_PINGS: Final = 20
_OLDEST: Final = (6, 2)
_SLOW_S: Final = 0.005
_TOO_SLOW_S: Final = 0.25
_FULL: Final = 0.8
_CLOCK_S: Final = 1.0
_CLOCK_BAD_S: Final = 5.0
"""Half of the 10 s for which a gateway accepts a value that another gateway has sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """Facts from a server's INFO, CONFIG and TIME, for the checks.

    `persists` is None if the server does not say. `latency_s` is the median of several answers. `ahead_s` is how far
    the server's clock is ahead of this machine's.
    """

    version: tuple[int, ...]
    role: str
    eviction: str
    memory_bytes: int
    memory_limit_bytes: int
    persists: bool | None
    latency_s: float
    ahead_s: float


async def look(commands: Commands) -> RedisFacts:
    """Read the facts of one server. Raises `StoreUnavailable`."""
    info = {
        name: value
        for line in bytes(await commands.run("INFO")).decode("utf-8", "replace").splitlines()
        for name, colon, value in [line.partition(":")]
        if colon
    }
    persists = True if info.get("aof_enabled") == "1" else None
    if persists is None:
        with contextlib.suppress(StoreUnavailable):  # hosted servers often forbid CONFIG
            saved = await commands.run("CONFIG", "GET", "save")
            persists = len(saved) > 1 and bool(saved[1])
    durations = []
    for _ in range(_PINGS):
        began = perf_counter()
        await commands.run("PING")
        durations.append(perf_counter() - began)
    before = time()
    seconds, micros = await commands.run("TIME")
    now = (before + time()) / 2
    return RedisFacts(
        version=tuple(int(part) for part in info.get("redis_version", "0").split(".") if part.isdigit()),
        role=info.get("role", "master"),
        eviction=info.get("maxmemory_policy", "noeviction"),
        memory_bytes=int(info.get("used_memory", 0)),
        memory_limit_bytes=int(info.get("maxmemory", 0)),
        persists=persists,
        latency_s=sorted(durations)[_PINGS // 2],
        ahead_s=int(seconds) + int(micros) / 1e6 - now,
    )


async def inspect(commands: Commands) -> list[Observation]:
    """Return what the operator should know about the server. Raises `StoreUnavailable`."""
    facts = await look(commands)
    answers = f"Redis {'.'.join(map(str, facts.version))} answers in {facts.latency_s * 1_000:.2f} ms"
    return [_ok("store", answers), *_findings(facts)]


def _ok(subject: str, text: str) -> Observation:
    return Observation(subject=subject, state="ok", text=text)


def _warning(subject: str, text: str, advice: str) -> Observation:
    return Observation(subject=subject, state="warning", text=text, advice=advice)


def _error(subject: str, text: str, advice: str) -> Observation:
    return Observation(subject=subject, state="error", text=text, advice=advice)


def _findings(facts: RedisFacts) -> list[Observation]:
    found = [_clock(facts)]
    if facts.version < _OLDEST:
        found.append(
            _error("store version", f"{'.'.join(map(str, facts.version))} is too old", "use Redis 6.2 or later")
        )
    if facts.role != "master":
        advice = "give the master's address, or use redis+sentinel://"
        found.append(_error("store role", "the server is a replica, which accepts no writes", advice))
    found += [_eviction(facts), _persistence(facts)]
    if facts.memory_limit_bytes and facts.memory_bytes > facts.memory_limit_bytes * _FULL:
        share = facts.memory_bytes / facts.memory_limit_bytes
        advice = "raise maxmemory: when it is full, no session can be opened"
        found.append(_warning("store memory", f"{share:.0%} of maxmemory is in use", advice))
    if facts.latency_s > _SLOW_S:
        state = _error if facts.latency_s > _TOO_SLOW_S else _warning
        advice = "put it into the gateways' network: each request waits for it, and fails after 1 s"
        found.append(state("store latency", f"an answer takes {facts.latency_s * 1_000:.1f} ms", advice))
    return found


def _clock(facts: RedisFacts) -> Observation:
    off = facts.ahead_s
    if abs(off) < _CLOCK_S:
        return _ok("clock", "the clocks of this machine and the store agree")
    text = f"the store's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this machine's"
    advice = (
        "synchronize both with a time server (chrony, systemd-timesyncd): sessions and tokens expire by these clocks"
    )
    return (_error if abs(off) > _CLOCK_BAD_S else _warning)("clock", text, advice)


def _eviction(facts: RedisFacts) -> Observation:
    if facts.eviction == "noeviction":
        return _ok("store eviction", "off: Redis keeps every session until it expires")
    if not facts.memory_limit_bytes:
        advice = "set maxmemory-policy noeviction before maxmemory is set"
        return _warning("store eviction", f"maxmemory-policy is {facts.eviction}, without a maxmemory yet", advice)
    text = f"maxmemory-policy is {facts.eviction}: Redis deletes sessions that are in use when memory is short"
    return _error("store eviction", text, "set maxmemory-policy noeviction, and keep caches in another Redis")


def _persistence(facts: RedisFacts) -> Observation:
    if facts.persists:
        return _ok("store persistence", "on")
    if facts.persists is None:
        return _warning(
            "store persistence", "the server does not report it", "check that it keeps its data when it restarts"
        )
    text = "off: all sessions end when it restarts"
    return _error("store persistence", text, "set appendonly yes, or use a replica with redis+sentinel://")
