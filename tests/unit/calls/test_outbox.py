"""Messages on their way to the standalone stream of a session."""

import asyncio
from typing import cast

import pytest

from gateway.calls import outbox
from gateway.calls.outbox import MAX_MESSAGES, Outbox
from gateway.calls.streams import STANDALONE
from session_store import EventLog, StoreUnavailable
from transports.reply_queue import MAX_QUEUED_BYTES

pytestmark = pytest.mark.anyio


class Events:
    """A log whose appends wait until they may go on."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.begun = asyncio.Event()
        self.may_append = asyncio.Event()
        self.failures = 0

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        assert (session_id, stream) == ("session", STANDALONE)
        self.begun.set()
        await self.may_append.wait()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("it is gone")
        self.frames.append(frame)
        return str(len(self.frames))

    @property
    def log(self) -> EventLog:
        return cast("EventLog", self)


async def appended(events: Events, count: int) -> None:
    async with asyncio.timeout(5.0):
        while len(events.frames) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_messages_keep_their_order() -> None:
    events = Events()
    box = Outbox("session", events.log)
    assert all(box.put(b"%d" % number) for number in range(5))
    events.may_append.set()
    await appended(events, 5)
    assert box.put(b"5")
    await appended(events, 6)
    assert events.frames == [b"%d" % number for number in range(6)]
    await box.close()


async def test_a_message_that_the_store_has_failed_is_appended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_RETRY_S", 0.0)
    events = Events()
    events.failures = 2
    events.may_append.set()
    box = Outbox("session", events.log)
    assert box.put(b"a") and box.put(b"b")
    await appended(events, 2)
    assert events.frames == [b"a", b"b"]


async def test_no_more_waits_than_may() -> None:
    box = Outbox("session", Events().log)
    assert all(box.put(b"") for _ in range(MAX_MESSAGES)) and not box.put(b"")
    large = Outbox("session", Events().log)
    assert large.put(bytes(MAX_QUEUED_BYTES + 1)) and not large.put(b"x")
    await box.close()
    await large.close()


async def test_a_close_lets_the_append_under_way_end_and_begins_no_other() -> None:
    events = Events()
    box = Outbox("session", events.log)
    box.put(b"a")
    box.put(b"b")
    await events.begun.wait()
    box.stop()
    assert not box.put(b"c")
    events.may_append.set()
    await box.close()
    await box.close()
    assert events.frames == [b"a"]
