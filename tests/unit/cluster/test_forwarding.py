"""A call that was sent to the owner on a channel, when the owner is not found any more: nobody asks it."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster.forwarding import Forwarder
from gateway.cluster.ownership import Route
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

    cluster: Any = SimpleNamespace(replica="me", is_reachable=True, address_of=address_of, take=_nothing, beat=_nothing)
    guard: Any = SimpleNamespace(is_secure=lambda *_: False, headers=lambda _: {})
    nobody: Any = SimpleNamespace()
    forwarder = Forwarder(
        *(cluster, nobody, guard, nobody),
        take_over=lambda _: None,
        is_here=lambda _: False,
        stripped=lambda headers: headers,
    )
    scope: dict[str, Any] = {"method": "POST", "path": "/mcp", "headers": []}
    route = Route(a_session(FakeClock(), owner="another"), ALICE, None, begun=SimpleNamespace(call=call))
    assert await forwarder.forward(route, scope, b"{}", nobody, send) is not None and not sent
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
