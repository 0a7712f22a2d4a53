"""`gateway.admin.operator_tool_calls`: the messages of a call that an operator tries, in both eras."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from gateway.admin.operator_tool_calls import Destination, OngoingCall, ToolCatalog, TriedCalls
from gateway.admin.report_types import Approval, Attempt, TriedCall
from gateway.policy.unapproved_items import Unapproved
from gateway.protocol.item_digests import digest_of
from gateway.sessions.client_chosen_keys import KEY_META
from gateway.sessions.token_carriers import GATEWAY_HEADER, LEGACY_HEADER, NEW
from gateway.upstreams.lock_comparison import item_difference, write_lock
from session_store import ANONYMOUS, StoreUnavailable
from tests.requirements import requirement
from transports.era import LEGACY, MODERN
from transports.inbound.modern_request_checks import VERSION_HEADER

pytestmark = requirement("ops.try-tools")

CORRELATION = "0af7651916cd43dd8448eb211c80319c"
ANSWER = {"id": "x", "result": {"content": []}}


class FakeReply:
    """Has these messages of a server, and no end after them."""

    def __init__(self, messages: tuple[Any, ...]) -> None:
        self._messages = messages

    async def frames(self) -> AsyncIterator[bytes]:
        for message in self._messages:
            yield json.dumps(message).encode()
        await asyncio.Event().wait()

    async def begun(self) -> None:
        """It has begun."""

    async def leave(self, within_s: float = 0.0) -> None:
        """Nothing is held."""


class Wire:
    """Notes what is sent. The first message gets these in reply."""

    def __init__(self, *messages: Any) -> None:
        self._messages = messages
        self.sent: list[tuple[dict[str, str], Any]] = []

    def __call__(self, path: str, principal: Any, claims: Any, headers: Any, body: bytes, *, peer: str) -> FakeReply:
        self.sent.append((headers, json.loads(body)))
        messages, self._messages = self._messages, ()
        return FakeReply(messages)

    async def called(self, left: Any = None, **to: Any) -> TriedCall:
        destination = Destination(path="/mcp", principal=ANONYMOUS, claims=None, **to)
        attempt = Attempt(server="s", tool="t", arguments={"a": Raw(b"1")})
        ask: Any = self
        return await OngoingCall(ask, destination, "s\u00f6ll", attempt, CORRELATION, "").answered(
            {"mcp-param-a": "1"}, left
        )


async def test_a_modern_call_names_itself_and_a_new_session_by_its_key() -> None:
    wire = Wire(ANSWER)
    assert (await wire.called(era=MODERN, key="k")).outcome == "ok"
    [(headers, body)] = wire.sent
    assert (headers[GATEWAY_HEADER], headers["mcp-method"], headers["mcp-param-a"]) == (NEW, "tools/call", "1")
    assert headers["mcp-name"].isascii() and headers["traceparent"].split("-")[1] == CORRELATION
    assert body["params"]["arguments"] == {"a": 1} and body["params"]["_meta"][KEY_META] == "k"
    live = Wire(ANSWER)
    await live.called(era=MODERN, token="t")
    [(headers, body)] = live.sent
    assert headers[GATEWAY_HEADER] == "t" and KEY_META not in body["params"]["_meta"]


async def test_a_legacy_call_names_its_session_and_declines_questions() -> None:
    asked = [{"id": 7, "method": "elicitation/create"}, {"id": 8, "method": "sampling/createMessage"}]
    wire = Wire(*asked, {"method": "notifications/progress"}, ANSWER)
    tried = await wire.called(era=LEGACY, token="t", version="2025-11-25")
    assert len(tried.asked) == 2 and len(tried.messages) == 1
    (headers, call), (_, declined), (_, refused) = wire.sent
    assert (headers[LEGACY_HEADER], headers[VERSION_HEADER]) == ("t", "2025-11-25") and "mcp-name" not in headers
    assert call["params"] == {"name": "s\u00f6ll", "arguments": {"a": 1}}
    assert declined == {"jsonrpc": "2.0", "id": 7, "result": {"action": "decline"}}
    assert refused["id"] == 8 and refused["error"]["code"] == -32601


async def test_a_legacy_call_is_cancelled_once_nobody_waits() -> None:
    wire = Wire()

    async def left() -> None:
        """Nobody waits."""

    tried = await wire.called(left, era=LEGACY, token="t")
    (headers, call), (_, cancelled) = wire.sent
    assert VERSION_HEADER not in headers and tried.outcome == "timeout"
    assert cancelled["method"] == "notifications/cancelled" and cancelled["params"]["requestId"] == call["id"]


async def test_the_result_of_a_tool_that_has_run_is_told_without_the_store() -> None:
    """Its operator would try it again."""

    async def away(_: str) -> None:
        raise StoreUnavailable("away")

    parts: dict[str, Any] = {
        "catalog": SimpleNamespace(
            path_of=lambda _: "/mcp", name_at=lambda *_: "t", headers_for=lambda *_: {"mcp-param-a": "1"}
        ),
        "ask": Wire(ANSWER),
        "finder": SimpleNamespace(sessions=SimpleNamespace(named=away)),
        "record": lambda **_: None,
    }
    calls = TriedCalls(**parts, claims=lambda _: None, token=str, ending=None, where="any")  # type: ignore[arg-type]  # no session ends
    tried = await calls.call(Attempt(server="s", tool="t"), "ops")
    assert (tried.outcome, tried.session, tried.kept) == ("ok", "", False)


@requirement("live.tools-lock")
async def test_what_the_lock_hides_is_compared_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items of a server may have megabytes."""
    item = {"name": "drop", "description": "drops"}
    fields: Any = {"server": "s", "kind": "tools", "name": "drop", "digest": digest_of(item), "item": item}
    lock = tmp_path / "tools.lock"
    hidden: Any = SimpleNamespace(
        of=lambda server: [Unapproved(**fields, reason="new", approved=None)], lock_file=str(lock)
    )
    write_lock(lock, {"s": {}})
    threads = list[int]()

    def noted(*given: Any) -> list[str]:
        threads.append(threading.get_ident())
        return item_difference(*given)

    monkeypatch.setattr("gateway.admin.operator_tool_calls.item_difference", noted)
    catalog = ToolCatalog([], hidden)
    [row] = await catalog.unapproved("s", "drop")
    assert row.digest and row.difference and await catalog.unapproved("s", "other") == []
    assert await catalog.approve(Approval(server="s", kind="tools", digest=row.digest)) == "tool s/drop"
    assert len(threads) == 2 and threading.get_ident() not in threads
