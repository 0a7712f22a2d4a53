"""Make the requests for one server: clients' calls, translated to the server's era, and the gateway's own requests.
Decide which results are cached, and for whom (MCP 2026-07-28, Caching). A request with a fresh cached result is not
sent."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.bridge.legacy_server import LegacyServerBridge, LegacyTaskBridge, legacy_meta, legacy_params
from gateway.bridge.modern_server import ModernServerBridge
from gateway.bridge.modern_server_subscriptions import declaration_for, declaration_of
from gateway.bridge.request_state import is_input_required
from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Bridge, Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.protocol.cache_hints import is_answer_to_input
from gateway.protocol.extensions import SPEC, object_of
from gateway.protocol.handshake import lowest_level
from gateway.protocol.merged_lists import Tools
from gateway.protocol.methods import METHODS, RECORDED
from gateway.protocol.params import text_of
from gateway.protocol.reserved_meta import without_reserved
from gateway.protocol.result_translation import legacy_result
from gateway.protocol.tasks import takes_task_calls
from gateway.relay.subscriptions import changes_confirmed, relay_changes, waits_for_changes
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.first_answer_cache import is_unused
from gateway.upstreams.result_cache import CacheKey
from transports.era import LEGACY, LOG_LEVELS, MODERN, Era
from transports.inbound_port import Refused
from transports.jsonrpc import HEADER_MISMATCH, Message, Object, encode
from transports.mirrored_headers import has_params, param_headers

_PLAIN_META: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})
"""Keys of `_meta`, beside those that MCP defines, that do not influence which lists and resources a server returns."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A server's answer to a request."""

    message: Message
    era: Era
    """The era of the server."""
    conversation: Conversation | None = None
    """The conversation in which the answer came. None if the answer is from the cache."""


# -- calls of clients


async def send_call(
    upstream: ConfiguredUpstream, conversation: Conversation, call: Call, cache_key: CacheKey | None
) -> None:
    """Send a client's call to a server in this conversation. Answer the call here if the server need not get it,
    because the session's record or a subscription has what it asks for. `cache_key` is the key under which to cache the
    result; None if it must not be cached."""
    exchange, live = call.exchange, call.live
    if conversation.era is MODERN and call.era is LEGACY and live is not None:
        # Before the call is sent, so that the client is notified of changes.
        anew = call.method in RECORDED and METHODS[call.method].kind == "resources"
        if anew or live.session.initialized:
            await relay_changes(upstream, live, call.correlation, anew=anew)
            await changes_confirmed(upstream, live)
        if call.method in RECORDED:
            # The session's record has the change. A modern server gets it with the subscription or the next request.
            exchange.finish(empty_result())
            return
    params, meta = for_server(upstream, conversation, call, cache_key)
    if upstream.settings.shared and call.method in RECORDED:
        others = [each for each in conversation.users if isinstance(each, LiveSession) and each is not live]
        seen = params_for_shared(call.method, params, others, conversation.links.log_level)
        if seen is None:
            exchange.finish(empty_result())
            return
        params = seen
    await conversation.start(exchange, params, meta)


def params_for_shared(method: str, params: Object, others: Sequence[LiveSession], present: str = "") -> Object | None:
    """Return the params with which a session's request is sent to a process that sessions share. Return None if the
    request must not be sent. `others` are the other sessions of that process.

    An unsubscription is not sent while one of the other sessions is subscribed. A log level becomes the lowest of the
    levels of all sessions and of `present`, the level for calls of modern clients (empty if none)."""
    if method == "resources/unsubscribe":
        uris = frozenset({msgspec.json.decode(params.get("uri", b"null"))})
        return None if any(other.subscribed(uris) for other in others) else params
    if method == "logging/setLevel":
        level = msgspec.json.decode(params.get("level", b"null"))
        if level in LOG_LEVELS:
            lowest = lowest_level((level, present, *(other.session.log_level for other in others)))
            return params | {"level": msgspec.Raw(encode(lowest))}
    return params


def for_server(
    upstream: ConfiguredUpstream, conversation: Conversation, call: Call, cache_key: CacheKey | None
) -> tuple[Object, Object]:
    """Return the params and the `_meta` of a call, translated to the era of its server. Set the bridge that translates
    the answer. `cache_key` is the key under which to cache the result; None if it must not be cached.

    Raises:
        Refused: the client's `Mcp-Param-*` headers are too many, too large or not valid as headers.
    """
    exchange, era, params, meta = call.exchange, conversation.era, call.params, call.meta
    bridge: Bridge | None = None
    if era is MODERN and call.headers is not None and upstream.settings.is_remote:
        try:
            exchange.forward_headers(param_headers(call.headers))
        except ValueError as error:
            raise Refused(400, HEADER_MISMATCH, str(error)) from None
    if era is call.era:
        pass
    elif era is LEGACY:
        params, meta = legacy_params(params), legacy_meta(meta)
        tools = upstream.server_lists.known("tools/list", conversation) if call.method == "tools/call" else None
        is_task = isinstance(tools, Tools) and tools.called("", text_of(params, "name")).needs_task
        if is_task and takes_task_calls(conversation.initialize_result or upstream.handshake):
            bridge, params = LegacyTaskBridge(conversation), params | {"task": msgspec.Raw(b"{}")}
        else:
            bridge = LegacyServerBridge(conversation)
    elif (live := call.live) is not None:
        is_tool = call.method == "tools/call"  # the gateway follows the server's task for the client
        meta = meta | declaration_of(live).meta(live.session.log_level, takes_tasks=is_tool)
        refresh = functools.partial(upstream.server_lists.refresh, "tools/list", conversation) if is_tool else None
        bridge = ModernServerBridge(conversation, params, meta, list_tools=refresh)
    if cache_key is not None:
        bridge = ResultCaching(upstream, cache_key, conversation, bridge)
    if bridge is not exchange.bridge:
        exchange.use_bridge(bridge)
    return params, meta


def waits(upstream: ConfiguredUpstream, conversation: Conversation, call: Call) -> Callable[[], bool] | None:
    """Return a function that returns True if a call like this one must wait before it is sent: the server's era is not
    known yet, or the server has not confirmed a subscription of the session. Return None if such a call never has to
    wait."""
    live, era, method = call.live, call.era, call.method
    if live is None or conversation.era is era:
        return None

    def must_wait() -> bool:
        return upstream.is_asked_by(live) or (
            era is LEGACY and (method in RECORDED or waits_for_changes(upstream, live))
        )

    return must_wait


def answer_with(call: Call, answer: ServerAnswer) -> bool:
    """Answer a call with `answer`, which the server has given to an equal request. Return False, and do nothing, if
    `answer` asks for the client's input: then the call itself has to be sent."""
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


def empty_result() -> Message:
    """Return an empty result, which tells the client that its request was executed."""
    return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}"))


# -- requests of the gateway


async def ask(upstream: ConfiguredUpstream, call: Call, method: str, params: Object) -> ServerAnswer:
    """Send the server a request that the gateway itself needs for this call, in the conversation of the call's session.
    Return the answer, which may be from the cache.

    Raises:
        UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
    """
    cache_key = cache_key_of(upstream, call, method, params)
    cached = None if cache_key is None else fresh(upstream, call, cache_key)
    if method == call.method:
        call.exchange.answered_from(cache=cached is not None)
    if cached is not None:
        return cached
    conversation = await upstream.conversation_for(call)
    await conversation.ready()
    if call.live is not None:
        if conversation.era is Era.MODERN and call.era is Era.LEGACY and call.live.session.initialized:
            await relay_changes(upstream, call.live, call.correlation)
        await changes_confirmed(upstream, call.live)
    params = {key: value for key, value in params.items() if key != "_meta"}
    if meta := _meta_for(conversation, call):
        params = params | {"_meta": msgspec.Raw(encode(meta))}
    keeping = None if cache_key is None else ResultCaching(upstream, cache_key, conversation)
    message = await conversation.ask(method, encode(params))
    if keeping is not None:
        keeping.keep(call.live, message)
    return ServerAnswer(message, conversation.era, conversation)


def _meta_for(conversation: Conversation, call: Call) -> Object:
    """Return the `_meta` for a request that the gateway itself sends, in the form of the server's era."""
    meta, exchange = call.meta, call.exchange
    if conversation.era is Era.LEGACY:
        return legacy_meta(meta)
    if call.era is Era.LEGACY and (live := call.live) is not None:
        return meta | declaration_of(live).meta("")
    # As the client itself declares it.
    return meta if exchange.declaration is None else exchange.declaration.meta("") | meta


# -- results that are cached


def fresh(upstream: ConfiguredUpstream, call: Call, cache_key: CacheKey) -> ServerAnswer | None:
    """Return the cached answer of a server if it is still fresh; else None. Also return None if the session has its own
    process of a legacy server, because that process must be asked."""
    if cache_key.fresh_ms and (call.live is None or upstream.is_open_to(call.live)):
        return None
    results = upstream.server_lists.results
    cached = results.find(cache_key)
    if cached is None:
        return None
    results.hits[cache_key.method] += 1
    era = Era.LEGACY if cache_key.fresh_ms else Era.MODERN
    return ServerAnswer(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(cached)), era)


def cache_key_of(upstream: ConfiguredUpstream, call: Call, method: str, params: Object) -> CacheKey | None:
    """Return the key under which the result of this request may be cached; None if it must not be cached.

    No result is cached if `_meta` has unknown keys, or if the request has `Mcp-Param-*` headers, which the server may
    get. A public result is cached for all callers that declare the same extensions, because servers list other tools to
    hosts of MCP Apps. If the session's own process has announced changes of lists of the same kind (such as tools), a
    public result is cached like a private one. A private result is cached for its session, or for its principal if
    sessions share the server; never for an anonymous client without a session.
    """
    if not upstream.server_lists.results.takes(method) or is_answer_to_input(params) or has_params(call.headers or ()):
        return None
    plain, live = all(key.startswith(SPEC) or key in _PLAIN_META for key in without_reserved(call.meta)), call.live
    if (era := upstream.era_now(call.era)) is not MODERN:
        if era is None or live is None or call.era is MODERN or not plain:
            return None
        is_first = is_unused(live, upstream.any_conversation(live), method)
        return upstream.first_answers.cache_key(method, params, live, call.exchange.context) if is_first else None
    declaration, is_public = declaration_for(call.exchange), plain
    declared = object_of(b"{}" if declaration is None else declaration.capabilities)
    # With the names: a server may list other tools for an experimental capability than for an extension like it.
    extensions = b"".join(b"%b%b" % (n.encode(), declared[n]) for n in ("experimental", "extensions") if n in declared)
    if live is not None and not upstream.settings.shared and (own := upstream.any_conversation(live)) is not None:
        lists = own.known_lists
        is_public = plain and (lists is None or METHODS[method].kind not in lists.announced)
    private, session = _private(upstream, call)
    private = None if private is None or not plain else private + extensions
    return CacheKey.of(method, params, public=extensions if is_public else None, private=private, session=session)


def _private(upstream: ConfiguredUpstream, call: Call) -> tuple[bytes | None, str]:
    """Return the part of the cache key that says who may get a private result of this call; None if nobody may. Also
    return the id of the session if no other session may get the result; else an empty string."""
    context, live = encode(call.exchange.context), call.live
    principal = call.principal if live is None else live.session.principal
    if live is None or upstream.settings.shared:
        if principal is not None and not principal.is_anonymous:
            return encode([principal.key, live is None]) + context, ""
    if live is None:
        return None, ""
    return encode(live.session.id) + context, live.session.id


class ResultCaching:
    """Cache the result of a call before it is translated for the client (implements `gateway.calls.exchange.Bridge`).
    `then` is the bridge that translates the result; None if the client gets it unchanged."""

    def __init__(
        self, upstream: ConfiguredUpstream, cache_key: CacheKey, conversation: Conversation, then: Bridge | None = None
    ) -> None:
        self._conversation = conversation
        self._upstream = upstream
        self._cache_key: CacheKey | None = cache_key
        self._version = upstream.server_lists.results.version(cache_key.method)
        self._then = then

    def keep(self, live: LiveSession | None, message: Message) -> None:
        """Cache the result in `message`, if that is allowed. `live` is the session of the call, or None. Only the first
        call of this method has an effect. The result of a legacy server is cached only if the session's process was
        asked for nothing but lists."""
        # A result after the client was asked for input may not be cached.
        cache_key, self._cache_key = self._cache_key, None
        if cache_key is None:
            return
        if cache_key.fresh_ms:
            if live is None or not is_unused(live, self._conversation, cache_key.method):
                return
        elif self._conversation.era is not MODERN:
            return
        # A session's calls may have changed what its own process says, by mistake or because the process was subverted.
        for_all = not (self._upstream.settings.has_own_process and self._conversation.was_used)
        self._upstream.server_lists.results.keep(cache_key, message.result, self._version, for_all=for_all)

    def answer_for_client(self, exchange: Exchange, message: Message) -> Message | None:
        """Cache the result, if that is allowed. Return the answer for the client, translated by the bridge `then`."""
        self.keep(live_session_of(exchange), message)
        return message if self._then is None else self._then.answer_for_client(exchange, message)
