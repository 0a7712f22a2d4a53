"""Keep timelines, and the history of metrics, in Redis, for all replicas."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

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
    timeline_of,
)
from session_store.redis import keys
from session_store.redis.commands import RedisPart, in_parts, prepared, script

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


_ADD: Final = script("timeline")
_FIELDS: Final = ("facts", "calls", "failed", "ended", "ended_at", "updated_at")
_KEPT_MS: Final = int(KEPT_S * 1_000)
_heads: Final = msgspec.json.Decoder(TimelineHead)


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
        _heads.decode(facts),
        calls=int(calls or 0),
        failed=int(failed or 0),
        ended=(ended or b"").decode(),
        ended_at=float(ended_at or 0.0),
        updated_at=float(updated_at or 0.0),
    )
