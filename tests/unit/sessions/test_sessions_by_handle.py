"""Handles name child sessions: of one client or principal, and to nobody else."""

from typing import Any

import msgspec
import pytest

from gateway.calls.client_request import Call
from gateway.calls.live_session import LiveSession
from gateway.errors import InvalidArguments
from gateway.protocol.merged_lists import Tools
from gateway.sessions.sessions_by_handle import MAX_CHILDREN, ChildSessions, with_handles
from session_store import ANONYMOUS
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.support.fake_upstream import a_call, answer_of
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import Object, encode

pytestmark = requirement("id.carriers", "id.bound")

READ = {"name": "read", "inputSchema": {"type": "object", "properties": {"file": {"type": "string"}}}}
OWN = {"name": "own", "inputSchema": {"type": "object", "properties": {"session": {"type": "integer"}}}}


class Children:
    """The child sessions of one replica, and calls in its sessions."""

    def __init__(self) -> None:
        self.parts = Parts()
        parts = self.parts
        self.children = ChildSessions(lifecycle=parts.lifecycle, attacher=parts.attacher, clock=parts.clock)

    async def moved(self, live: LiveSession, tool: str, **arguments: Any) -> tuple[Any, Object | None]:
        """The session that a call runs in, and what is sent to the server."""
        exchange = a_call(live)
        params = {"name": msgspec.Raw(encode(tool)), "arguments": msgspec.Raw(encode(arguments))}
        call = Call(exchange, Era.LEGACY, params, {}, "c")
        sent = await self.children.handle(call, Tools([READ, OWN]))
        if sent is None:
            return (await answer_of(exchange))["result"]["structuredContent"], None
        exchange.done()
        return exchange.live, sent

    async def open(self, live: LiveSession) -> str:
        answer, _ = await self.moved(live, "open_session")
        return str(answer["session"])


def test_all_tools_but_those_with_an_argument_of_that_name_take_a_handle() -> None:
    read, own, opens, closes = with_handles([READ, OWN])
    assert {*read["inputSchema"]["properties"]} == {"file", "session"} and own is OWN
    assert (opens["name"], closes["name"]) == ("open_session", "close_session")
    assert {*with_handles([{"name": "x"}])[0]["inputSchema"]["properties"]} == {"session"}


async def test_a_call_with_a_handle_runs_in_the_child_and_the_server_does_not_see_it() -> None:
    children = Children()
    live = await children.parts.create(principal=ALICE)
    handle = await children.open(live)
    child, sent = await children.moved(live, "read", file="x", session=handle)
    assert child is not live and child.session.parent == live.session.id and child.session.principal == ALICE
    assert sent is not None and msgspec.json.decode(sent["arguments"]) == {"file": "x"}
    for tool, arguments in (("read", {"file": "x"}), ("own", {"session": 3})):
        where, sent = await children.moved(live, tool, **arguments)
        assert where is live and sent is not None and msgspec.json.decode(sent["arguments"]) == arguments


async def test_a_handle_is_unknown_to_other_principals_and_to_other_anonymous_sessions() -> None:
    children = Children()
    one, same, other, guest, stranger = [
        await children.parts.create(id=f"s{number}", principal=who)
        for number, who in enumerate((ALICE, ALICE, BOB, ANONYMOUS, ANONYMOUS))
    ]
    handle, anonymous = await children.open(one), await children.open(guest)
    child, _ = await children.moved(same, "read", session=handle)
    assert child.session.parent == one.session.id, "a handle is the principal's"
    for live, given in ((other, handle), (guest, handle), (stranger, anonymous), (one, anonymous)):
        with pytest.raises(InvalidArguments, match="you have no session"):
            await children.moved(live, "read", session=given)
        answer, _ = await children.moved(live, "close_session", session=given)
        assert answer == {"closed": False}
    for no_handle in ("", "s0", one.session.id, 7, None):
        with pytest.raises(InvalidArguments, match="you have no session"):
            await children.moved(one, "read", session=no_handle)
    assert (await children.moved(one, "read", session=handle))[0] is child


async def test_a_closed_handle_ends_its_session_and_makes_room() -> None:
    children = Children()
    live = await children.parts.create(principal=ALICE)
    handles = [await children.open(live) for _ in range(MAX_CHILDREN)]
    child, _ = await children.moved(live, "read", session=handles[0])
    for within in (live, child):  # a child opens its siblings
        with pytest.raises(Refused, match=str(MAX_CHILDREN)):
            await children.open(within)
    assert (await children.moved(live, "close_session", session=handles[0]))[0] == {"closed": True}
    assert child.ended and await children.parts.store.peek(child.session.id) is None
    assert (await children.moved(live, "close_session", session=handles[0]))[0] == {"closed": False}
    with pytest.raises(InvalidArguments, match="you have no session"):
        await children.moved(live, "read", session=handles[0])
    assert await children.open(live) not in handles
