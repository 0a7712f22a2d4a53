"""What the state API answers where the store fails."""

from time import time
from typing import Any

import httpx
import pytest

from gateway.context.state_api import StateAccess, state_api
from session_store import StoreUnavailable
from session_store.current_tool_session import tool_session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.integrations.apps import FailingStore

pytestmark = requirement("ctx.state", "rep.store-down")

CHANGES: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/state/k", 2),
    ("POST", "/v1/state/k/increment", None),
    ("POST", "/v1/state/k/compare-and-set", {"expected": 1}),
    ("DELETE", "/v1/state/k", None),
]
READS: list[tuple[str, str, Any]] = [("GET", path, None) for path in ("/v1/state/k", "/v1/state", "/v1/session")]


@pytest.mark.parametrize(("method", "path", "sent"), [*CHANGES, *READS])
async def test_a_program_is_not_told_to_repeat_a_change_that_may_have_taken_effect(
    method: str, path: str, sent: Any
) -> None:
    async def allowing(_: Any) -> StateAccess:
        if is_lost:
            raise StoreUnavailable("no answer")
        return StateAccess(session=session, store=store.state, secret="")

    store, is_lost = FailingStore(), False
    record = await store.sessions.create(a_session(FakeClock(time())))
    session = tool_session(record, sessions=store.sessions, state=store.state)
    await store.state.set(record.id, "k", b"1")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(state_api(allowing)), base_url="http://state") as http:
        store.loses_answers = True
        answer = await http.request(method, path, json=sent)
        if method == "GET":
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        else:
            assert answer.status_code == 504 and "retry-after" not in answer.headers
            assert answer.json() == {
                "error": "the session store did not answer; whether the change took effect is unknown"
            }
        store.is_cut_off = True
        answer = await http.request(method, path, json=sent)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        is_lost = True
        answer = await http.request(method, path, json=sent)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1", "the session was not found yet"
