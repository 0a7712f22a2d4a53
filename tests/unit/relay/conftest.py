"""Calls that repeat."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.relay.fast_calls import Calls, Fast, path_of, warm


@pytest.fixture(scope="module", params=["legacy", "modern"])
async def calls(request: pytest.FixtureRequest) -> AsyncIterator[Calls]:
    """Calls in one session of each era. What a test changes is decided on again before the next one."""
    with pytest.MonkeyPatch.context() as patch:
        async with warm(request.param, patch) as found:
            yield found


@pytest.fixture
async def fast(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Fast:
    return Fast(calls, await path_of(calls), monkeypatch)
