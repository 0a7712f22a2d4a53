"""Who has consented gets the own token, refreshed in time, and nobody else does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.bridge.state_cipher import StateCipher
from gateway.config.secrets import ConsentSettings, SecretSettings
from gateway.context.authorization_server_client import AuthorizationServerClient, Given
from gateway.context.consented_tokens import KEPT_S, LINK_S, ConsentedTokens, Grant, grant_name
from gateway.errors import ConsentNeeded
from session_store import ANONYMOUS, KeyRing, MemoryBackend, Principal, Purpose, SealedValues, StoreUnavailable
from session_store.testing import FakeClock
from tests.requirements import requirement
from transports.upstream_port import UpstreamUnavailable

ALICE = Principal(issuer="api-key", subject="alice")
BOB = Principal(issuer="api-key", subject="bob")
SETTINGS = ConsentSettings(resource="https://files.example/mcp")
RING = KeyRing(["k" * 40])

pytestmark = requirement("cred.consent")


class Endpoint(AuthorizationServerClient):
    """A token endpoint that gives numbered tokens. `asked` has the refresh tokens that it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.answer: Given | Exception | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_asked = asyncio.Event()

    async def answer_to(self, endpoint: str, form: dict[str, str], headers: dict[str, str]) -> Given:
        self.asked.append(form["refresh_token"])
        self.is_asked.set()
        await self.goes_on.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        number = len(self.asked)
        return self.answer or Given(f"token-{number}", "bearer", 100.0, f"refresh-{number}")


class Replica(ConsentedTokens):
    """One gateway of several on a store."""

    def __init__(self, store: SealedValues, endpoint: Endpoint, clock: FakeClock, ring: KeyRing = RING) -> None:
        super().__init__(store, StateCipher(ring.derive(Purpose.CONSENT)), "https://gateway.example", clock)
        self.endpoint = endpoint

    @property
    def requests(self) -> Any:
        return self.endpoint

    async def get(self, who: Principal = ALICE) -> str:
        return (await self.token_for("files", SETTINGS, who)).token

    async def give(self, who: Principal = ALICE, refresh: str = "refresh-0", **more: Any) -> None:
        """Keep a grant as one that has just been given, for a hundred seconds."""
        name, now = grant_name("files", SETTINGS, who), self.clock()
        facts: dict[str, Any] = {"issuer": who.issuer, "subject": who.subject, "secret": "files", "since": now}
        facts |= {"token": "token-0", "until": now + 90, "expires": now + 100, "refresh": refresh, **more}
        await self.keep(name, Grant(name=name, **facts))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> SealedValues:
    return MemoryBackend(clock=clock).sealed


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def replica(store: SealedValues, endpoint: Endpoint, clock: FakeClock) -> Replica:
    return Replica(store, endpoint, clock)


async def test_a_token_is_for_its_principal_its_secret_and_its_settings_only(replica: Replica) -> None:
    await replica.give()
    assert await replica.get() == "token-0"
    other = ConsentSettings(resource="https://other.example/mcp")
    for asked in (("files", SETTINGS, BOB), ("mail", SETTINGS, ALICE), ("files", other, ALICE)):
        with pytest.raises(ConsentNeeded):
            await replica.token_for(*asked)
    with pytest.raises(UpstreamUnavailable, match="belongs to a person") as refused:
        await replica.get(ANONYMOUS)
    assert not isinstance(refused.value, ConsentNeeded), "there is nobody who could be asked"


@pytest.mark.parametrize(
    "other",
    [{"issuer": "https://login.example"}, {"issuer": "https://login.example", "client_id": "x"}, {"scopes": ("read",)}],
)
def test_a_grant_is_for_what_its_person_has_consented_to_however_the_client_is_proved(other: dict[str, Any]) -> None:
    own = SETTINGS.model_copy(update=other)
    assert grant_name("files", own, ALICE) != grant_name("files", SETTINGS, ALICE)
    moved = own.model_copy(update={"client_secret_file": Path("/moved")})
    assert grant_name("files", moved, ALICE) == grant_name("files", own, ALICE)


async def test_the_store_shows_nothing_and_a_record_under_another_name_is_none(
    replica: Replica, store: SealedValues, clock: FakeClock, endpoint: Endpoint
) -> None:
    await replica.give()
    (name,) = await store.names()
    text = await store.get(name)
    assert text is not None and b"token-0" not in text and b"alice" not in text and "alice" not in name
    assert "token-0" not in repr(replica.sealed.open(name, text, Grant))
    await store.replace(grant_name("files", SETTINGS, BOB), None, text, 60.0)  # by who can write the store
    with pytest.raises(ConsentNeeded):
        await replica.get(BOB)
    stranger = Replica(store, endpoint, clock, KeyRing(["x" * 40]))
    with pytest.raises(ConsentNeeded):
        await stranger.get()


async def test_a_link_says_for_whom_it_is_to_nobody_and_expires(replica: Replica, clock: FakeClock) -> None:
    with pytest.raises(ConsentNeeded) as needed:
        await replica.get()
    text = needed.value.refused.url.removeprefix("https://gateway.example/oauth/connect/")  # type: ignore[attr-defined]
    link = replica.link_in(text)
    assert link is not None and link.grant == grant_name("files", SETTINGS, ALICE)
    assert replica.link_in(text + "A") is None and replica.link_in("\ud800") is None
    assert replica.sealed.open("grant", text.encode(), type(link)) is None, "it is not any other record"
    clock.pass_time(LINK_S)
    assert replica.link_in(text) is None


async def test_of_all_callers_on_all_replicas_one_refreshes_a_token(
    replica: Replica, store: SealedValues, endpoint: Endpoint, clock: FakeClock
) -> None:
    await replica.give()
    other = Replica(store, endpoint, clock)
    clock.pass_time(90)
    endpoint.goes_on.clear()
    first = [asyncio.ensure_future(replica.get()) for _ in range(3)]
    await endpoint.is_asked.wait()
    assert await other.get() == "token-0", "it is valid until the other replica has a new one"
    endpoint.goes_on.set()
    assert await asyncio.gather(*first) == ["token-1"] * 3 and await other.get() == "token-1"
    assert endpoint.asked == ["refresh-0"]
    clock.pass_time(89)
    assert await other.get() == "token-1"
    clock.pass_time(1)
    assert await other.get() == "token-2" and endpoint.asked == ["refresh-0", "refresh-1"]


async def test_a_refused_refresh_ends_the_grant_and_a_failed_one_does_not(
    replica: Replica, store: SealedValues, endpoint: Endpoint, clock: FakeClock
) -> None:
    await replica.give()
    clock.pass_time(90)
    endpoint.answer = OSError("with a token in its text")
    assert await replica.get() == "token-0", "as long as it is valid"
    clock.pass_time(11)
    with pytest.raises(UpstreamUnavailable, match="does not answer") as failed:
        await replica.get()
    assert "its text" not in str(failed.value) and len(endpoint.asked) == 2
    with pytest.raises(UpstreamUnavailable, match="does not answer"):
        await replica.get()
    assert len(endpoint.asked) == 2, "it is not asked with each call"
    endpoint.answer = Given(error="invalid_client")
    clock.pass_time(5)
    with pytest.raises(UpstreamUnavailable, match="invalid_client"):
        await replica.get()  # the operator's mistake costs nobody the consent
    endpoint.answer = Given(error="invalid_grant")
    clock.pass_time(5)
    with pytest.raises(ConsentNeeded):
        await replica.get()
    assert await store.names() == []


@pytest.mark.parametrize("said", [2.0**63, 1e300, float("inf")])
async def test_a_lifetime_without_end_makes_a_grant_that_can_be_stored_and_read(
    said: float, replica: Replica, endpoint: Endpoint, clock: FakeClock
) -> None:
    await replica.give()
    clock.pass_time(100)
    endpoint.answer = Given("eternal", "bearer", said, "refresh-1")
    assert await replica.get() == "eternal"
    (found,) = await replica.connections()
    assert found.expires <= clock() + 10 * 365 * 86_400


async def test_what_is_revoked_while_it_is_refreshed_stays_revoked(
    replica: Replica, endpoint: Endpoint, clock: FakeClock
) -> None:
    await replica.give()
    await replica.give(BOB)
    clock.pass_time(90)
    endpoint.goes_on.clear()
    asked = asyncio.ensure_future(replica.get())
    await endpoint.is_asked.wait()
    assert await replica.revoke(lambda grant: grant.subject == "alice") == 1
    endpoint.goes_on.set()
    with pytest.raises(ConsentNeeded):
        await asked
    assert [each.principal for each in await replica.connections()] == ["api-key:bob"]


class Failing:
    """A store that does not answer the writes of the given numbers."""

    def __init__(self, store: SealedValues, clock: FakeClock, fails: range, *, each_takes_s: float = 0.0) -> None:
        self.store, self.clock, self.fails, self.each_takes_s = store, clock, fails, each_takes_s
        self.get, self.names = store.get, store.names
        self.writes = 0

    async def replace(self, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0) -> bool:
        self.writes += 1
        if self.writes not in self.fails:
            return await self.store.replace(name, before, after, for_s)
        self.clock.pass_time(self.each_takes_s)
        raise StoreUnavailable("away")


async def test_what_a_refresh_gave_is_stored_when_the_store_answers_again(
    replica: Replica, store: SealedValues, endpoint: Endpoint, clock: FakeClock
) -> None:
    await replica.give()
    clock.pass_time(100)
    failing = Failing(store, clock, range(2, 4))
    assert await Replica(failing, endpoint, clock).get() == "token-1" and failing.writes == 4
    clock.pass_time(90)
    assert await replica.get() == "token-2" and endpoint.asked == ["refresh-0", "refresh-1"]
    clock.pass_time(100)
    failing = Failing(store, clock, range(2, 1_000), each_takes_s=10.0)
    with pytest.raises(UpstreamUnavailable, match="store does not answer"):
        await Replica(failing, endpoint, clock).get()
    assert failing.writes == 3, "until another replica may try"


async def test_a_stop_waits_for_what_a_refresh_gives(replica: Replica, endpoint: Endpoint, clock: FakeClock) -> None:
    await replica.give()
    clock.pass_time(100)
    endpoint.goes_on.clear()
    asked = asyncio.ensure_future(replica.get())
    await endpoint.is_asked.wait()
    asked.cancel()
    stop = asyncio.ensure_future(replica.settled())
    await asyncio.wait([asked])
    assert not stop.done()
    endpoint.goes_on.set()
    await stop
    endpoint.answer = OSError("closed")
    assert await replica.get() == "token-1"


async def test_a_token_that_its_server_does_not_accept_is_replaced_once_then_its_person_is_asked(
    replica: Replica, endpoint: Endpoint
) -> None:
    await replica.give()
    await replica.reject("files", SETTINGS, ALICE, ["Bearer another"])
    assert await replica.get() == "token-0", "it was another that was not accepted"
    await replica.reject("files", SETTINGS, ALICE, ["Bearer token-0"])
    assert await replica.get() == "token-1"
    await replica.reject("files", SETTINGS, ALICE, ["Bearer token-1"])
    with pytest.raises(ConsentNeeded):
        await replica.get()
    await replica.give(refresh="")
    await replica.reject("files", SETTINGS, ALICE, ["Bearer token-0"])
    with pytest.raises(ConsentNeeded):
        await replica.get()


async def test_a_token_that_has_expired_on_its_way_is_no_reason_to_ask_its_person(
    replica: Replica, clock: FakeClock
) -> None:
    await replica.give()
    await replica.reject("files", SETTINGS, ALICE, ["Bearer token-0"])
    assert await replica.get() == "token-1"
    clock.pass_time(100)
    await replica.reject("files", SETTINGS, ALICE, ["Bearer token-1"])
    assert await replica.get() == "token-2"


async def test_of_calls_that_were_sent_with_one_token_none_rejects_more_than_that_token(
    replica: Replica, endpoint: Endpoint
) -> None:
    await replica.give()
    for _ in range(3):
        await replica.reject("files", SETTINGS, ALICE, ["Bearer token-0"])
    assert await replica.get() == "token-1", "they were answered before the refresh"
    await replica.reject("files", SETTINGS, ALICE, ["Bearer token-0"])
    assert await replica.get() == "token-1" and endpoint.asked == ["refresh-0"], "and after it"


async def test_a_grant_ends_with_its_key_its_settings_and_its_disuse(replica: Replica, clock: FakeClock) -> None:
    secrets = {"files": SecretSettings(consent=SETTINGS)}
    await replica.give()
    await replica.give(BOB)
    await replica.end_unused(secrets, lambda principal: principal in (ALICE, BOB))
    assert len(await replica.connections()) == 2
    await replica.end_unused(secrets, lambda principal: principal == BOB)
    assert [each.principal for each in await replica.connections()] == ["api-key:bob"]
    await replica.end_unused({"files": SecretSettings(file="/x")}, lambda principal: principal == BOB)
    assert await replica.connections() == []
    await replica.give(refresh="")
    clock.pass_time(101)
    assert await replica.connections() == [], "without a refresh token it ends with the token"
    await replica.give()
    clock.pass_time(KEPT_S + 1)
    assert await replica.connections() == []
