"""Sends one call to one server: chooses the conversation and the era, and the params that the server gets.

Knows nothing of other servers behind the same URL.
"""

import functools
from collections.abc import Callable

import msgspec

from gateway.bridge.legacy_server import LegacyServerBridge, legacy_meta, legacy_params
from gateway.bridge.legacy_task import LegacyTaskBridge, asking_for_task
from gateway.bridge.modern_server import ModernServerBridge
from gateway.bridge.request_state import is_input_required
from gateway.bridge.subscription_relay import caller_of
from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Bridge, Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.shared_server import params_for_shared
from gateway.protocol.listing import Tools
from gateway.protocol.methods import LISTS, METHODS, RECORDED
from gateway.protocol.params import text_of
from gateway.protocol.results import legacy_result
from gateway.relay.admission import Admission, AdmittedTool, Route, params_of
from gateway.relay.aggregation import empty_result
from gateway.relay.asking import Answer, KeptResult, asked_of, fresh
from gateway.relay.subscriptions import changes_confirmed, relay_changes, waits_for_changes
from gateway.sessions.child_sessions import ChildSessions
from gateway.upstreams.result_cache import Asked
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import LEGACY, MODERN, Era
from transports.inbound_port import Refused
from transports.jsonrpc import HEADER_MISMATCH, Message, Object, encode
from transports.mirrored_headers import param_headers
from transports.turns import at_once, in_turns, is_large, others_first

__all__ = ["Dispatch"]


class Dispatch:
    """Sends calls to servers. The outcome comes through the call's exchange."""

    def __init__(self, handles: ChildSessions, admission: Admission) -> None:
        self._handles = handles
        self._admission = admission

    @staticmethod
    def prepared(route: Route, call: Call) -> tuple[Object, Object]:
        """Make the params and the `_meta` that the server gets of a call by that route, whose arguments are those for
        the server. The call's exchange gets what translates the answer."""
        conversation = route.held_conversation
        assert conversation is not None
        return _for_server(route.upstream, conversation, call, None)

    @staticmethod
    def waits(route: Route, call: Call) -> Callable[[], bool] | None:
        """What says whether a call that is like this one has to wait for something else. None: it never has to."""
        conversation, live = route.held_conversation, call.live
        if conversation is None or live is None or conversation.era is call.era:
            return None
        return functools.partial(_waits_between_eras, route.upstream, live, call.era, call.method)

    async def send(self, upstream: ConfiguredUpstream, call: Call, named: msgspec.Raw | None = None) -> Route | None:
        """Send a call, and return how, if calls of tools that are like it may be sent in the same way. The facts and
        lists of the server that the call depends on are requested first. `named` is the server's own name of what the
        call names, if that differs.

        Raises:
            Refused: the call names something that the session does not see, or its arguments are invalid.
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be reached.
        """
        exchange, settings = call.exchange, upstream.settings
        if settings.handles:
            params = await self._handles.handle(call, (await upstream.facts()).tools)
            if params is None:
                return None
            call = call.with_params(params)
        admitted = await self._admission.admit(upstream, call)
        checked = params_of(admitted, call)
        if not isinstance(checked, dict):
            checked = await in_turns(checked) if is_large(call.params) else at_once(checked)
        call = call.with_params(checked)
        if is_large(call.params):
            await others_first()
        await upstream.era_for(call.era)
        asked = asked_of(upstream, call, call.method, call.params)
        kept = None if asked is None else fresh(upstream, call, asked)
        conversation = None if kept is not None else await upstream.conversation_for(call)
        if self._admission.shapes(upstream, call.method):
            exchange.filter_result(self._list_filter(upstream, conversation, call.method))
        if kept is not None:
            exchange.answered_from(cache=True)
            self.answer(call, kept)
        elif conversation is not None:
            await self._send(upstream, conversation, call, asked)
            if isinstance(admitted, AdmittedTool) and not (settings.shared or settings.handles):
                return Route(upstream, conversation, admitted, named)
        return None

    async def _send(
        self, upstream: ConfiguredUpstream, conversation: Conversation, call: Call, asked: Asked | None
    ) -> None:
        """Send a call in that conversation. `asked`: its result may be kept."""
        exchange = call.exchange
        if conversation.era is MODERN and call.era is LEGACY and (live := call.live) is not None:
            await _subscribe(upstream, live, call)
            if call.method in RECORDED:
                # The session's record has the change. A modern server gets it with the subscription or the next
                # request.
                exchange.finish(empty_result())
                return
        params, meta = _for_server(upstream, conversation, call, asked)
        if upstream.settings.shared:
            others = [live.session for live in conversation.users if live is not None and live is not exchange.live]
            seen = params_for_shared(call.method, params, others)
            if seen is None:
                exchange.finish(empty_result())
                return
            params = seen
        await conversation.start(exchange, params, meta)

    def answer(self, call: Call, answer: Answer) -> bool:
        """Answer a call with a server's answer to the same request of the gateway, or to an earlier one. False: the
        server asks for input, so the call has to be sent."""
        exchange, message, conversation = call.exchange, answer.message, answer.conversation
        if isinstance(message.result, msgspec.Raw) and answer.era is MODERN:
            result = msgspec.json.decode(message.result, type=Object)
            if is_input_required(result):
                return False
            if call.era is LEGACY:
                message = Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(legacy_result(call.method, result))))
        elif conversation is not None and answer.era is LEGACY and call.era is MODERN:
            exchange.use_bridge(LegacyServerBridge(conversation))
        exchange.finish(message)
        return True

    def _list_filter(
        self, upstream: ConfiguredUpstream, conversation: Conversation | None, method: str
    ) -> Callable[[Exchange, Object], Object]:
        """A filter that reduces the server's list to the items that the call's session may see. No conversation: the
        list was kept from an earlier request."""
        key = LISTS[method]

        def filtered(exchange: Exchange, result: Object) -> Object:
            page = msgspec.json.decode(encode(result))
            upstream.inventory.seen(method, conversation, page)
            listed = page.get(key)
            self._admission.show(upstream, exchange.context, method, page)
            if key not in result or page.get(key) != listed:  # else it stays as the server has written it
                result = result | {key: msgspec.Raw(encode(page.get(key, [])))}
            if "cacheScope" in result and self._admission.filters(upstream, method):
                result["cacheScope"] = msgspec.Raw(b'"private"')
            return result

        return filtered


def _waits_between_eras(upstream: ConfiguredUpstream, live: LiveSession, era: Era, method: str) -> bool:
    """Return True if the server has first to be asked for its era, or to confirm the subscription of its client."""
    if upstream.is_asked_by(live):
        return True
    return era is LEGACY and (method in RECORDED or waits_for_changes(upstream, live))


async def _subscribe(upstream: ConfiguredUpstream, live: LiveSession, call: Call) -> None:
    """Have a modern server notify a legacy client of changes before it gets the call."""
    anew = call.method in RECORDED and METHODS[call.method].kind == "resources"
    if anew or live.session.initialized:
        await relay_changes(upstream, live, call.correlation, anew=anew)
        await changes_confirmed(upstream, live)


def _for_server(
    upstream: ConfiguredUpstream, conversation: Conversation, call: Call, asked: Asked | None
) -> tuple[Object, Object]:
    """The params and the `_meta` that the server gets. The call's exchange gets what translates the answer. `asked`:
    the result may be kept."""
    exchange, era, params, meta = call.exchange, conversation.era, call.params, call.meta
    bridge: Bridge | None = None
    if era is MODERN and call.headers is not None and upstream.settings.url:
        _forward_headers(call)
    if era is call.era:
        pass
    elif era is LEGACY:
        params, meta = legacy_params(params), legacy_meta(meta)
        if call.method == "tools/call" and _needs_task(upstream, conversation, params):
            bridge, params = LegacyTaskBridge(conversation), asking_for_task(params)
        else:
            bridge = LegacyServerBridge(conversation)
    elif (live := call.live) is not None:
        is_tool = call.method == "tools/call"  # a task is followed for the client
        meta = meta | caller_of(live).meta(live.session.log_level, takes_tasks=is_tool)
        refresh = functools.partial(upstream.inventory.refresh, "tools/list", conversation) if is_tool else None
        bridge = ModernServerBridge(conversation, params, meta, list_tools=refresh)
    if asked is not None:
        bridge = KeptResult(upstream, asked, conversation, bridge)
    if bridge is not exchange.bridge:
        exchange.use_bridge(bridge)
    return params, meta


def _forward_headers(call: Call) -> None:
    """Have the server get what its client has sent in `Mcp-Param-*` headers.

    Raises:
        Refused: these headers are too many or too large, or have characters that no header can have.
    """
    try:
        call.exchange.forward(param_headers(call.headers or {}))
    except ValueError as error:
        raise Refused(400, HEADER_MISMATCH, str(error)) from None


def _needs_task(upstream: ConfiguredUpstream, conversation: Conversation, params: Object) -> bool:
    """Whether a tool of a legacy server is only to be called as a task."""
    tools = upstream.inventory.known("tools/list", conversation)
    return isinstance(tools, Tools) and tools.needs_task(text_of(params, "name"))
