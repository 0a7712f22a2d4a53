"""Asks one server something on behalf of a client's call, without sending the call itself. What is fresh is not asked.

Says which results of a call may be kept for whom (MCP 2026-07-28, Caching).
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.bridge.legacy_server import legacy_meta
from gateway.bridge.subscription_relay import caller_of
from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Bridge, Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.protocol.caching import is_answer_to_input
from gateway.protocol.extensions import object_of
from gateway.protocol.methods import METHODS
from gateway.protocol.reserved_meta import without_reserved
from gateway.relay.subscriptions import changes_confirmed, relay_changes
from gateway.upstreams.first_answers import is_unused
from gateway.upstreams.result_cache import Asked
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era
from transports.jsonrpc import Message, Object, encode

__all__ = ["Answer", "KeptResult", "ask", "asked_of", "fresh"]

_SPEC: Final = "io.modelcontextprotocol/"
_PLAIN_META: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})
"""Keys of `_meta`, beside those of the specification, on which no list and no resource depends."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer, its era, and the conversation that it came in; None if it was kept from an earlier request."""

    message: Message
    era: Era
    conversation: Conversation | None = None


async def ask(upstream: ConfiguredUpstream, call: Call, method: str, params: Object) -> Answer:
    """The server's answer to a request in the conversation of the call's session.

    Raises:
        UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
    """
    results = upstream.inventory.results
    asked = asked_of(upstream, call, method, params)
    kept = None if asked is None else fresh(upstream, call, asked)
    if method == call.method:
        call.exchange.answered_from(cache=kept is not None)
    if kept is not None:
        return kept
    conversation = await upstream.conversation_for(call)
    await conversation.ready()
    if call.live is not None:
        if conversation.era is Era.MODERN and call.era is Era.LEGACY and call.live.session.initialized:
            await relay_changes(upstream, call.live, call.correlation)
        await changes_confirmed(upstream, call.live)
    params = {key: value for key, value in params.items() if key != "_meta"}
    if meta := _meta_for(conversation, call):
        params = params | {"_meta": msgspec.Raw(encode(meta))}
    version = results.version(method)
    message = await conversation.ask(method, encode(params))
    if asked is not None and _may_be_kept(asked, call.live, conversation):
        results.keep(asked, message.result, version, for_all=_is_for_all(upstream, conversation))
    return Answer(message, conversation.era, conversation)


def _meta_for(conversation: Conversation, call: Call) -> Object:
    """The `_meta` of the request, as the server's era has it."""
    meta, exchange = call.meta, call.exchange
    if conversation.era is Era.LEGACY:
        return legacy_meta(meta)
    if call.era is Era.LEGACY and (live := call.live) is not None:
        return meta | caller_of(live).meta("")
    return meta if exchange.caller is None else exchange.caller.meta("") | meta  # as the client itself declares it


# -- results that are kept


def fresh(upstream: ConfiguredUpstream, call: Call, asked: Asked) -> Answer | None:
    """The answer of an earlier request, if it is fresh. That of a legacy server stands for a process: a session that
    has one asks its own."""
    if asked.fresh_ms and (call.live is None or upstream.is_open_to(call.live)):
        return None
    results = upstream.inventory.results
    kept = results.find(asked)
    if kept is None:
        return None
    results.hits[asked.method] += 1
    era = Era.LEGACY if asked.fresh_ms else Era.MODERN
    return Answer(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(kept)), era)


def _may_be_kept(asked: Asked, live: LiveSession | None, conversation: Conversation) -> bool:
    """Whether an answer that has just come in that conversation may be kept. That of a legacy server may while its
    process was asked for nothing but lists."""
    if not asked.fresh_ms:
        return conversation.era is Era.MODERN
    return live is not None and is_unused(live, conversation, asked.method)


def _is_for_all(upstream: ConfiguredUpstream, conversation: Conversation) -> bool:
    """True if other sessions may be told what was said in that conversation. What a session has called in a process of
    its own may have changed what the process says, by mistake or because the process was subverted."""
    has_own_process = upstream.settings.command and not upstream.settings.shared
    return not (has_own_process and conversation.was_used)


def asked_of(upstream: ConfiguredUpstream, call: Call, method: str, params: Object) -> Asked | None:
    """Return the key under which a result of this request may be kept; None if none may be.

    A public result is kept for all callers that declare the same extensions: servers list other tools to hosts of MCP
    Apps. It is not kept where the request has something in `_meta` that only this server knows, nor in a session whose
    own process has announced that its lists have changed. A private one is kept for its session, for its principal
    where sessions share the server, and for no anonymous client without a session.
    """
    if not upstream.inventory.results.takes(method) or is_answer_to_input(params):
        return None
    if (era := upstream.era_now(call.era)) is not Era.MODERN:
        return None if era is None else _asked_of_legacy(upstream, call, method, params)
    declared = object_of(_capabilities(call))
    extensions = b"".join(bytes(declared.get(name, b"")) for name in ("experimental", "extensions"))
    plain = all(key.startswith(_SPEC) or key in _PLAIN_META for key in without_reserved(call.meta))
    live, is_public = call.live, plain
    if live is not None and not upstream.settings.shared and (own := upstream.open_with(live)) is not None:
        lists = own.known_lists
        is_public = plain and (lists is None or METHODS[method].kind not in lists.announced)
    private, session = _private(upstream, call)
    private = None if private is None or not plain else private + extensions
    return Asked.of(method, params, public=extensions if is_public else None, private=private, session=session)


def _asked_of_legacy(upstream: ConfiguredUpstream, call: Call, method: str, params: Object) -> Asked | None:
    """As `asked_of`, for a legacy server (`gateway.upstreams.first_answers`)."""
    live = call.live
    if live is None or call.era is Era.MODERN or not is_unused(live, upstream.open_with(live), method):
        return None
    if any(key not in _PLAIN_META and not key.startswith(_SPEC) for key in without_reserved(call.meta)):
        return None
    return upstream.first_answers.asked(method, params, live, call.exchange.context)


def _capabilities(call: Call) -> bytes:
    if call.exchange.caller is not None:
        return call.exchange.caller.capabilities
    return b"{}" if call.live is None else caller_of(call.live).capabilities


def _private(upstream: ConfiguredUpstream, call: Call) -> tuple[bytes | None, str]:
    """For whom a private result is kept, and for which session if for one only."""
    context, live = encode(call.exchange.context), call.live
    principal = call.principal if live is None else live.session.principal
    if live is None or upstream.settings.shared:
        if principal is not None and not principal.is_anonymous:
            return encode([principal.key, live is None]) + context, ""
    if live is None:
        return None, ""
    return encode(live.session.id) + context, live.session.id


class KeptResult:
    """Keeps the result of a call on its way to the client (`gateway.calls.exchange.Bridge`), as its server has sent it.
    Another bridge may translate it then."""

    def __init__(
        self, upstream: ConfiguredUpstream, asked: Asked, conversation: Conversation, then: Bridge | None = None
    ) -> None:
        self._conversation = conversation
        self._upstream = upstream
        self._asked: Asked | None = asked
        self._version = upstream.inventory.results.version(asked.method)
        self._then = then

    def finish(self, exchange: Exchange, message: Message) -> Message | None:
        """The client's answer to the call, as of the other bridge."""
        if self._asked is not None and _may_be_kept(self._asked, live_session_of(exchange), self._conversation):
            for_all = _is_for_all(self._upstream, self._conversation)
            self._upstream.inventory.results.keep(self._asked, message.result, self._version, for_all=for_all)
        self._asked = None  # a result that comes after the client was asked for input may not be kept
        return message if self._then is None else self._then.finish(exchange, message)
