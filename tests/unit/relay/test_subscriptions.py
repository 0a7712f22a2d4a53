"""The subscriptions at modern servers for a legacy client, when several calls of it come at the same time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.calls.exchange import Exchange
from gateway.relay.subscriptions import relay_changes
from session_store import Context
from tests.requirements import requirement
from transports.era import Era
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("spec.legacy")]


class Server:
    """A modern server that is subscribed to, and its conversation. It says what it supports once `is_known` is set."""

    name = "s"

    def __init__(self, *, is_away: bool = False) -> None:
        self.is_known = asyncio.Event()
        self.started: list[Exchange] = []
        self._is_away = is_away

    def permits(self, context: Context, uris: frozenset[str]) -> frozenset[str]:
        return uris

    async def capabilities(self) -> dict[str, Any]:
        await self.is_known.wait()
        return {"tools": {"listChanged": True}}

    def conversation(self, live: Any, era: Era, correlation: str) -> "Server":
        return self

    async def start(self, exchange: Exchange, params: Any, meta: Any) -> None:
        if self._is_away:
            raise UpstreamUnavailable("it is away")
        self.started.append(exchange)


def a_live() -> Any:
    session = SimpleNamespace(context=Context(trust="direct"), subscriptions=(), client=None, id="s")
    return SimpleNamespace(subscription_relays={}, session=session)


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = SimpleNamespace(capabilities=b"{}", meta=lambda _: {})
    monkeypatch.setattr("gateway.relay.subscriptions.caller_of", lambda live: caller)
    monkeypatch.setattr(
        "gateway.relay.subscriptions.subscription_relay_for", lambda live, name: SimpleNamespace(conversation=None)
    )


async def test_of_two_calls_at_the_same_time_one_subscribes() -> None:
    server, live = Server(), a_live()
    calls = [asyncio.create_task(relay_changes(server, live, "c")) for _ in range(2)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    server.is_known.set()
    await asyncio.gather(*calls)
    assert server.started == [live.subscription_relays["s"]]


async def test_one_that_is_replaced_meanwhile_is_not_sent() -> None:
    server, live = Server(), a_live()
    calls = [asyncio.create_task(relay_changes(server, live, "c", anew=anew)) for anew in (False, True)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    server.is_known.set()
    await asyncio.gather(*calls)
    assert server.started == [live.subscription_relays["s"]]


async def test_one_that_fails_leaves_the_place_to_the_next_call() -> None:
    server, live = Server(is_away=True), a_live()
    server.is_known.set()
    with pytest.raises(UpstreamUnavailable):
        await relay_changes(server, live, "c")  # type: ignore[arg-type]
    assert not live.subscription_relays
