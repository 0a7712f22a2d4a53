"""Keep event streams in Redis. Each session has one Redis stream; each entry in it names the event stream to which it
belongs."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from session_store.embedded.events import sequence_of
from session_store.ports.errors import StoreError, StoreUnavailable, UnknownEvent, UnwrittenEvent
from session_store.ports.events import MAX_LOG_BYTES, MAX_LOG_EVENTS, Entry, Event, Reserved, id_of_event, numbers_of
from session_store.ports.replica_directory import Bus
from session_store.redis import keys
from session_store.redis.commands import Commands, Prepared, prepared, script
from session_store.redis.connection import NOT_EXECUTED, ServerError

_APPEND, _WRITE, _RESERVE = script("append"), script("write"), script("reserve")
_LOG, _DELIVERED, _TAKE = script("log"), script("delivered"), script("take_request")
_END: Final = "1"
_LAST_EVENT: Final = "2"
"""Values of an entry that ends its event stream: `_END` is not an event itself, `_LAST_EVENT` is the last event."""
_ENDS: Final = frozenset({_END, _LAST_EVENT})
_REQUEST: Final = "3"
"""Value of an entry that is not an event, but a request that is stored with the event before it."""
_OF_REQUEST: Final = b"r:"
"""Prefix of a field in the log that has the request of a stream. The name of the stream follows."""
_ORPHAN_MS: Final = 3_600_000
"""Milliseconds for which a log is kept whose session is not in this store."""
_POLL_S: Final = 5.0
"""Seconds after which a follower reads the log without a message on the bus, because messages can be lost."""


class RedisEventLog:
    """Store event streams in Redis. `max_events` and `max_bytes` limit the log of each session."""

    def __init__(
        self, commands: Commands, bus: Bus, *, max_events: int = MAX_LOG_EVENTS, max_bytes: int = MAX_LOG_BYTES
    ) -> None:
        self._commands = commands
        self._bus = bus
        self._max_events = max_events
        self._max_bytes = max_bytes

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        return await self._append(session_id, stream, frame, "")

    async def finish(self, session_id: str, stream: str) -> None:
        await self._append(session_id, stream, b"", _END)

    async def _append(self, session_id: str, stream: str, frame: bytes, ends: str) -> str:
        session, _, events, log = keys.of_session(session_id)
        appended = await self._commands.call(
            _APPEND, [session, events, log], *self._about(session_id, _nonce()), stream, frame, ends
        )
        return str(appended.decode())

    def _about(self, session_id: str, nonce: str) -> tuple[int, int, str, int, str]:
        """Return the first arguments of the Lua scripts that add events to a session's log. If the session has no log
        yet, the new log gets `nonce`."""
        return self._max_events, self._max_bytes, nonce, _ORPHAN_MS, _topic(session_id)

    async def reserve(self, session_id: str, count: int, epoch: int = 0) -> Reserved | None:
        session, _, _, log = keys.of_session(session_id)
        reserved = await self._commands.call(_RESERVE, [session, log], _nonce(), count, _ORPHAN_MS, *numbers_of(epoch))
        return Reserved(reserved[0].decode(), reserved[1]) if reserved else None

    async def write(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        written = {session_id: events for session_id, events in entries.items() if events}
        failures = await self._commands.send_all([self._written(*of_session) for of_session in written.items()], _WRITE)
        return {
            session_id: StoreError(str(failure)) if refuses_always(failure) else failure
            for session_id, failure in zip(written, failures, strict=True)
            if failure is not None
        }

    def part_of(self, session_id: str) -> Hashable:
        return self._commands.node_of(keys.of_session(session_id)[0])

    def _written(self, session_id: str, entries: Sequence[Entry]) -> Prepared:
        """Return the script call that writes these events of one session."""
        session, _, events, log = keys.of_session(session_id)
        arguments: list[int | str | bytes] = [*self._about(session_id, entries[0].nonce or _nonce())]
        for number, stream, frame, ends, _, request in entries:
            arguments += (number, stream, frame, "" if not ends else _LAST_EVENT if frame else _END)
            if request:
                arguments += (number, stream, request, _REQUEST)
        return prepared(_WRITE, [session, events, log], *arguments)

    async def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        news = asyncio.Event()
        dropped = False

        def receive(data: bytes | None) -> None:
            nonlocal dropped
            dropped = dropped or data == b"d"
            news.set()

        async with self._bus.subscribed(_topic(session_id), receive):
            nonce, last = await self._log(session_id, stream)
            try:
                position = last if after is None else sequence_of(nonce, after)
            except UnknownEvent:
                return  # the log was dropped after the caller got that id
            read = await self._read_before(session_id, stream, position)
            while True:
                news.clear()
                for entry in await self._entries(session_id, read):
                    read = entry.number
                    if entry.stream == stream:
                        if entry.number > position and entry.ends != _END:
                            yield Event(id=id_of_event(nonce, entry.number), frame=entry.frame)
                        if entry.ends in _ENDS:
                            return
                if dropped or (await self._log(session_id, stream))[0] != nonce:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await news.wait()

    async def _read_before(self, session_id: str, stream: str, position: int) -> int:
        """Return the number in the log after which a follower of the stream begins to read. If the stream has an event
        at `position`, the follower reads that event again, to see whether it ended the stream. Otherwise return 0: a
        client chose `position`, so the end of the stream may be anywhere."""
        events = keys.of_session(session_id)[2]
        for found in await self._commands.run("XRANGE", events, f"{position}-0", f"{position}-0"):
            if _entry(*found).stream == stream:
                return position - 1
        return 0

    async def _entries(self, session_id: str, after: int) -> list["_Logged"]:
        found = await self._commands.run("XRANGE", keys.of_session(session_id)[2], f"{after + 1}-0", "+")
        return [_entry(*each) for each in found]

    async def _log(self, session_id: str, stream: str) -> tuple[str, int]:
        """Return the nonce of the session's log, and the number of the stream's last delivered event. Create the log if
        it is missing."""
        session, _, _, log = keys.of_session(session_id)
        nonce, last = await self._commands.call(_LOG, [session, log], _nonce(), _ORPHAN_MS, stream)
        return nonce.decode(), int(last or 0)

    async def kept(self, session_id: str, stream: str, after: str) -> list[Event]:
        nonce, _ = await self._log(session_id, stream)
        entries = await self._entries(session_id, sequence_of(nonce, after))
        return [
            Event(id=id_of_event(nonce, entry.number), frame=entry.frame)
            for entry in entries
            if entry.stream == stream and entry.ends != _END
        ]

    async def stream_of(self, session_id: str, event_id: str) -> str:
        _, _, events, log = keys.of_session(session_id)
        nonce, last = await self._commands.run("HMGET", log, "nonce", "last")
        if nonce is None:
            raise UnknownEvent(event_id)
        number = sequence_of(nonce.decode(), event_id)
        for found in await self._commands.run("XRANGE", events, f"{number}-0", f"{number}-0"):
            entry = _entry(*found)
            if entry.ends != _END:
                return entry.stream
        first = [entry for entry, _ in await self._commands.run("XRANGE", events, "-", "+", "COUNT", 1)]
        if number <= int(last or 0) and (not first or number > int(first[0].partition(b"-")[0])):
            raise UnwrittenEvent(event_id)
        raise UnknownEvent(event_id)

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        open_streams: set[str] = set()
        for entry in await self._entries(session_id, 0):
            change = open_streams.discard if entry.ends in _ENDS else open_streams.add
            change(entry.stream)
        fields = await self._commands.run("HKEYS", keys.of_session(session_id)[3]) if open_streams else ()
        return {stream: _OF_REQUEST + stream.encode() in fields for stream in sorted(open_streams)}

    async def take_request(self, session_id: str, stream: str) -> bytes:
        taken = await self._commands.call(_TAKE, [keys.of_session(session_id)[3]], stream)
        return bytes(taken or b"")

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        nonce, _ = await self._log(session_id, stream)
        number = sequence_of(nonce, event_id)
        await self._commands.call(_DELIVERED, [keys.of_session(session_id)[3]], stream, number)

    async def drop(self, session_id: str) -> None:
        await self._commands.run("DEL", *keys.of_session(session_id)[2:])
        await self._bus.publish(_topic(session_id), b"d")

    async def release(self, session_id: str) -> None:
        """Do nothing: events are stored at once, not buffered."""


class _Logged(NamedTuple):
    """An entry of a session's log in Redis. `ends`: `_END` or `_LAST_EVENT` if the entry ends its stream; otherwise
    neither of them."""

    number: int
    stream: str
    frame: bytes
    ends: str


def _entry(entry_id: bytes, values: Sequence[bytes]) -> _Logged:
    _, stream, _, frame, _, ends = values  # each value comes after its name
    return _Logged(int(entry_id.partition(b"-")[0]), stream.decode(), frame, ends.decode())


def _topic(session_id: str) -> str:
    return f"mcp:{{{session_id}}}:news"


_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)


def _nonce() -> str:
    return _random.randbytes(4).hex()


_PASSING: Final = NOT_EXECUTED | {"NOPERM"}
"""Codes of errors that are temporary, or that the server's operator can repair."""
_OF_SCRIPTS: Final = ("user_script", "unning script", "Protocol error", "ERR The ID", "ERR Invalid stream ID")


def refuses_always(failure: StoreUnavailable) -> bool:
    """Return True if Redis would refuse this script call again, because of its arguments or the data at its keys.

    Redis 6 puts the error of a command into the text of the script's own error, so the whole text is searched for a
    code. An unknown error may come from a proxy that cannot reach Redis: a retry may succeed.
    """
    if not isinstance(failure.__cause__, ServerError):
        return False
    text = str(failure.__cause__)
    codes = set(text.replace("-", " ").split())
    if codes & _PASSING:
        return False
    return "WRONGTYPE" in codes or (text.startswith("ERR ") and any(words in text for words in _OF_SCRIPTS))
