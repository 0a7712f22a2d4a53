"""A session gets another id, or another owner, when the app says so. What may have changed it is not to be repeated."""

import asyncio
from typing import Any

import pytest

from gateway.integrations.app_session import AppSession
from gateway.integrations.session_middleware import SessionMiddleware
from session_store import MISSING, InvalidMetadata, InvalidState, StoreUnavailable
from tests.requirements import requirement
from tests.unit.calls.parts import turns
from tests.unit.integrations.apps import KEY, Answer, Client, FailingStore, app_of, count

pytestmark = requirement("app.rotate")


async def test_a_session_gets_a_new_id_with_all_that_is_in_it_and_the_old_one_leads_nowhere() -> None:
    async def handler(session: AppSession) -> Any:
        if rotates:
            await session.annotate({"team": "red"})
            await session.rotate()
        return await session.state.increment("visits"), dict(await session.metadata()), session.id

    store, rotates = FailingStore(), False
    client = Client(app_of(handler, store=store))
    assert (await client.get()).body.startswith(b"(1, {}")
    [before] = store.sessions.records.scan()
    old, rotates = client.cookie, True
    answer = await client.get()
    [after] = store.sessions.records.scan()
    assert answer.body == f"(2, {{'team': 'red'}}, {after.id!r})".encode() and client.cookie != old
    assert after.id != before.id and (after.created_at, after.principal) == (before.created_at, before.principal)
    rotates, stolen = False, Client(client.app)
    stolen.cookie = old
    assert (await stolen.get()).body.startswith(b"(1, {}"), "a new session"
    assert (await client.get()).body.startswith(b"(3, ")


async def test_at_sign_in_a_session_goes_to_the_user_whom_the_app_names_and_without_a_session_nothing_does() -> None:
    async def handler(session: AppSession) -> Any:
        if signs_in:
            await session.rotate("alice")
        return await session.state.get("visits", 0) if signs_in else await session.state.increment("visits")

    user, signs_in, store = "", False, FailingStore()
    client = Client(app_of(handler, store=store, principal=lambda scope: user))
    await client.get()
    signs_in = True
    assert (await client.get()).body == b"1"
    signs_in, user = False, "alice"
    assert (await client.get()).body == b"2"
    user = "mallory"
    assert (await client.get()).body == b"1", "not hers"
    signs_in, known = True, len(list(store.sessions.records.scan()))
    assert not (await Client(client.app).get()).header("set-cookie")
    assert len(list(store.sessions.records.scan())) == known


async def test_a_session_that_cannot_be_moved_whole_stays_where_it_is() -> None:
    async def handler(session: AppSession) -> Any:
        if await session.state.increment("visits") > 1:
            store.state.set = cut_off  # type: ignore[method-assign, assignment]  # a store that fails
            await session.rotate()

    async def cut_off(*_: Any) -> None:
        raise StoreUnavailable("cut off")

    store = FailingStore()
    client = Client(app_of(handler, store=store))
    await client.get()
    [before] = store.sessions.records.scan()
    assert (await client.get()).status == 504, "the visit is counted"
    assert [session.id for session in store.sessions.records.scan()] == [before.id]


async def test_a_session_whose_old_id_has_ended_without_an_answer_goes_on_under_the_new_one() -> None:
    async def handler(session: AppSession) -> Any:
        if await session.state.increment("visits") == 2:
            store.sessions.end = lost  # type: ignore[method-assign]  # a store that loses an answer
            await session.rotate()
        return await session.state.get("visits")

    async def lost(session_id: str) -> bool:
        store.sessions.end = end  # type: ignore[method-assign]
        await end(session_id)
        raise StoreUnavailable("no answer")

    store = FailingStore()
    end = store.sessions.end
    client = Client(app_of(handler, store=store))
    await client.get()
    before = client.cookie
    assert [(await client.get()).body for _ in range(2)] == [b"2", b"3"] and client.cookie != before
    assert len(list(store.sessions.records.scan())) == 1


CHANGES: dict[str, Any] = {
    "increment": count,
    "set": lambda session: session.state.set("k", 1),
    "delete": lambda session: session.state.delete("visits"),
    "compare_and_set": lambda session: session.state.compare_and_set("visits", 1, 2),
    "compare_and_set of nothing": lambda session: session.state.compare_and_set("k", MISSING, 2),
    "annotate": lambda session: session.annotate({"team": "red"}),
    "rotate": lambda session: session.rotate(),
    "end": lambda session: session.end(),
}
READS: dict[str, Any] = {
    "get": lambda session: session.state.get("visits"),
    "keys": lambda session: session.state.keys(),
    "metadata": lambda session: session.metadata(),
}


def is_unknown(answer: Answer) -> bool:
    """Whether the answer says so, and does not ask for another try. Otherwise it does ask for it."""
    if answer.status == 504:
        assert not answer.header("retry-after") and b"effect is unknown" in answer.body and b"gain" not in answer.body
        return True
    assert answer.status == 503 and answer.header("retry-after") == "1" and b"Try again" in answer.body
    return False


@requirement("app.outage")
@pytest.mark.parametrize("status", [0, 500], ids=["raises", "answers 500"])
@pytest.mark.parametrize("name", [*CHANGES, *READS])
async def test_after_a_change_without_an_answer_the_outcome_is_unknown(name: str, status: int) -> None:
    async def handler(session: AppSession) -> Any:
        await session.load()
        store.loses_answers = True
        try:
            return await (CHANGES | READS)[name](session)
        except StoreUnavailable as error:
            assert error.may_have_taken_effect
            if not status:
                raise

    store = FailingStore()
    client = Client(app_of(count, store=store))
    await client.get()
    client.app = app_of(handler, store=store, status=status or 200)
    assert is_unknown(await client.get()) is (name in CHANGES)


@requirement("app.outage")
async def test_what_was_not_sent_can_be_repeated_unless_the_request_has_changed_its_session_before() -> None:
    async def handler(session: AppSession) -> Any:
        await session.load()
        if changes_before:
            await count(session)
        store.is_cut_off = True
        with pytest.raises(StoreUnavailable) as failed:
            await count(session)
        assert not failed.value.may_have_taken_effect
        return await session.state.get("visits")

    store = FailingStore()
    client = Client(app_of(count, store=store))
    await client.get()
    client.app = app_of(handler, store=store)
    for changes_before in (False, True):
        store.is_cut_off = False
        assert is_unknown(await client.get()) is changes_before


@requirement("app.outage")
async def test_a_change_that_the_app_does_not_wait_for_any_more_may_take_effect() -> None:
    async def handler(session: AppSession) -> Any:
        await session.load()
        writing = asyncio.create_task(count(session))
        await began.wait()
        writing.cancel()
        raise StoreUnavailable("of a read", may_have_taken_effect=False)

    async def slow(*_: Any) -> None:
        began.set()
        await asyncio.Future()

    store, began = FailingStore(), asyncio.Event()
    client = Client(app_of(count, store=store))
    await client.get()
    store.state.increment = slow  # type: ignore[method-assign, assignment]  # a store that does not answer
    client.app = app_of(handler, store=store)
    assert is_unknown(await client.get())


@requirement("app.outage", "app.websocket")
async def test_a_handshake_whose_outcome_is_unknown_is_not_to_be_tried_again() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await count(scope["mcp.session"])
        store.is_cut_off = True
        await scope["mcp.session"].state.get("visits")

    store = FailingStore()
    client = Client(SessionMiddleware(failing, store=store, keys=KEY))
    assert (await client.connect()).events == [{"type": "websocket.close", "code": 1011}]


async def test_a_write_that_waits_for_its_session_when_another_operation_fails_may_take_effect() -> None:
    async def handler(session: AppSession) -> Any:
        await asyncio.gather(session.state.get("x"), session.state.increment("visits"))

    async def resume(*given: Any, **more: Any) -> Any:
        looked.append(given)
        is_first = len(looked) == 1
        await turns()
        if is_first:
            raise StoreUnavailable("of the first one", may_have_taken_effect=False)
        return await found(*given, **more)

    store, looked = FailingStore(), list[Any]()
    client = Client(app_of(count, store=store))
    await client.get()
    found, client.app = store.sessions.resume, app_of(handler, store=store)
    store.sessions.resume = resume  # type: ignore[method-assign]
    assert is_unknown(await client.get())
    await turns()
    assert len(looked) == 2


async def test_a_write_that_was_refused_changes_nothing() -> None:
    async def handler(session: AppSession) -> Any:
        for refused in (session.state.set("k", "x" * (1 << 20)), session.annotate({"": "x" * (1 << 20)})):
            with pytest.raises((InvalidState, InvalidMetadata)):
                await refused
        store.is_cut_off = True
        await session.state.get("k")

    store = FailingStore()
    client = Client(app_of(count, store=store))
    await client.get()
    client.app = app_of(handler, store=store)
    assert not is_unknown(await client.get())
