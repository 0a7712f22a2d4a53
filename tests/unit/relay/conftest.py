"""Calls that repeat."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from gateway.calls.client_request import Call
from gateway.relay import call as life
from tests.unit.relay.fast_calls import Calls, Fast, warm
from tests.unit.relay.parts import TakingEndpoint


@pytest.fixture(autouse=True)
def taking_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a `TakingEndpoint` take what a server would get."""
    relay = life.relay

    def relayed(endpoint: Any, call: Call) -> Awaitable[Any]:
        return endpoint.relay(call) if isinstance(endpoint, TakingEndpoint) else relay(endpoint, call)

    monkeypatch.setattr(life, "relay", relayed)


@pytest.fixture(scope="module", params=["legacy", "modern"])
async def calls(request: pytest.FixtureRequest) -> AsyncIterator[Calls]:
    """Calls in one session of each era. What a test changes is decided on again before the next one."""
    with pytest.MonkeyPatch.context() as patch:
        async with warm(request.param, patch) as found:
            yield found


@pytest.fixture
async def fast(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Fast:
    return await Fast.of(calls, monkeypatch)
