"""A session gets another id, or another owner, when the app says so."""

from typing import Any

from gateway.integrations.app_session import AppSession
from session_store import StoreUnavailable
from tests.requirements import requirement
from tests.unit.integrations.apps import Client, FailingStore, app_of

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
    assert (await client.get()).status == 503
    assert [session.id for session in store.sessions.records.scan()] == [before.id]
