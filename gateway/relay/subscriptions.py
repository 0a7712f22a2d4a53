"""Subscriptions to changes across eras, to several servers at once, or to a server that has to start first.

A modern client opens a stream (`subscriptions/listen`). A legacy client gets notifications of lists without asking, and
subscribes to resources one by one.

A stream is acknowledged by what a server has declared to the gateway's probe. A session's own process or connection to
that server is opened behind the acknowledgement: clients do not wait for a start before they send calls.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from gateway.bridge.subscription_relay import caller_of, child_of, everything, subscription_relay_for
from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.failed_start import fail_start
from gateway.calls.live_session import LiveSession
from gateway.errors import UPSTREAM_UNAVAILABLE, record_full
from gateway.observability.logs import CORRELATION
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import HandshakeRefused, capabilities_of
from gateway.protocol.subscription_filter import ENDED, MAX_LISTENED_BYTES, Filter, SubscriptionFilter, beyond
from gateway.relay.late_servers import Asker, LateServers
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era
from transports.jsonrpc import Message, Object, encode
from transports.reply_queue import Frame
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["acknowledge_nothing", "asks_for_nothing", "has_to_start", "listen", "listen_behind", "relay_changes"]

logger = logging.getLogger(__name__)


async def relay_changes(
    upstream: ConfiguredUpstream, live: LiveSession, correlation: str, *, anew: bool = False
) -> None:
    """Subscribe to a modern server for a legacy client, which expects notifications without a request.

    Raises:
        UpstreamUnavailable, LinkClosed: the subscription failed.
    """
    relay = live.subscription_relays.get(upstream.name)
    if relay is not None:
        if not anew:
            return
        del live.subscription_relays[upstream.name]
        if relay.conversation is not None:
            relay.conversation.cancel(relay, "the subscriptions have changed")
    # Taken before anything is awaited, so that of several calls at the same time one subscribes.
    relay = live.subscription_relays[upstream.name] = subscription_relay_for(live, upstream.name)
    is_sent = False
    try:
        capabilities = await upstream.capabilities()
        if live.subscription_relays.get(upstream.name) is not relay:
            return  # the subscriptions have changed meanwhile
        wanted = everything(upstream.permits(live.session.context, frozenset(live.session.subscriptions)))
        wanted = wanted.honoured(capabilities)
        if wanted or _share_extension(live, upstream.extensions):
            conversation = upstream.conversation(live, Era.MODERN, correlation)
            await conversation.start(relay, _params(wanted), caller_of(live).meta(""))
            is_sent = True
            if live.subscription_relays.get(upstream.name) is not relay:
                conversation.cancel(relay, "the subscriptions have changed")
    finally:
        if not is_sent and live.subscription_relays.get(upstream.name) is relay:
            del live.subscription_relays[upstream.name]


def asks_for_nothing(call: Call) -> bool:
    """Whether the filter of a `subscriptions/listen` is empty, and its client has declared no extension that might have
    notifications of its own: no server has to know of the stream."""
    return bytes(call.params.get("notifications", b"")) == b"{}" and not _declared_in(call).is_open


def _share_extension(live: LiveSession, server: Declared) -> bool:
    """Whether a legacy client and a server have declared the same extension: it may have notifications of its own."""
    return not set(caller_of(live).declared.names).isdisjoint(server.names)


def _declared_in(call: Call) -> Declared:
    """What the client has declared in a request."""
    caller = call.exchange.caller
    return Declared() if caller is None else caller.declared


def acknowledge_nothing(call: Call) -> None:
    """Answer a `subscriptions/listen` with an empty filter."""
    SubscriptionFilter(call.exchange.client_id, Filter(), call.exchange.emit).acknowledge(Filter())


def has_to_start(upstream: ConfiguredUpstream, live: LiveSession) -> bool:
    """Whether what a server supports is known, and this session has no open link to it."""
    return upstream.discovery is not None and not upstream.is_open_to(live)


async def listen_behind(upstream: ConfiguredUpstream, call: Call, send: Callable[[Call], Awaitable[None]]) -> None:
    """Acknowledge a `subscriptions/listen` at a modern server that has to start, and have `send` send it to that server
    behind the acknowledgement. If the server cannot be reached, or refuses, its error ends the stream.

    Raises:
        UpstreamUnavailable: the session has ended.
        StoreUnavailable: the store does not answer.
    """
    exchange, live = call.exchange, call.live
    assert live is not None
    conversation = await upstream.conversation_for(call)
    await conversation.join(live)  # so that the subscription is sent before any call that follows
    wanted, declared = Filter.of(call.params), upstream.extensions
    wanted = msgspec.structs.replace(wanted, uris=upstream.permits(exchange.context, wanted.uris))
    subscription = SubscriptionFilter(exchange.client_id, Filter(), exchange.emit)
    subscription.honour({key: raw for key, raw in beyond(call.params).items() if declared.takes(key)})
    exchange.queue_at(conversation)
    exchange.acknowledged_here()
    conversation.in_background(_or_fail(conversation, exchange, functools.partial(send, call)))
    subscription.acknowledge(wanted.honoured(upstream.declared))


async def _or_fail(conversation: Conversation, exchange: Exchange, work: Callable[[], Awaitable[None]]) -> None:
    """Do what nobody waits for. An error ends the stream of the client."""
    CORRELATION.set(exchange.correlation)  # of this task
    try:
        await work()
    except asyncio.CancelledError:
        exchange.fail(UPSTREAM_UNAVAILABLE, f"the connection to server {conversation.name!r} was closed")
        raise
    except Exception as error:  # nobody else would end the stream
        fail_start(conversation, exchange, error, UPSTREAM_UNAVAILABLE)


async def listen(
    upstreams: Iterable[ConfiguredUpstream],
    call: Call,
    late: LateServers | None,
    owner: Callable[[str, Call], ConfiguredUpstream | None] | None = None,
) -> None:
    """Answer a `subscriptions/listen` for several servers, or for one legacy server (`late` is None). Servers that are
    late are subscribed to when they are up, and changes of the lists are notified of by the gateway itself.

    `owner` returns the server that is known to have a resource: no other server gets the subscription to it. A resource
    that none is known to have is subscribed to at all servers, as it may come into being at any.

    Raises:
        Refused: the subscriptions of the session are too large together.
    """
    exchange, live = call.exchange, call.live
    assert live is not None
    subscription = SubscriptionFilter(exchange.client_id, Filter.of(call.params), exchange.emit, _declared_in(call))
    if sum(each.wanted.size for each in (*live.subscriptions, subscription)) > MAX_LISTENED_BYTES:
        raise record_full("params.notifications", MAX_LISTENED_BYTES)
    elsewhere = {} if owner is None else {uri: owner(uri, call) for uri in subscription.wanted.uris}
    server_subscriptions = _ServerSubscriptions(live, subscription, exchange, elsewhere, beyond(call.params))
    exchange.when_done(server_subscriptions.end)
    live.subscriptions.append(subscription)
    honoured = Filter()
    awaited: list[str] = []
    if late is None:
        for upstream in upstreams:
            try:
                honoured |= await server_subscriptions.opened(upstream, call)
            except (UpstreamUnavailable, HandshakeRefused, LinkClosed) as error:
                logger.warning("the subscription to server %s failed: %s", upstream.name, error)
    else:
        late.add(subscription)
        exchange.when_done(lambda: late.discard(subscription))
        joined = await late.gather(
            upstreams,
            Asker.of(call),
            lambda upstream: server_subscriptions.opened(upstream, call, late),
            waiting=server_subscriptions,
        )
        honoured = Filter(kinds=subscription.wanted.kinds)
        for part in joined.answers.values():
            honoured |= part
        awaited = [missing.server for missing in joined.missing]
    subscription.acknowledge(honoured)
    server_subscriptions.acknowledged(awaited)


class _ServerSubscriptions:
    """The subscriptions at servers for one `subscriptions/listen` of a client. They end with it.

    It ends when the last server has ended its part, unless a server may still notify: legacy servers do for as long as
    they run, and those that are late have yet to come.
    """

    def __init__(
        self,
        live: LiveSession,
        subscription: SubscriptionFilter,
        exchange: Exchange,
        owners: Mapping[str, ConfiguredUpstream | None],
        further: Object,
    ) -> None:
        self._live = live
        self._subscription = subscription
        self._exchange = exchange
        self._asked_for = subscription.wanted
        self._beyond = further
        self._owners = owners
        self.has_ended = False
        self._awaited: set[str] = set()
        self._is_acknowledged = False
        self._is_lasting = False  # a legacy server notifies
        self._subscribed: list[tuple[Conversation, str]] = []
        self._children: list[Exchange] = []
        self._has_child_ended = self._has_child_failed = False

    async def opened(self, upstream: ConfiguredUpstream, call: Call, late: LateServers | None = None) -> Filter:
        """Subscribe at a server, or have that done behind the acknowledgement if the server has to start: with `late`,
        until it succeeds. Returns the part of the filter that the server supports."""
        conversation = await upstream.conversation_for(call)
        if not has_to_start(upstream, self._live):
            return await self.join(upstream, conversation)
        await conversation.join(self._live)  # so that the subscription is sent before any call that follows
        self._awaited.add(upstream.name)
        if late is None:
            joining = functools.partial(self.arrived, upstream, conversation)
            conversation.in_background(_or_fail(conversation, self._exchange, joining))
        else:
            late.connect(upstream, Asker.of(call), self)
        return self.expected(upstream)

    def expected(self, upstream: ConfiguredUpstream) -> Filter:
        """The part of the filter that a server supports by what it has declared to the gateway's probe."""
        declared = upstream.extensions
        self._subscription.honour({key: raw for key, raw in self._beyond.items() if declared.takes(key)})
        return self._wanted(upstream).honoured(upstream.declared)

    async def arrived(self, upstream: ConfiguredUpstream, conversation: Conversation) -> None:
        """Subscribe at a server that is up only now."""
        self._subscription.extend(await self.join(upstream, conversation))
        self._awaited.discard(upstream.name)
        self._end_with_the_last()

    async def join(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe in a conversation. The result is that of `opened`."""
        if conversation.era is Era.MODERN:
            return await self.listen(upstream, conversation)
        return await self.subscribe(upstream, conversation)

    async def listen(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe at a modern server. The result is that of `opened`."""
        capabilities = await upstream.capabilities()
        if self.has_ended:
            return Filter()
        part, declared = self._wanted(upstream).honoured(capabilities), upstream.extensions
        more = {key: raw for key, raw in self._beyond.items() if declared.takes(key)}
        if part or more:
            self._subscription.honour(more)
            child, caller = child_of(self._exchange, self._child_ended), self._exchange.caller
            child.listen_for(part)
            self._children.append(child)
            try:
                await conversation.start(child, _params(part, more), caller.meta("") if caller else {})
            except BaseException:
                if child in self._children:
                    self._children.remove(child)
                raise
        return part

    def _wanted(self, upstream: ConfiguredUpstream) -> Filter:
        wanted = self._asked_for
        uris = frozenset(uri for uri in wanted.uris if self._owners.get(uri) in (None, upstream))
        return msgspec.structs.replace(wanted, uris=upstream.permits(self._exchange.context, uris))

    async def subscribe(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe at a legacy server, which notifies all clients of changed lists. The result is that of
        `opened`."""
        await conversation.join(self._live)
        await conversation.ready()
        if self.has_ended:
            return Filter()
        part = self._wanted(upstream).honoured(capabilities_of(conversation.initialize_result))
        self._is_lasting |= bool(part)
        for uri in sorted(part.uris):
            self._subscribed.append((conversation, uri))
            conversation.request("resources/subscribe", encode({"uri": uri}))
        return part

    def acknowledged(self, awaited: Iterable[str]) -> None:
        """The client knows that the stream is open: it may end. The servers `awaited` are late."""
        self._is_acknowledged = True
        self._awaited.update(awaited)
        self._end_with_the_last()

    def _child_ended(self, child: Exchange, last: Frame) -> None:
        if child in self._children:
            self._children.remove(child)
            self._has_child_ended = True
            self._has_child_failed |= last.error_code is not None
        self._end_with_the_last()

    def _end_with_the_last(self) -> None:
        """End the stream of the client once no server is left that could notify."""
        is_open = self._children or self._awaited or self._is_lasting
        if not (self._has_child_ended and self._is_acknowledged) or is_open or self.has_ended:
            return
        if self._has_child_failed:
            self._exchange.fail(UPSTREAM_UNAVAILABLE, "the servers with the subscriptions of this stream are gone")
        else:
            self._exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(ENDED)))

    def end(self) -> None:
        """End the subscriptions at the servers, except to resources that other subscriptions of the session name."""
        self.has_ended = True
        if self._subscription in self._live.subscriptions:
            self._live.subscriptions.remove(self._subscription)
        still = set().union(*(other.wanted.uris for other in self._live.subscriptions))
        for conversation, uri in self._subscribed:
            if uri not in still:
                conversation.request("resources/unsubscribe", encode({"uri": uri}))
        for child in tuple(self._children):
            if child.conversation is not None:
                child.conversation.cancel(child, "the client closed the stream")


def _params(wanted: Filter, more: Object | None = None) -> Object:
    return {"notifications": msgspec.Raw(encode({**wanted.as_notifications(), **(more or {})}))}
