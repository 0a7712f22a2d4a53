"""A call that was sent to the owner on a channel, when the owner is not found any more: nobody asks it."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.cluster.forwarded_answer import RelayedReply
from gateway.cluster.forwarding import Forwarder
from gateway.cluster.liveness import Outcome
from gateway.cluster.ownership import Route, RouteMemory
from gateway.cluster.requests_to_peers import ForwardedRequest, Peer
from session_store import StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused

pytestmark = [pytest.mark.anyio, requirement("rep.no-retry")]


class Call:
    """On a channel that was lost."""

    def __init__(self, *, may_have_run: bool) -> None:
        self.may_have_run = may_have_run
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def _nothing(*_: Any, **__: Any) -> None: ...


async def _yes() -> bool:
    return True


NOBODY: Any = SimpleNamespace()


def a_scope() -> dict[str, Any]:
    return {"method": "POST", "path": "/mcp", "headers": []}


def forwarder_of(address_of: Any, peers: Any) -> Forwarder:
    cluster: Any = SimpleNamespace(
        replica="me",
        may_claim=_yes,
        address_of=address_of,
        take=_nothing,
        beat=_nothing,
        owner_answered=lambda _: None,
    )
    guard: Any = SimpleNamespace(is_secure=lambda *_: False, headers=lambda _: {})
    return Forwarder(
        *(cluster, peers, guard, NOBODY),
        take_over=lambda _: None,
        is_here=lambda _: False,
        stripped=lambda headers: headers,
    )


async def forwarded(call: Call, address: Any) -> dict[str, Any]:
    """The scope of a request after its call was begun, and its owner was looked for by a replica that claims the
    session. `address` is what the store says of the owner, or raises."""
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def address_of(_: str) -> tuple[str, bool]:
        if isinstance(address, Exception):
            raise address
        return address, True

    scope = a_scope()
    route = Route(a_session(FakeClock(), owner="another"), ALICE, None, begun=SimpleNamespace(call=call))
    forwarder = forwarder_of(address_of, SimpleNamespace())
    assert await forwarder.forward(route, scope, b"{}", NOBODY, send) is not None and not sent
    return scope


@requirement("rep.honest")
async def test_what_an_owner_without_an_address_has_got_may_have_taken_effect() -> None:
    began, waited = Call(may_have_run=True), Call(may_have_run=False)
    assert (await forwarded(began, ""))["mcp.again"] and began.is_closed
    assert "mcp.again" not in await forwarded(waited, "") and waited.is_closed


async def test_the_store_is_waited_for_after_a_call_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_PATIENCE_S", "_AGAIN_S"):
        monkeypatch.setattr(f"gateway.cluster.forwarding.{patience}", 0.0)
    began, waited = Call(may_have_run=True), Call(may_have_run=False)
    assert (await forwarded(began, StoreUnavailable("out")))["mcp.again"] and began.is_closed
    with pytest.raises(Refused):
        await forwarded(waited, StoreUnavailable("out"))


@requirement("wall.memory")
@pytest.mark.parametrize(("status", "is_forgotten"), [(200, False), (400, False), (404, True)])
async def test_the_route_to_a_session_that_its_owner_has_ended_is_forgotten(status: int, is_forgotten: bool) -> None:
    async def address_of(_: str) -> tuple[str, bool]:
        return "a:1", True

    async def ask(_: Peer, __: ForwardedRequest, reply: RelayedReply) -> Outcome:
        assert await reply.pass_on(b"h", msgspec.msgpack.encode((status, [])))
        return Outcome.ANSWERED

    memory = RouteMemory()
    route = Route(a_session(FakeClock(), owner="another"), ALICE, None, memory)
    assert (
        await forwarder_of(address_of, SimpleNamespace(ask=ask)).forward(route, a_scope(), b"", NOBODY, _nothing)
        is None
    )
    assert memory.is_stale is is_forgotten
