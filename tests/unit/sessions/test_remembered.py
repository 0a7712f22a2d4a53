"""A session that a repeated head has named is served from memory for as long as nothing of it has changed."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.cluster.ownership import Route
from gateway.identity.authenticate import Authenticated
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.sessions import resolve
from gateway.sessions.carriers import explicit_token
from gateway.sessions.remembered import remembered
from session_store import Context
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Memory, Refused, Request
from transports.soon import arrived, is_there

FOR_ALICE = RequestContext(ALICE, None, "")

pytestmark = [pytest.mark.anyio, requirement("hot.remembered")]


class Repeating:
    """A session of Alice's, and requests with one head that names it. `read` counts how often the token was read."""

    def __init__(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = parts
        self.memory = Memory()
        self.read = 0
        monkeypatch.setattr(resolve, "explicit_token", self._token)
        monkeypatch.setattr("gateway.sessions.cached_record.CACHED_FOR_S", 60.0)

    def _token(self, request: Request) -> str | None:
        self.read += 1
        return explicit_token(request)

    async def open(self) -> "Repeating":
        asked = Request(era=Era.MODERN, endpoint="/mcp", headers={})
        self.live = (await arrived(self.parts.resolver.resume_or_open(asked, FOR_ALICE))).live
        kept = remembered(self.request())
        assert kept is not None
        kept.keep_caller(Authenticated(ALICE, is_lasting=True))
        for _ in range(3):  # the first one finds out that the client has come back
            assert (await self.resume()).live is self.live
        self.read = 0
        return self

    def request(self, era: Era = Era.LEGACY, **more: Any) -> Request:
        headers = {"mcp-session-id": self.parts.carriers.token(self.live.session)}
        return Request(era=era, endpoint="/mcp", headers=headers, memory=self.memory, **more)

    async def resume(self, who: RequestContext = FOR_ALICE, **more: Any) -> Any:
        return await arrived(self.parts.resolver.resume(self.request(**more), who))


async def test_a_session_is_found_once_for_a_repeated_head(monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = await Repeating(Parts(), monkeypatch).open()
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
    monkeypatch: pytest.MonkeyPatch, end: Callable[[Repeating], Any]
) -> None:
    repeating = await Repeating(Parts(), monkeypatch).open()
    await end(repeating)
    with pytest.raises(Refused) as refused:
        await repeating.resume()
    assert refused.value.status == 404


async def test_what_has_changed_is_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = await Repeating(Parts(clustered=True), monkeypatch).open()
    parts, live = repeating.parts, repeating.live
    assert parts.cluster is not None

    async def reads(**more: Any) -> int:
        before = repeating.read
        await repeating.resume(**more)
        return repeating.read - before

    await parts.cluster.beat()
    await reads()
    assert await reads() == 0
    live.replace_record(msgspec.structs.replace(live.session, context=Context(trust="direct", workspace="red")))
    assert await reads() == 1, "another record"
    await reads()
    live.read_at -= 120.0
    assert await reads() == 1, "an old record"
    await reads()
    assert await reads() == 0
    monkeypatch.setattr(type(parts.cluster), "is_fresh", False)
    assert await reads() == 1, "a lease that may be over"


async def test_what_belongs_to_one_caller_in_one_era_is_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = await Repeating(Parts(), monkeypatch).open()
    with pytest.raises(Refused):
        await repeating.resume(RequestContext(BOB, None, ""))
    assert await repeating.resume(era=Era.MODERN) is None, "the era has no such header"


async def test_a_record_that_was_read_again_is_the_same_but_for_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = await Repeating(Parts(), monkeypatch).open()
    live, before = repeating.live, await repeating.resume()
    live.replace_record(msgspec.structs.replace(live.session, used_at=live.session.used_at + 1))
    assert await repeating.resume() is before and repeating.read == 0
    live.replace_record(msgspec.structs.replace(live.session, version=live.session.version + 1))
    assert await repeating.resume() is not before and repeating.read == 1


@requirement("hot.remembered", "id.bound")
async def test_a_way_to_an_owner_is_kept_for_one_caller_in_one_era_until_the_owner_is_silent() -> None:
    asked = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, memory=Memory())
    kept, route = remembered(asked), Route(a_session(FakeClock()), ALICE, None)
    assert kept is not None and kept.keep_route(route, asked, FOR_ALICE) is route, "the head alone says nobody's name"
    kept.keep_caller(Authenticated(ALICE, is_lasting=True))
    assert kept.route(asked, FOR_ALICE) is None
    memory = kept.keep_route(route, asked, FOR_ALICE).memory
    found = kept.route(asked, FOR_ALICE)
    assert memory is not None and found is not None and found.memory is memory and not found.is_read
    assert kept.route(asked, RequestContext(BOB, None, "")) is None
    assert kept.route(asked, RequestContext(ALICE, CredentialClaims(), "")) is None
    assert kept.route(msgspec.structs.replace(asked, era=Era.MODERN), FOR_ALICE) is None
    memory.end()
    assert kept.route(asked, FOR_ALICE) is None
