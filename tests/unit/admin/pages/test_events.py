"""`gateway.admin.pages.events`: what the search finds, and what the page says that it cannot know."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.admin.pages import events
from gateway.admin.pages.events import PAGE
from gateway.config.settings import Settings
from session_store import AuditEvent, MemoryBackend
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.admin.test_verb_handlers import FakeReplicas, operations_of

NOON = 20_000 * 86_400.0 + 43_200
ANN = "https://idp.example:ann"


@pytest.fixture
async def backend() -> MemoryBackend:
    backend = MemoryBackend(clock=FakeClock(NOON))
    call: dict[str, Any] = {"event": "called", "session": "aaaaaaaa", "principal": ANN}
    await backend.audit.record(
        [
            AuditEvent(at=NOON - 7_200, tool="files/read_file", outcome="ok", **call),
            AuditEvent(at=NOON - 3_600, tool="web/get", outcome="tool error", **call),
            AuditEvent(at=NOON - 1, event="refused", session="bbbbbbbb", endpoint="/servers/files/mcp", reason="no"),
            AuditEvent(at=NOON, event="created", session="bbbbbbbb", principal="bob", endpoint="/mcp"),
        ]
    )
    return backend


async def shown(backend: MemoryBackend, query: str = "", **audit: Any) -> Any:
    """What the template of the page gets."""
    settings = Settings.model_validate({"gateway": {"audit": audit}})
    operations = operations_of(backend, FakeReplicas(), FakeClock(NOON), settings=settings)

    async def facts(request: Request) -> JSONResponse:
        found = await PAGE.facts(operations, request)
        return JSONResponse({name: value for name, value in found.items() if name != "hours"})

    transport = httpx.ASGITransport(Starlette(routes=[Route("/", facts)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return (await client.get(f"/?{query}")).json()


@requirement("ops.console-search")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["created", "refused", "called", "called"]),
        ("failed=true", ["refused", "called"]),
        ("session=aaa", ["called", "called"]),
        ("session=bbbbbbbb-and-the-rest-of-a-token", ["created", "refused"]),
        ("principal=ANN", ["called", "called"]),
        ("server=file", ["refused", "called"]),
        ("tool=get", ["called"]),
        ("server=file&tool=get", []),
        ("from=10:30&to=11:15", ["called"]),
        ("from=16:15&to=16:45&zone=345", ["called"]),
        ("from=11:30", ["created", "refused"]),
        ("event=created", ["created"]),
        ("q=web+bob", []),
        ("q=web+tool+error", ["called"]),
    ],
)
async def test_events_are_found_by_failure_time_of_day_and_parts_of_names(
    backend: MemoryBackend, query: str, found: list[str]
) -> None:
    assert [event["event"] for event in (await shown(backend, query))["events"]] == found


@requirement("ops.console-limits")
async def test_the_page_knows_how_far_back_it_has_searched_and_what_is_not_recorded(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = await shown(backend, "failed=true")
    assert (facts["searched"], facts["has_calls"], facts["is_kept"]) == (0, False, True)
    monkeypatch.setattr(events, "_SEARCHED", 2)
    facts = await shown(backend, "failed=true", calls=True, to=["stderr"])
    assert (facts["searched"], facts["oldest"]) == (2, NOON - 1)
    assert facts["has_calls"] and not facts["is_kept"]
