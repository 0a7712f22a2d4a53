"""The results of modern clients' calls: with the session where the client needs it, and with a sealed `requestState`.

MCP 2026-07-28.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.bridge.request_state import Binding, RequestStateSeal, is_input_required
from gateway.calls.exchange import Exchange
from gateway.context.facts import SESSION_KEY, trace_meta, with_meta
from gateway.errors import OUTCOME_UNKNOWN
from gateway.protocol.capabilities import capability_for, may_be_asked
from gateway.protocol.methods import CACHEABLE
from gateway.protocol.questions import questions_of
from gateway.protocol.subscription_filter import SUBSCRIPTION_ID
from gateway.protocol.tasks import is_task
from gateway.sessions.attach import Resolved
from gateway.sessions.carriers import Carriers
from gateway.tasks.modern_clients import ModernTasks
from transports.inbound_port import Refused, Request
from transports.jsonrpc import MISSING_CAPABILITY, InvalidMessage, Object, encode

__all__ = ["ModernResults"]


class ModernResults:
    """Shapes results. `result_meta` is the setting of that name."""

    def __init__(self, carriers: Carriers, seal: RequestStateSeal, tasks: ModernTasks, *, result_meta: bool) -> None:
        self._carriers = carriers
        self._seal = seal
        self._tasks = tasks
        self._result_meta = result_meta

    def keep_complete(self, *, names_session: bool) -> bool:
        """Whether complete results stay as the server has written them."""
        return not names_session and not self._result_meta

    def names_session(self, request: Request, resolved: Resolved | None) -> bool:
        """Whether results have the session."""
        return resolved is not None and self._carriers.is_in_result(request, opened=resolved.opened)

    def shaper(
        self, binding: Binding | None, correlation: str, *, takes_tasks: bool, names_session: bool
    ) -> Callable[[Exchange, Object], Object]:
        """What makes the client's result of the server's."""
        trace = correlation if self._result_meta else None

        def shape(exchange: Exchange, result: Object) -> Object:
            if binding is not None and is_task(result):
                result = self._tasks.created(exchange, result, binding.endpoint, is_declared=takes_tasks)
            return self._shape(exchange, result, binding, trace, names_session=names_session)

        return shape

    def _shape(
        self, exchange: Exchange, result: Object, binding: Binding | None, trace: str | None, *, names_session: bool
    ) -> Object:
        """The result for a modern client: with the session if the client needs it there, and with its `requestState`
        sealed. `trace` is the correlation id if results have it."""
        live = exchange.live
        if exchange.is_subscription:
            own_id = msgspec.Raw(encode(exchange.client_id))
            result = with_meta(result, {SUBSCRIPTION_ID: own_id})
        asks = binding is not None and is_input_required(result)
        if live is None or (exchange.method in CACHEABLE and not asks):
            return result
        session = live.session
        if asks and binding is not None:
            suspended = exchange.suspended if exchange.is_suspended else None
            if suspended is None:  # a modern server's own result
                _check_declared(exchange, result)
            result = self._seal.seal(result, session_id=session.id, binding=binding, suspended=suspended)
        additions: Object = {}
        if names_session:
            additions[SESSION_KEY] = msgspec.Raw(encode(self._carriers.token(session)))
        if trace is not None:
            additions |= trace_meta(session, trace)
        return with_meta(result, additions) if additions else result


def _check_declared(exchange: Exchange, result: Object) -> None:
    """Raises `Refused`: the server asks the client for something that the client has not declared to answer (MCP
    2026-07-28, Multi Round-Trip Requests §Server Requirements)."""
    if exchange.caller is None or "inputRequests" not in result:
        return
    missing: dict[str, Any] = {}
    try:
        for method, params in questions_of(result).values():
            if not may_be_asked(exchange.caller.capabilities, method, params or {}):
                for name, kinds in capability_for(method, params or {}).items():
                    missing[name] = missing.get(name, {}) | kinds
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        raise Refused(200, OUTCOME_UNKNOWN, f"Server {exchange.server!r} asks what cannot be read: {error}") from None
    if missing:
        names = ", ".join(sorted(missing))
        text = f"Server {exchange.server!r} needs a capability that the client has not declared: {names}"
        raise Refused(400, MISSING_CAPABILITY, text, data={"requiredCapabilities": missing})
