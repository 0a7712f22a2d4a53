"""A call that was sent to the owner on a channel, when the owner is not found any more: nobody asks it."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster.forwarding import Forwarding
from gateway.cluster.ownership import Route
from session_store import StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused

pytestmark = pytest.mark.anyio


class Cluster:
    """Of a replica that claims the session. `address` is what the store says of the owner, or raises."""

    replica, is_reachable = "me", True

    def __init__(self, address: Any) -> None:
        self._address = address

    async def address_of(self, _: str) -> tuple[str, bool]:
        if isinstance(self._address, Exception):
            raise self._address
        return self._address, True

    async def take(self, *_: Any, **__: Any) -> None: ...

    async def beat(self) -> None: ...


class Call:
    """On a channel that was lost."""

    def __init__(self, *, may_have_run: bool) -> None:
        self.may_have_run = may_have_run
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def forwarded(call: Call, address: Any) -> dict[str, Any]:
    """The scope of a request after its call was begun, and its owner was looked for."""
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    guard: Any = SimpleNamespace(is_secure=lambda *_: False, headers=lambda _: {})
    cluster, peers, receive = Cluster(address), SimpleNamespace(), SimpleNamespace()
    forwarding = Forwarding(cluster, peers, guard, take_over=lambda _: None, stripped=lambda headers: headers)  # type: ignore[arg-type]
    session = a_session(FakeClock(), owner="another")
    scope: dict[str, Any] = {"method": "POST", "path": "/mcp", "headers": []}
    route = Route(session, ALICE, None, begun=SimpleNamespace(call=call))
    assert await forwarding.forward(route, scope, b"{}", receive, send) is not None and not sent  # type: ignore[arg-type]
    return scope


@requirement("rep.honest", "rep.no-retry")
async def test_what_an_owner_without_an_address_has_got_may_have_taken_effect() -> None:
    began, waited = Call(may_have_run=True), Call(may_have_run=False)
    assert (await forwarded(began, ""))["mcp.again"] and began.is_closed
    assert "mcp.again" not in await forwarded(waited, "") and waited.is_closed


@requirement("rep.no-retry")
async def test_the_store_is_waited_for_after_a_call_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience, name in ((0.0, "_PATIENCE_S"), (0.0, "_AGAIN_S")):
        monkeypatch.setattr(f"gateway.cluster.forwarding.{name}", patience)
    began, waited = Call(may_have_run=True), Call(may_have_run=False)
    assert (await forwarded(began, StoreUnavailable("out")))["mcp.again"] and began.is_closed
    with pytest.raises(Refused):
        await forwarded(waited, StoreUnavailable("out"))
