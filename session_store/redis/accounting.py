"""Keep rates, quotas, expiring flags, sealed values, the audit trail, timelines and the history of metrics in Redis,
for all replicas."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from session_store.ports.audit import MAX_AUDIT_EVENTS, PARTS, AuditEvent, Part, by_part, newest
from session_store.ports.timelines import (
    KEPT_S,
    MAX_ENTRIES,
    MAX_SESSIONS,
    MAX_TIMELINE_BYTES,
    STEPS,
    HistoryRecord,
    Timeline,
    TimelineHead,
    TimelinePart,
    head_of,
    timeline_of,
)
from session_store.redis import keys
from session_store.redis.commands import Commands, RedisPart, in_parts, prepared, script
from session_store.redis.sessions import RedisSessionStore

_RATE: Final = script("rate")


class RedisRates:
    """Limit rates for all replicas. Each key has one number, which a Lua script reads and changes."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._sessions = sessions

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        limits = (repr(1.0 / per_s), burst, times, within_s)
        reply = await self._commands.call(_RATE, [keys.hashed("rate", key)], self._sessions.now(), *limits)
        return float(reply)


_HOLD: Final = script("hold")


class RedisQuotas(RedisPart):
    """Limit how many names (of things in use) are held under each key, for all replicas. The names of a key are in one
    Redis set, which expires."""

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        reply = await self._commands.call(_HOLD, [keys.hashed("quota", key)], name, most, math.ceil(for_s * 1_000))
        return sorted(held.decode() for held in reply)

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        if names:
            await self._commands.run("SREM", keys.hashed("quota", key), *names)


class RedisExpiringFlags(RedisPart):
    """Store flags as Redis keys that expire."""

    async def set(self, name: str, for_s: float) -> None:
        await self._commands.run("SET", keys.hashed("mark", name), "1", "PX", math.ceil(for_s * 1_000))

    async def has(self, name: str) -> bool:
        return await self._commands.run("GET", keys.hashed("mark", name)) is not None

    async def drop(self, name: str) -> None:
        await self._commands.run("DEL", keys.hashed("mark", name))


_REPLACE: Final = script("replace")


class RedisSealedValues(RedisPart):
    """Store values as Redis keys that expire. The name of a removed value stays in the list of names until the value
    would have expired: the list is in another slot, so removing the name there could hit a newer value of that name."""

    async def get(self, name: str) -> bytes | None:
        found: bytes | None = await self._commands.run("GET", keys.hashed("sealed", name))
        return found

    async def replace(self, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0) -> bool:
        if after is not None:
            now = self._clock()
            await self._commands.run("ZREMRANGEBYSCORE", keys.SEALED, "-inf", now)
            await self._commands.run("ZADD", keys.SEALED, "GT", now + for_s, name)
        key, for_ms = keys.hashed("sealed", name), math.ceil(for_s * 1_000)
        return bool(await self._commands.call(_REPLACE, [key], before or b"", after or b"", for_ms))

    async def names(self) -> list[str]:
        return [name.decode() for name in await self._commands.run("ZRANGE", keys.SEALED, 0, -1)]


_AUDIT_KEPT_S: Final = 30 * 86_400
_EVENTS_AT_ONCE: Final = 200
_RECORD: Final = script("record")


class RedisAuditTrail(RedisPart):
    """Store the newest audit events of all replicas, in one Redis stream of limited length for each part of the
    trail."""

    async def record(self, events: Sequence[AuditEvent]) -> None:
        for part, found in by_part(events).items():
            bodies = [msgspec.json.encode(event) for event in found]
            for start in range(0, len(bodies), _EVENTS_AT_ONCE):
                some = bodies[start : start + _EVENTS_AT_ONCE]
                await self._commands.call(_RECORD, [keys.audit(part)], MAX_AUDIT_EVENTS, _AUDIT_KEPT_S, *some)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        return newest(await asyncio.gather(*(self._newest(part, limit) for part in PARTS)), limit)

    async def _newest(self, part: Part, limit: int) -> list[AuditEvent]:
        entries = await self._commands.run("XREVRANGE", keys.audit(part), "+", "-", "COUNT", limit)
        return [msgspec.json.decode(body, type=AuditEvent) for _, (_, body) in entries]


_ADD: Final = script("timeline")
_FIELDS: Final = ("facts", "calls", "failed", "ended", "ended_at", "updated_at")
_KEPT_MS: Final = int(KEPT_S * 1_000)


class RedisTimelines(RedisPart):
    """Store the timelines of the sessions of all replicas."""

    async def add(self, parts: Sequence[TimelinePart]) -> None:
        if not parts:
            return
        now = self._clock()
        await in_parts(lambda part: self._add(part, now), parts)
        places = [value for part in parts for value in (now, part.head.session)]
        await self._commands.run("ZADD", keys.TIMELINES, *places)
        await self._commands.run("ZREMRANGEBYSCORE", keys.TIMELINES, "-inf", f"({now - KEPT_S}")
        await self._commands.run("PEXPIRE", keys.TIMELINES, _KEPT_MS)
        over = await self._commands.run("ZRANGE", keys.TIMELINES, 0, -1 - MAX_SESSIONS)
        if over:
            await in_parts(lambda name: self._commands.run("DEL", *keys.timeline(name.decode())), over)
            await self._commands.run("ZREM", keys.TIMELINES, *over)

    async def _add(self, part: TimelinePart, now: float) -> None:
        head = part.head
        facts = replace(head, calls=0, failed=0, ended="", ended_at=0.0, updated_at=0.0)
        given = (
            *(msgspec.json.encode(facts), "1" if head.principal else "", head.calls, head.failed),
            *(head.ended, repr(head.ended_at), repr(now), MAX_ENTRIES, MAX_TIMELINE_BYTES, _KEPT_MS),
            *(msgspec.json.encode(entry) for entry in part.entries),
        )
        await self._commands.send(prepared(_ADD, keys.timeline(head.session), *given), _ADD)

    async def read(self, session: str) -> Timeline | None:
        facts, entries = keys.timeline(session)
        found, lines = await asyncio.gather(
            self._commands.run("HMGET", facts, *_FIELDS), self._commands.run("LRANGE", entries, 0, -1)
        )
        return None if found[0] is None else timeline_of(_head(found), lines)

    async def names(self, begins: str) -> list[str]:
        found = await self._commands.run("ZRANGE", keys.TIMELINES, 0, -1)
        return sorted(name.decode() for name in found if name.startswith(begins.encode()))

    async def newest(self, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        names = await self._commands.run("ZREVRANGE", keys.TIMELINES, skip, skip + limit - 1)
        found = await in_parts(
            lambda name: self._commands.run("HMGET", keys.timeline(name.decode())[0], *_FIELDS), names
        )
        return [_head(values) for values in found if values[0] is not None]


def _head(values: Sequence[Any]) -> TimelineHead:
    facts, calls, failed, ended, ended_at, updated_at = values
    return replace(
        head_of(facts),
        calls=int(calls or 0),
        failed=int(failed or 0),
        ended=(ended or b"").decode(),
        ended_at=float(ended_at or 0.0),
        updated_at=float(updated_at or 0.0),
    )


_STEPS_A_HASH: Final = 60


class RedisHistory(RedisPart):
    """Store history records by time and replica. One Redis hash has the records of all replicas for a stretch of
    `_STEPS_A_HASH` steps; a step is the period of one record."""

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        stretch_s = step_s * _STEPS_A_HASH
        key = keys.history(step_s, record.at // stretch_s)
        await self._commands.run("HSET", key, f"{record.at}:{record.replica}", record.body)
        await self._commands.run("EXPIRE", key, int(STEPS[step_s] + stretch_s))

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        stretch_s = step_s * _STEPS_A_HASH
        found = []
        for stretch in range(since // stretch_s, (until - 1) // stretch_s + 1):
            flat = await self._commands.run("HGETALL", keys.history(step_s, stretch))
            for field, body in zip(flat[::2], flat[1::2], strict=True):
                at, _, replica = field.decode().partition(":")
                if since <= int(at) < until:
                    found.append(HistoryRecord(int(at), replica, body))
        return sorted(found)
