"""Check that a Redis server is fit to store sessions: version, role, eviction, persistence, latency and clock."""

from collections.abc import Mapping
from time import perf_counter, time
from typing import Final

from session_store.ports.backend import Observation
from session_store.ports.errors import StoreUnavailable
from session_store.redis.commands import Commands

_PINGS: Final = 20
_OLDEST: Final = (6, 2)
_SLOW_S: Final = 0.005
_TOO_SLOW_S: Final = 0.25
_FULL: Final = 0.8
_CLOCK_S: Final = 1.0
_CLOCK_BAD_S: Final = 5.0
"""Half of the 10 s for which a gateway accepts a value that another gateway has signed."""


def _ok(subject: str, text: str) -> Observation:
    return Observation(subject=subject, state="ok", text=text)


def _warning(subject: str, text: str, advice: str) -> Observation:
    return Observation(subject=subject, state="warning", text=text, advice=advice)


def _error(subject: str, text: str, advice: str) -> Observation:
    return Observation(subject=subject, state="error", text=text, advice=advice)


async def inspect(commands: Commands) -> list[Observation]:
    """Return what the operator should know about the server. Raises `StoreUnavailable`."""
    info = {
        name: value
        for line in bytes(await commands.run("INFO")).decode("utf-8", "replace").splitlines()
        for name, colon, value in [line.partition(":")]
        if colon
    }
    persistence = await _persistence(commands, info)
    durations = []
    for _ in range(_PINGS):
        began = perf_counter()
        await commands.run("PING")
        durations.append(perf_counter() - began)
    latency_s = min(durations)  # a busy machine makes the others late
    version = tuple(int(part) for part in info.get("redis_version", "0").split(".") if part.isdigit())
    shown = ".".join(map(str, version))
    found = [_ok("store", f"Redis {shown} answers in {latency_s * 1_000:.2f} ms"), await _clock(commands)]
    if version < _OLDEST:
        found.append(_error("store version", f"{shown} is too old", "use Redis 6.2 or later"))
    if info.get("role", "master") != "master":
        advice = "give the master's address, or use redis+sentinel://"
        found.append(_error("store role", "the server is a replica, which accepts no writes", advice))
    limit = int(info.get("maxmemory", 0))
    found += [_eviction(info.get("maxmemory_policy", "noeviction"), limit), persistence]
    share = int(info.get("used_memory", 0)) / limit if limit else 0.0
    if share > _FULL:
        advice = "raise maxmemory: when it is full, no session can be opened"
        found.append(_warning("store memory", f"{share:.0%} of maxmemory is in use", advice))
    if latency_s > _SLOW_S:
        state = _error if latency_s > _TOO_SLOW_S else _warning
        advice = "put it into the gateways' network: each request waits for it, and fails after 1 s"
        found.append(state("store latency", f"an answer takes {latency_s * 1_000:.1f} ms", advice))
    return found


async def _clock(commands: Commands) -> Observation:
    before = time()
    seconds, micros = await commands.run("TIME")
    ahead_s = int(seconds) + int(micros) / 1e6 - (before + time()) / 2
    if abs(ahead_s) < _CLOCK_S:
        return _ok("clock", "the clocks of this machine and the store agree")
    text = f"the store's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    advice = (
        "synchronize both with a time server (chrony, systemd-timesyncd): sessions and tokens expire by these clocks"
    )
    return (_error if abs(ahead_s) > _CLOCK_BAD_S else _warning)("clock", text, advice)


def _eviction(policy: str, memory_limit: int) -> Observation:
    if policy == "noeviction":
        return _ok("store eviction", "off: Redis keeps every session until it expires")
    if not memory_limit:
        advice = "set maxmemory-policy noeviction before maxmemory is set"
        return _warning("store eviction", f"maxmemory-policy is {policy}, without a maxmemory yet", advice)
    text = f"maxmemory-policy is {policy}: Redis deletes sessions that are in use when memory is short"
    return _error("store eviction", text, "set maxmemory-policy noeviction, and keep caches in another Redis")


async def _persistence(commands: Commands, info: Mapping[str, str]) -> Observation:
    saves = info.get("aof_enabled") == "1"
    if not saves:
        try:
            saved = await commands.run("CONFIG", "GET", "save")
        except StoreUnavailable:  # hosted servers often forbid CONFIG
            advice = "check that it keeps its data when it restarts"
            return _warning("store persistence", "the server does not report it", advice)
        saves = len(saved) > 1 and bool(saved[1])
    if saves:
        return _ok("store persistence", "on")
    text = "off: all sessions end when it restarts"
    return _error("store persistence", text, "set appendonly yes, or use a replica with redis+sentinel://")
