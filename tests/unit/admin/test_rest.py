"""`gateway.admin.rest`: streams of events end with the sign-in of their operator."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from gateway.admin import rest
from gateway.admin.operators import NoSuch
from gateway.admin.rest import Rest
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, requirement("ops.console")]

ACCEPT = {"Accept": "text/event-stream"}


class SignedIn:
    """An operator who is signed in for that many requests and looks."""

    def __init__(self, times: int) -> None:
        self.times = times

    def check_host(self, request: Any) -> None:
        """Every host is allowed."""

    async def operator(self, request: Any) -> str | None:
        self.times -= 1
        return "ann" if self.times >= 0 else None


class Happening:
    """Three events, and then the session is gone."""

    async def follow(self, session: str = "") -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"number": number}
        raise NoSuch("the session has ended")


async def heard(times: int, headers: dict[str, str]) -> list[str]:
    operations: Any = Happening()
    access: Any = SignedIn(times)
    transport = httpx.ASGITransport(Starlette(routes=Rest(operations, access).routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        answer = await client.get("/admin/api/events")
    return [line for line in answer.text.splitlines() if line.startswith("data: ")]


async def test_nothing_is_sent_to_an_operator_who_has_signed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_CHECKED_EVERY_S", 0.0)
    assert await heard(3, ACCEPT) == ['data: {"number":0}'], "the request, the greeting, and one event"
    assert len(await heard(1, ACCEPT | {"Authorization": "Bearer key"})) == 3, "a key has no sign-in"


async def test_a_stream_about_what_is_gone_ends() -> None:
    assert len(await heard(1, ACCEPT)) == 3
