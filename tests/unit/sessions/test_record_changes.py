"""Changes of a session's record: in the store and in the cached copy."""

import asyncio

import pytest

from gateway.calls.live_session import LiveSession
from gateway.protocol.shown_tool_hashes import NOTHING
from gateway.sessions.record_changes import SessionRecords
from session_store import StoreUnavailable
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.inbound.unauthenticated_limits import Limited, Refusals
from transports.inbound_port import Refused


async def test_a_change_is_in_the_store_and_in_the_cached_record_until_the_session_has_ended() -> None:
    parts = Parts()
    live = await parts.create()
    await parts.records.update(live, log_level="debug")
    assert (await parts.store.peek(live.session.id)).log_level == live.session.log_level == "debug"
    await parts.store.end(live.session.id)
    await parts.records.update(live, log_level="error")
    assert live.session.log_level == "debug"


async def test_a_link_is_told_from_a_second_one_and_from_one_after_a_loss() -> None:
    parts = Parts()
    live = await parts.create()
    assert [await parts.records.record_use(live, "a/modern") for _ in range(2)] == [False, False]
    again = LiveSession(live.session, parts.backend.events)
    assert await parts.records.record_use(again, "a/modern") and not await parts.records.record_use(again, "b/modern")
    await live.stop_servers()
    assert await parts.records.record_use(live, "a/modern")
    await parts.records.remote_session_changed(live, "", "one")
    await parts.records.remote_session_changed(live, "one", "two")
    assert live.session.remote == ("two",)


@requirement("live.tools-fixed")
async def test_what_a_session_was_shown_is_in_its_record_also_if_more_is_shown_meanwhile() -> None:
    parts = Parts()
    live = await parts.create()
    live.record_shown_tools(NOTHING.with_page("s", (("one", b"1" * 20),)))
    parts.records.remember_shown(live)
    live.record_shown_tools(live.shown.with_page("s", (("two", b"2" * 20),)))
    parts.records.remember_shown(live)
    await parts.records.settled()
    record = await parts.store.peek(live.session.id)
    assert record is not None and record.shown == live.session.shown == live.shown.text
    assert LiveSession(record, parts.backend.events).shown is live.shown

    await parts.store.end(live.session.id)
    live.record_shown_tools(live.shown.with_page("s", (("three", b"3" * 20),)))
    parts.records.remember_shown(live)
    await parts.records.settled()
    assert live.session.shown == record.shown, "a session that has ended has no record"


@requirement("live.tools-fixed")
async def test_what_was_shown_while_the_store_is_away_is_written_with_the_next_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts()
    live = await parts.create()

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable

    live.record_shown_tools(NOTHING.with_page("s", (("one", b"1" * 20),)))
    with monkeypatch.context() as patched:
        patched.setattr(parts.store, "update", away)
        parts.records.remember_shown(live)
        await parts.records.settled()
    assert live.session.shown == ""
    parts.records.remember_shown(live)
    await parts.records.settled()
    assert live.session.shown == live.shown.text


async def test_subscriptions_have_a_limit_also_for_those_that_come_together() -> None:
    parts = Parts()
    live, records = await parts.create(), SessionRecords(parts.store, refusals=Refusals(), most=400)
    uris = [f"a:{n}{'x' * 90}" for n in range(6)]
    answers = await asyncio.gather(*(records.subscribe(live, uri) for uri in uris), return_exceptions=True)
    kept = [uri for uri, answer in zip(uris, answers, strict=True) if answer is None]
    assert all(answer is None or isinstance(answer, Refused) for answer in answers)
    assert sorted(live.session.subscriptions) == kept and len(kept) == 4
    await records.subscribe(live, kept[0])
    for uri in kept:
        await records.unsubscribe(live, uri)
    await records.subscribe(live, uris[-1])
    assert [*live.session.subscriptions] == [uris[-1]]


async def test_the_parameters_of_initialize_have_a_limit() -> None:
    refusals = Refusals()
    records = SessionRecords(Parts().store, refusals=refusals, most=400)
    records.check_handshake(b"x" * 400)
    with pytest.raises(Refused):
        records.check_handshake(b"x" * 401)
    assert refusals == {Limited.RECORD: 1}
