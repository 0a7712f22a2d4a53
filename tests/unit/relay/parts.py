"""A session, and an endpoint that takes its calls, without a process: for tests of what accepts and sends calls."""

from typing import Any, cast

from gateway.calls.client_request import Call
from gateway.calls.event_log import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.limits import LimitSettings
from gateway.config.sessions import ContextSettings
from gateway.context.announced_context import Announcements
from gateway.relay.call import Intake
from session_store import Context, MemoryEventLog
from tests.support.context import FACTS
from tests.support.fake_upstream import a_live
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Object
from transports.reply_queue import ReplyQueue

__all__ = ["TakingEndpoint", "a_live", "a_request", "a_tool_call", "an_intake"]


def a_request(**more: Any) -> Request:
    return Request(**({"era": Era.LEGACY, "endpoint": "/mcp", "headers": {}} | more))


def a_tool_call(live: LiveSession, client_id: Any = 1, context: Context | None = None) -> Exchange:
    return Exchange(method="tools/call", client_id=client_id, live=live, replies=ReplyQueue(), context=context)


class TakingEndpoint:
    """An endpoint whose server takes every call, rates that allow every call, and a log of requests that keeps none.
    `error` is raised in place of taking a call."""

    is_repeatable_now = True

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Call] = []
        self.error = error

    async def is_repeatable(self, call: Call) -> bool:
        return self.is_repeatable_now

    async def relay(self, call: Call) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(call)

    async def count_call(self, session_id: str, size: int = 0) -> None:
        """Count a call."""

    def begin(self, exchange: Exchange, request: Request, meta: Object, correlation: str) -> Object:
        return meta

    def forget(self, exchange: Exchange) -> None: ...


def an_intake(endpoint: TakingEndpoint, events: EventWriter | None = None, **limits: int) -> Intake:
    """What accepts calls for that endpoint."""
    parts = cast("Any", endpoint)
    return Intake(
        endpoints={"/mcp": parts},
        events=events or EventWriter(MemoryEventLog(), lambda _: 0),
        limits=LimitSettings.model_validate(limits),
        rates=parts,
        log=parts,
        facts=FACTS,
        announcements=Announcements("orbit.workspace", ContextSettings(), lambda _: None),
    )
