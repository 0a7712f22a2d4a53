"""A call is accepted: what its server gets in `_meta`."""

from typing import Any, cast

import msgspec
import pytest

from gateway.calls.call import Call
from gateway.calls.event_writer import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.context import ContextSettings
from gateway.config.limits import LimitSettings
from gateway.context.announced import Announcements
from gateway.context.facts import CONTEXT_KEY
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.identity.request_context import RequestContext
from gateway.relay.intake import Intake
from session_store import Context, Session
from session_store.memory import MemoryBackend
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support.context import FACTS
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Object
from transports.reply_queue import ReplyQueue
from transports.soon import arrived
from transports.upstream_port import UpstreamUnavailable

pytestmark = pytest.mark.anyio

STRONG = Context(trust="direct", workspace="red", permissions=("write",))
WEAK = Context(trust="sandboxed")
EVENTS = MemoryBackend().events


class Server:
    """An endpoint whose server takes every call, and rates that allow every call."""

    def __init__(self, live: LiveSession) -> None:
        self.calls: list[Call] = []
        self._live = live

    def relay_now(self, call: Call) -> bool:
        self.calls.append(call)
        return True

    async def call(self, session: Session, size: int = 0) -> None:
        """Another request of the session, with a stronger credential, is resolved meanwhile."""
        self._live.replace_record(msgspec.structs.replace(session, context=STRONG))

    def begin(self, exchange: Exchange, request: Request, meta: Object, correlation: str) -> Object:
        return meta

    async def is_repeatable(self, call: Call) -> bool:
        return True


def taken_in_by(server: Server) -> Intake:
    parts = cast("Any", server)
    return Intake(
        endpoints={"/mcp": parts},
        events=EventWriter(EVENTS, lambda _: 0),
        limits=LimitSettings(),
        rates=parts,
        watching=parts,
        facts=FACTS,
        announcements=Announcements("orbit.workspace", ContextSettings(), lambda _: None),
    )


@requirement("rep.no-retry")
async def test_a_repeated_call_that_cannot_be_sent_may_have_run_the_first_time() -> None:
    live = LiveSession(a_session(FakeClock()), EVENTS)
    server = Server(live)

    def unavailable(_: Call) -> bool:
        raise UpstreamUnavailable("its program is missing")

    server.relay_now = unavailable  # type: ignore[method-assign, assignment]
    codes = []
    for again in (False, True):
        exchange = Exchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue())
        request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, again=again)
        await arrived(taken_in_by(server).accept(exchange, request, RequestContext(ALICE, None, "c"), {}, []))
        assert exchange.replies.first is not None
        codes.append(exchange.replies.first.error_code)
    assert codes == [UPSTREAM_UNAVAILABLE, OUTCOME_UNKNOWN], "the first invites a client to repeat it"


@requirement("wall.authority")
async def test_a_server_gets_the_context_of_the_request_and_not_of_another_one_in_the_session() -> None:
    live = LiveSession(a_session(FakeClock(), context=WEAK), EVENTS)
    server = Server(live)
    intake = taken_in_by(server)
    exchange = Exchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue(), context=WEAK)
    who = RequestContext(live.session.principal, None, "c")
    await arrived(intake.accept(exchange, Request(era=Era.LEGACY, endpoint="/mcp", headers={}), who, {}, []))
    (call,) = server.calls
    facts = msgspec.json.decode(call.meta[CONTEXT_KEY])
    assert live.session.context is STRONG
    assert (facts["trust"], facts["workspace"], facts["permissions"]) == ("sandboxed", "", [])
    assert facts["session_id"] == live.session.id and facts["correlation_id"] == "c"
