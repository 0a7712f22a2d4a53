"""Keep sessions and their state in Redis: two hashes for each session, which expire with it, and an index in shards.

The index may be out of date, because using a session does not update it. So every reader of the index checks the
record.
"""

import asyncio
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from cachetools import LRUCache
from msgspec.structs import replace

from session_store.ports.errors import SessionGone, StoreUnavailable
from session_store.ports.sessions import Gone, SessionStatus, SetField
from session_store.ports.tool_state import (
    MAX_INTEGER,
    MAX_STATE_BYTES,
    check_key,
    check_total,
    check_value,
    not_an_integer,
    out_of_range,
)
from session_store.record import from_fields, to_field, to_fields
from session_store.redis import keys
from session_store.redis.commands import Commands, Prepared, Script, in_parts, prepared, script
from session_store.session import MAX_METADATA_BYTES, Principal, Session, too_large

STATUS_KEPT_S: Final = 3_600
_STATUSES_HELD: Final = 640
"""The most statuses in each shard of the index: in all about as many as in the memory store. There is a limit because
anonymous clients can end any number of sessions."""

_STATUS_PENDING_MS: Final = 2_000
"""Milliseconds for which `keys.last_status` is kept: longer than the index takes to record how the session ended."""

_ALIASES_HELD: Final = 10_000
_RECENT_HELD_BYTES: Final = 4 << 20
_SWEPT_AT_ONCE: Final = 200
_ASKED_AT_ONCE: Final = 256

_CREATE, _INDEX, _UNINDEX = script("create"), script("index"), script("unindex")
_RESUME, _PEEK, _OWNERS, _TOUCH = script("resume"), script("peek"), script("owners"), script("touch")
_UPDATE, _CHANGE_SET, _ANNOTATE = script("update"), script("change_set"), script("annotate")
_ALIAS, _END, _SETTLE = script("alias"), script("end"), script("settle")


@functools.lru_cache(maxsize=4_096)
def _resuming(session_id: str, now: str, version: int) -> Prepared:
    """Return the encoded `resume` call of a session, at the time `now`, by a caller whose copy of the record has this
    `version`. It is cached, because with the server's clock it is the same until the record changes."""
    return prepared(_RESUME, keys.of_session(session_id), now, "", version)


def _size_of(session: Session) -> int:
    """Return the approximate bytes that a session takes in memory, for the limit of the cache of sessions. Clients
    choose the length of some fields."""
    texts = (*session.subscriptions, *session.remote, *session.metadata.values(), session.shown)
    return 2_048 + len(session.client.initialize_params) + sum(map(len, texts))


class RedisSessionStore:
    """Store sessions in Redis. `clock` None: use the clock of the Redis server, which all replicas share."""

    def __init__(self, commands: Commands, *, clock: Callable[[], float] | None = None) -> None:
        self._commands = commands
        self._clock = clock
        # The session that each alias named last. An alias names another session only after that one is gone.
        self._named: LRUCache[str, str] = LRUCache(_ALIASES_HELD)
        # Records for callers without a copy of their own: requests for sessions that other replicas own.
        self._recent: LRUCache[str, Session] = LRUCache(_RECENT_HELD_BYTES, getsizeof=_size_of)

    @property
    def uses_server_clock(self) -> bool:
        """Return True if the clock of the Redis server decides which sessions have expired, as it does for Redis
        keys."""
        return self._clock is None

    def now(self) -> str:
        """Return the time as the first argument of scripts; an empty text if the script is to use the clock of the
        Redis server."""
        return "" if self._clock is None else repr(self._clock())

    async def on_record(self, script: Script, session_id: str, *arguments: Any) -> Any:
        """Run a script whose only key is the session's record, and return its reply."""
        return await self._commands.call(script, keys.of_session(session_id)[:1], self.now(), *arguments)

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        await self._write(session)
        if alias is None:
            return session
        stale, named = "", session.id
        for _ in range(10):
            milliseconds = math.ceil(session.max_age_s * 1_000)
            reply = await self._commands.call(_ALIAS, [keys.hashed("alias", alias)], session.id, milliseconds, stale)
            named = reply.decode()
            if named == session.id:
                return session
            other = self._record(await self._resume(named, ""))
            if other is not None:
                await self._commands.call(_UNINDEX, keys.shard_of(session.id), session.id)
                await self._commands.run("DEL", *keys.of_session(session.id))
                return other
            stale = named
        return session  # other callers claimed the alias each time: this session has none

    async def _write(self, session: Session) -> None:
        """Write the record and its index entry in one round trip, the record first. An entry without a record does no
        harm: `sweep` looks only at entries whose deadline has passed."""
        record, expires_at = itertools.chain.from_iterable(to_fields(session).items()), repr(session.expires_at)
        most_ms = math.ceil((session.max_age_s + STATUS_KEPT_S) * 1_000)
        await asyncio.gather(
            self.on_record(_CREATE, session.id, expires_at, *record),
            self._commands.call(_INDEX, keys.shard_of(session.id)[:2], session.id, expires_at, most_ms),
        )

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        uses_cache = known is None
        known = known or self._recent.get(session_id)
        if known is None or not known.confirmed or known.principal != principal:
            session = self._record(await self._resume(session_id, to_field(principal)))
        else:
            packed = _resuming(session_id, self.now(), known.version)
            reply = await self._commands.send(packed, _RESUME)
            if isinstance(reply, bytes):
                return replace(known, used_at=float(reply))
            session = self._record(reply)
        if uses_cache:
            self._recent.pop(session_id, None)
            if session is not None and _size_of(session) <= _RECENT_HELD_BYTES:
                self._recent[session_id] = session
        return session

    async def _resume(self, session_id: str, principal: bytes | str) -> Any:
        return await self._commands.call(_RESUME, keys.of_session(session_id), self.now(), principal, "")

    async def resume_alias(self, alias: str) -> Session | None:
        known = self._named.pop(alias, None)
        session = None if known is None else self._record(await self._resume(known, ""))
        if session is None and (named := await self._alias(alias)) is not None:
            session = self._record(await self._resume(named, ""))
        if session is not None:
            self._named[alias] = session.id
        return session

    async def named(self, alias: str) -> Session | None:
        session_id = await self._alias(alias)
        return None if session_id is None else await self.peek(session_id)

    async def _alias(self, alias: str) -> str | None:
        named = await self._commands.run("GET", keys.hashed("alias", alias))
        return None if named is None else named.decode()

    async def peek(self, session_id: str) -> Session | None:
        return self._record(await self.on_record(_PEEK, session_id))

    async def touch(self, session_id: str) -> bool:
        return bool(await self._commands.call(_TOUCH, keys.of_session(session_id), self.now()))

    async def update(self, session_id: str, *, if_version: int | None = None, **fields: object) -> Session | None:
        changes = itertools.chain.from_iterable((name, to_field(value)) for name, value in fields.items())
        version = "" if if_version is None else if_version
        return self._record(await self.on_record(_UPDATE, session_id, version, *changes))

    async def change_set(self, session_id: str, field: SetField, *, add: str = "", remove: str = "") -> Session | None:
        return self._record(await self.on_record(_CHANGE_SET, session_id, field, add, remove))

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        kept = {name: value for name, value in changes.items() if value is not None}
        removed = [name for name, value in changes.items() if value is None]
        pairs = itertools.chain.from_iterable(kept.items())
        reply = await self.on_record(_ANNOTATE, session_id, MAX_METADATA_BYTES, len(kept), *pairs, *removed)
        if isinstance(reply, int):
            raise too_large(reply)
        return self._record(reply)

    async def end(self, session_id: str) -> bool:
        ended = await self._commands.call(
            _END, [keys.last_status(session_id), *keys.of_session(session_id)], self.now(), _STATUS_PENDING_MS
        )
        if ended:
            try:
                await self._unindex(session_id, "ended")
            except StoreUnavailable as error:
                raise StoreUnavailable(*error.args) from error  # the session has ended
        return bool(ended)

    async def _unindex(self, session_id: str, status: str) -> bool:
        """Remove an ended session from the index, and record there how it ended (`status`). Of several callers, return
        True only to the one that has removed it."""
        facts = (session_id, self.now(), status, _STATUSES_HELD, STATUS_KEPT_S)
        return bool(await self._commands.call(_UNINDEX, keys.shard_of(session_id), *facts))

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        found: list[Session] = []
        while len(found) < limit:
            ids = await self._ids(after, limit)
            if not ids:
                break
            found += [session for session in await in_parts(self.peek, ids) if session is not None]
            after = ids[-1]
        return found[:limit]

    async def _ids(self, after: str, limit: int) -> list[str]:
        lowest = f"({after}" if after else "-"
        return sorted(await self._of_shards("ZRANGEBYLEX", 1, lowest, "+", "LIMIT", 0, limit))[:limit]

    async def _of_shards(self, command: str, place: int, *arguments: Any) -> list[str]:
        """Run a command on each shard of the index, on one key of it. Return the ids that the command finds in all
        shards. `place`: which of the keys that `keys.shard` returns."""
        shards = (self._commands.run(command, keys.shard(n)[place], *arguments) for n in range(keys.SHARDS))
        return [name.decode() for part in await asyncio.gather(*shards) for name in part]

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        found = await self._owners(session_ids)
        return [session_id for session_id, owner in zip(session_ids, found, strict=True) if not owner]

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return for each of these sessions the name of its owner (empty: none) and its epoch, in order; None for a
        session that is not live."""
        found = await self._owners(session_ids)
        return [(msgspec.json.decode(owner[1], type=str), int(owner[0])) if owner else None for owner in found]

    async def _owners(self, session_ids: Sequence[str]) -> list[Any]:
        """Return [epoch, owner] of each session, encoded as in its record; None for a session that is not live."""
        records = [keys.of_session(session_id)[0] for session_id in session_ids]
        asked = [
            some
            for part in range(0, len(records), _ASKED_AT_ONCE)
            for some in self._commands.together(records[part : part + _ASKED_AT_ONCE])
        ]
        replies = await in_parts(lambda some: self._commands.call(_OWNERS, some, self.now()), asked)
        return [owner for reply in replies for owner in reply]

    async def status(self, session_id: str) -> SessionStatus:
        if await self.peek(session_id) is not None:
            return "live"
        kept = await self._commands.run("GET", keys.last_status(session_id))
        if kept is not None:
            return cast("SessionStatus", kept.decode())
        deadlines, _, statuses = keys.shard_of(session_id)
        if await self._commands.run("ZSCORE", deadlines, session_id) is not None:
            return "expired"
        became: tuple[SessionStatus, ...] = ("ended", "expired")
        for status in became:
            if await self._commands.run("ZSCORE", statuses, f"{session_id}:{status}") is not None:
                return status
        return "unknown"

    async def sweep(self) -> list[Gone]:
        now = self.now()
        if not now:
            seconds, micros = await self._commands.run("TIME")
            now = repr(int(seconds) + int(micros) / 1_000_000)
        ids = await self._of_shards("ZRANGEBYSCORE", 0, "-inf", now, "LIMIT", 0, _SWEPT_AT_ONCE)
        settled = await in_parts(self._settle, ids)
        return [gone for gone in settled if gone is not None]

    async def _settle(self, session_id: str) -> Gone | None:
        """Handle a session whose deadline in the index has passed. If it was used since, write its new deadline into
        the index. Otherwise end it. Return `Gone` to one caller if it has expired, None in all other cases."""
        outcome = await self._commands.call(
            _SETTLE, [keys.last_status(session_id), *keys.of_session(session_id)], self.now(), _STATUS_PENDING_MS
        )
        if outcome not in (b"ended", b"expired"):
            await self._commands.run("ZADD", keys.shard_of(session_id)[0], "XX", outcome, session_id)
            return None
        removed = await self._unindex(session_id, outcome.decode())
        return Gone(session_id=session_id, reason="expired") if removed and outcome == b"expired" else None

    @staticmethod
    def _record(reply: Any) -> Session | None:
        if reply is None:
            return None
        pairs = iter(reply)
        return from_fields({name.decode(): value for name, value in zip(pairs, pairs, strict=True)})


_STATE: Final = script("state")


class RedisStateStore:
    """Store the state of sessions in Redis: values by session and key."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._sessions = sessions

    async def get(self, session_id: str, key: str) -> bytes | None:
        encoded = check_key(key)
        if self._sessions.uses_server_clock:
            # State is deleted and expires together with its session's record, so an existing value belongs to a live
            # session. Only for a missing value, a script has to look for the session.
            value = await self._commands.run("HGET", keys.of_session(session_id)[1], encoded)
            if value is not None:
                return bytes(value)
        value = await self._call(session_id, "get", encoded)
        return None if value is None else bytes(value)

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        await self._call(session_id, "set", check_key(key), check_value(key, value))

    async def delete(self, session_id: str, key: str) -> bool:
        return bool(await self._call(session_id, "delete", check_key(key)))

    async def increment(self, session_id: str, key: str, by: int) -> int:
        if abs(by) > MAX_INTEGER:
            raise out_of_range(key)
        return int(await self._call(session_id, "increment", check_key(key), by))

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        new = b"" if value is None else check_value(key, value)
        arguments = (int(expected is not None), expected or b"", int(value is not None), new)
        return bool(await self._call(session_id, "compare_and_set", check_key(key), *arguments))

    async def keys(self, session_id: str) -> list[str]:
        return sorted(key.decode() for key in await self._call(session_id, "keys"))

    async def size(self, session_id: str) -> int:
        return int(await self._call(session_id, "size"))

    async def _call(self, session_id: str, operation: str, key: bytes = b"", *arguments: Any) -> Any:
        """Run an operation on the state of a session, and return its result. `operation`: its name in the Lua script.
        `key` is empty for an operation on all keys.

        Raises:
            SessionGone: the session is not live.
            InvalidState: the operation is refused, and nothing was changed.
        """
        reply = await self._commands.call(
            _STATE, keys.of_session(session_id)[:2], self._sessions.now(), MAX_STATE_BYTES, operation, key, *arguments
        )
        match reply[0]:
            case b"ok":
                return reply[1] if len(reply) > 1 else None
            case b"gone":
                raise SessionGone(session_id)
            case b"large":
                check_total(key.decode(), reply[1])
            case b"range":
                raise out_of_range(key.decode())
        raise not_an_integer(key.decode())
