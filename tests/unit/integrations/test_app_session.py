"""The session of one request: when it is looked up, and when it is opened."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from gateway.integrations.app_session import AppSession, SessionNotLoaded
from session_store import NoSession, SessionGone
from session_store.context import current_session_id
from tests.requirements import requirement
from tests.unit.integrations.apps import Client, FailingStore, app_of, nothing

pytestmark = [pytest.mark.anyio, requirement("app.lazy")]


async def test_facts_are_there_once_the_session_is_loaded() -> None:
    async def facts(session: AppSession) -> str:
        for name in ("id", "principal", "agent", "context"):
            with pytest.raises(SessionNotLoaded, match=rf"{name}.*await session.load\(\)"):
                getattr(session, name)
        await session.state.increment("n")
        with pytest.raises(SessionNotLoaded):
            _ = session.id  # else it would depend on what this process remembers
        assert "not loaded" in repr(session)
        assert session.known_id and current_session_id() == session.known_id, "a log line may have it"
        loaded = await session.load()
        assert loaded is session and await session.load() is session
        return f"{session.id} {session.principal} {session.context.trust}"

    store = FailingStore()
    client = Client(app_of(facts, store=store))
    first, second = await client.get(), await client.get()
    assert first.body == second.body and first.body.endswith(b" anonymous direct") and len(store.sessions.records) == 1


async def test_what_reads_gives_nothing_without_a_session_and_what_writes_opens_one() -> None:
    async def read(session: AppSession) -> Any:
        state = session.state
        return [
            current_session_id() or await state.get("k"),
            await state.keys(),
            await state.delete("k"),
            await state.compare_and_set("k", 1, 2),
            dict(await session.metadata()),
        ]

    store = FailingStore()
    assert (await Client(app_of(read, store=store)).get()).body == b"[None, [], False, False, {}]"
    assert store.asked == 0

    async def write(session: AppSession) -> Any:
        await session.annotate({"team": "red"})
        await session.state.set("k", [1])
        return [await session.state.get("k"), await session.state.keys(), dict(await session.metadata())]

    assert (await Client(app_of(write, store=store)).get()).body == b"[[1], ['k'], {'team': 'red'}]"


async def test_concurrent_writes_of_one_request_open_one_session() -> None:
    async def many(session: AppSession) -> Any:
        return sorted(await asyncio.gather(*(session.state.increment("n") for _ in range(20))))[-1]

    store = FailingStore()
    client = Client(app_of(many, store=store))
    assert [(await client.get()).body for _ in range(2)] == [b"20", b"40"]
    assert len(store.sessions.records) == 1


async def test_after_the_response_has_begun_no_session_is_opened() -> None:
    app = app_of(nothing)
    inner = app._app

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        session = scope["mcp.session"]
        assert await session.state.get("k") is None
        with pytest.raises(NoSession, match="its response has begun"):
            await session.state.set("k", 1)
        await session.load()
        with pytest.raises(NoSession):
            _ = session.id

    app._app = late
    assert (await Client(app).get()).status == 200


async def test_a_session_that_ends_during_a_request_is_not_replaced_in_it() -> None:
    """Else one request would read from one session and write to another."""
    store = FailingStore()

    async def torn(session: AppSession) -> Any:
        await session.state.increment("n")
        for session_id in [kept.id for kept in store.sessions.records.scan()]:
            store.sessions.records.remove(session_id)
        with pytest.raises(SessionGone):
            await session.state.increment("n")
        with pytest.raises(SessionGone):
            await session.state.get("n")
        raise SessionGone("as a handler that does not catch it")

    client = Client(app_of(torn, store=store))
    assert (await client.get()).status == 404
    client.app = app_of(torn, store=store)
    assert (await client.get()).status == 404, "known or not"


@requirement("app.sign-out")
async def test_what_is_written_after_the_end_is_written_to_a_new_session() -> None:
    async def renew(session: AppSession) -> Any:
        await session.state.set("old", True)
        old = (await session.load()).id
        await session.end()
        assert await session.state.keys() == []
        await session.state.set("new", True)
        return old != (await session.load()).id and await session.state.keys()

    client = Client(app_of(renew))
    await client.get()
    held = client.cookie
    answer = await client.get()
    assert answer.body == b"['new']" and client.cookie not in ("", held)


async def test_a_request_leaves_nothing_for_the_garbage_collector() -> None:
    """A session and its scope name each other. At thousands of requests a second, collecting them costs a tenth."""
    held: list[weakref.ref[AppSession]] = []

    async def note(session: AppSession) -> None:
        held.append(weakref.ref(session))
        await session.state.get("k")

    client = Client(app_of(note))
    gc.disable()
    try:
        await client.get()
        assert held[0]() is None
    finally:
        gc.enable()


async def test_a_session_that_is_kept_beyond_its_request_is_not_looked_up_any_more() -> None:
    kept: list[AppSession] = []

    async def keep(session: AppSession) -> None:
        kept.append(session)

    async def count(session: AppSession) -> None:
        await session.state.increment("n")
        kept.append(session)

    store = FailingStore()
    client = Client(app_of(count, store=store))
    await client.get()
    assert await kept[0].state.get("n") == 1, "what was looked up works on"
    client.app = app_of(keep, store=store)
    await client.get()
    assert await kept[1].state.get("n") is None
    with pytest.raises(NoSession):
        await kept[1].state.set("n", 2)
