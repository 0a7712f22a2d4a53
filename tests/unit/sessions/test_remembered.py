"""A session that a repeated head has named is served from memory for as long as nothing of it has changed."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster.ownership import Cluster, Route
from gateway.identity.authenticate import Authenticated
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.sessions import resolve
from gateway.sessions.carriers import explicit_token
from gateway.sessions.remembered import remembered
from session_store import Context
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.unit.sessions.parts import FOR_ALICE, FOR_BOB, Parts, refused, request
from transports.era import Era
from transports.inbound_port import Memory, Refused, Request
from transports.soon import is_there

pytestmark = [pytest.mark.anyio, requirement("hot.remembered")]


class Repeating:
    """A session of Alice's, and requests with one head that names it. `read` counts how often the token was read."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.memory = Memory()
        self.read = 0

    def token(self, asked: Request) -> str | None:
        self.read += 1
        return explicit_token(asked)

    async def open(self) -> "Repeating":
        self.live = (await self.parts.resume_or_open(request(Era.MODERN, user_agent=""))).live
        kept = remembered(self.request())
        assert kept is not None
        kept.keep_caller(Authenticated(ALICE, is_lasting=True))
        for _ in range(3):  # the first one finds out that the client has come back
            assert (await self.resume()).live is self.live
        self.read = 0
        return self

    def request(self, era: Era = Era.LEGACY, meta: Any = None) -> Request:
        return request(era, meta=meta, memory=self.memory, mcp_session_id=self.parts.token_of(self.live))

    async def resume(self, who: RequestContext = FOR_ALICE, **more: Any) -> Any:
        return await self.parts.resume(self.request(**more), who)


async def opened(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Repeating:
    repeating = Repeating(parts)
    monkeypatch.setattr(resolve, "explicit_token", repeating.token)
    monkeypatch.setattr("gateway.sessions.cached_record.CACHED_FOR_S", 60.0)
    return await repeating.open()


@pytest.fixture
async def repeating(monkeypatch: pytest.MonkeyPatch) -> Repeating:
    return await opened(Parts(), monkeypatch)


async def test_a_session_is_found_once_for_a_repeated_head(repeating: Repeating) -> None:
    found = repeating.parts.resolver.resume(repeating.request(), FOR_ALICE)
    assert is_there(found) and found is not None and found.live is repeating.live and repeating.read == 0
    resolved = await repeating.resume(meta={"io.github.mcp-session-gateway/session": "of the body"})
    assert resolved.live is repeating.live, "a header comes before the body"


async def _end(repeating: Repeating) -> None:
    assert await repeating.parts.lifecycle.end(repeating.live.session.id, "the client ended it")


async def _remove(repeating: Repeating) -> None:
    repeating.parts.live.remove(repeating.live.session.id)
    await repeating.parts.store.end(repeating.live.session.id)


@pytest.mark.parametrize("end", [_end, _remove])
async def test_a_session_that_has_ended_is_not_served_from_memory(
    repeating: Repeating, end: Callable[[Repeating], Any]
) -> None:
    await end(repeating)
    with refused(404):
        await repeating.resume()


async def test_what_has_changed_is_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = await opened(Parts(clustered=True), monkeypatch)
    cluster, live = repeating.parts.cluster, repeating.live
    assert cluster is not None

    async def reads() -> int:
        before = repeating.read
        await repeating.resume()
        return repeating.read - before

    await cluster.beat()
    await reads()
    assert await reads() == 0
    live.replace_record(replace(live.session, context=Context(trust="direct", workspace="red")))
    assert await reads() == 1, "another record"
    await reads()
    live.read_at -= 120.0
    assert await reads() == 1, "an old record"
    await reads()
    assert await reads() == 0
    monkeypatch.setattr(Cluster, "is_fresh", False)
    assert await reads() == 1, "a lease that may be over"


async def test_what_belongs_to_one_caller_in_one_era_is_for_no_other(repeating: Repeating) -> None:
    with pytest.raises(Refused):
        await repeating.resume(FOR_BOB)
    assert await repeating.resume(era=Era.MODERN) is None, "the era has no such header"


async def test_a_record_that_was_read_again_is_the_same_but_for_its_use(repeating: Repeating) -> None:
    live, before = repeating.live, await repeating.resume()
    live.replace_record(replace(live.session, used_at=live.session.used_at + 1))
    assert await repeating.resume() is before and repeating.read == 0
    live.replace_record(replace(live.session, version=live.session.version + 1))
    assert await repeating.resume() is not before and repeating.read == 1


@requirement("hot.remembered", "id.bound")
async def test_a_way_to_an_owner_is_kept_for_one_caller_in_one_era_until_the_owner_is_silent() -> None:
    asked = request(memory=Memory())
    kept, route = remembered(asked), Route(a_session(FakeClock()), ALICE, None)
    assert kept is not None and kept.keep_route(route, asked, FOR_ALICE) is route, "the head alone says nobody's name"
    kept.keep_caller(Authenticated(ALICE, is_lasting=True))
    assert kept.route(asked, FOR_ALICE) is None
    memory = kept.keep_route(route, asked, FOR_ALICE).memory
    found = kept.route(asked, FOR_ALICE)
    assert memory is not None and found is not None and found.memory is memory and not found.is_read
    assert kept.route(asked, FOR_BOB) is None
    assert kept.route(asked, RequestContext(ALICE, CredentialClaims(), "")) is None
    assert kept.route(replace(asked, era=Era.MODERN), FOR_ALICE) is None
    memory.end()
    assert kept.route(asked, FOR_ALICE) is None
