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
from gateway.identity.request_context import RequestContext
from gateway.relay.intake import Intake
from session_store import Context, Session
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.context import FACTS
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Object
from transports.reply_queue import ReplyQueue
from transports.soon import arrived

pytestmark = pytest.mark.anyio

STRONG = Context(trust="direct", workspace="red", permissions=("write",))
WEAK = Context(trust="sandboxed")


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


@requirement("wall.authority")
async def test_a_server_gets_the_context_of_the_request_and_not_of_another_one_in_the_session() -> None:
    events = MemoryBackend().events
    live = LiveSession(a_session(FakeClock(), context=WEAK), events)
    server = Server(live)
    parts = cast("Any", server)
    limits, rooms = LimitSettings(), {"/mcp": parts}
    intake = Intake(
        endpoints=rooms,
        events=EventWriter(events, lambda _: 0),
        limits=limits,
        rates=parts,
        watching=parts,
        facts=FACTS,
        announcements=Announcements("orbit.workspace", ContextSettings(), lambda _: None),
    )
    exchange = Exchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue(), context=WEAK)
    who = RequestContext(live.session.principal, None, "c")
    await arrived(intake.accept(exchange, Request(era=Era.LEGACY, endpoint="/mcp", headers={}), who, {}, []))
    (call,) = server.calls
    facts = msgspec.json.decode(call.meta[CONTEXT_KEY])
    assert live.session.context is STRONG
    assert (facts["trust"], facts["workspace"], facts["permissions"]) == ("sandboxed", "", [])
    assert facts["session_id"] == live.session.id and facts["correlation_id"] == "c"
