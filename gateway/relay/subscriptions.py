"""Subscriptions to changes across eras, or to several servers at once.

A modern client opens a stream (`subscriptions/listen`). A legacy client gets notifications of lists without asking, and
subscribes to resources one by one.
"""

import logging
from collections.abc import Iterable

import msgspec

from gateway.bridge.subscription_relay import caller_of, child_of, everything, subscription_relay_for
from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.errors import record_full
from gateway.protocol.handshake import HandshakeRefused, capabilities_of
from gateway.protocol.subscription_filter import MAX_LISTENED_BYTES, Filter, SubscriptionFilter
from gateway.relay.late_servers import Asker, LateServers
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era
from transports.jsonrpc import Object, encode
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["listen", "relay_changes"]

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
    uris = upstream.permits(live.session.context, frozenset(live.session.subscriptions))
    wanted = everything(uris).honoured(await upstream.capabilities())
    if not wanted:
        return
    relay = live.subscription_relays[upstream.name] = subscription_relay_for(live, upstream.name)
    try:
        conversation = upstream.conversation(live, Era.MODERN, correlation)
        await conversation.start(relay, _params(wanted), caller_of(live).meta(""))
    except BaseException:
        live.subscription_relays.pop(upstream.name, None)
        raise


async def listen(upstreams: Iterable[ConfiguredUpstream], call: Call, late: LateServers | None) -> None:
    """Answer a `subscriptions/listen` for several servers, or for one legacy server (`late` is None). Servers that are
    late are subscribed to when they are up, and changes of the lists are notified of by the gateway itself.

    Raises:
        Refused: the subscriptions of the session are too large together.
    """
    exchange, live = call.exchange, call.live
    assert live is not None
    subscription = SubscriptionFilter(exchange.client_id, Filter.of(call.params), exchange.emit)
    if sum(each.wanted.size for each in (*live.subscriptions, subscription)) > MAX_LISTENED_BYTES:
        raise record_full("params.notifications", MAX_LISTENED_BYTES)
    server_subscriptions = _ServerSubscriptions(live, subscription, exchange)
    exchange.when_done(server_subscriptions.end)
    live.subscriptions.append(subscription)
    honoured = Filter()
    if late is None:
        for upstream in upstreams:
            try:
                honoured |= await server_subscriptions.join(upstream, await upstream.conversation_for(call))
            except (UpstreamUnavailable, HandshakeRefused, LinkClosed) as error:
                logger.warning("the subscription to server %s failed: %s", upstream.name, error)
    else:
        late.add(subscription)
        exchange.when_done(lambda: late.discard(subscription))
        joined = await late.gather(
            upstreams,
            Asker.of(call),
            lambda upstream: server_subscriptions.opened(upstream, call),
            waiting=server_subscriptions,
        )
        honoured = Filter(kinds=subscription.wanted.kinds)
        for part in joined.answers.values():
            honoured |= part
    subscription.acknowledge(honoured)


class _ServerSubscriptions:
    """The subscriptions at servers for one `subscriptions/listen` of a client. They end with it."""

    def __init__(self, live: LiveSession, subscription: SubscriptionFilter, exchange: Exchange) -> None:
        self._live = live
        self._subscription = subscription
        self._exchange = exchange
        self._asked_for = subscription.wanted
        self.has_ended = False
        self._subscribed: list[tuple[Conversation, str]] = []
        self._children: list[Exchange] = []

    async def opened(self, upstream: ConfiguredUpstream, call: Call) -> Filter:
        """Subscribe at a server. Returns the part of the filter that the server supports."""
        return await self.join(upstream, await upstream.conversation_for(call))

    async def arrived(self, upstream: ConfiguredUpstream, conversation: Conversation) -> None:
        """Subscribe at a server that is up only now."""
        self._subscription.extend(await self.join(upstream, conversation))

    async def join(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe in a conversation. The result is that of `opened`."""
        if conversation.era is Era.MODERN:
            return await self.listen(upstream, conversation)
        return await self.subscribe(upstream, conversation)

    async def listen(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe at a modern server. The result is that of `opened`."""
        part = self._wanted(upstream).honoured(await upstream.capabilities())
        if part:
            child, caller = child_of(self._exchange), self._exchange.caller
            self._children.append(child)
            await conversation.start(child, _params(part), caller.meta("") if caller else {})
        return part

    def _wanted(self, upstream: ConfiguredUpstream) -> Filter:
        wanted = self._asked_for
        return msgspec.structs.replace(wanted, uris=upstream.permits(self._live.session.context, wanted.uris))

    async def subscribe(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe at a legacy server, which notifies all clients of changed lists. The result is that of
        `opened`."""
        await conversation.join(self._live)
        await conversation.ready()
        part = self._wanted(upstream).honoured(capabilities_of(conversation.initialize_result))
        for uri in sorted(part.uris):
            self._subscribed.append((conversation, uri))
            conversation.request("resources/subscribe", encode({"uri": uri}))
        return part

    def end(self) -> None:
        """End the subscriptions at the servers, except to resources that other subscriptions of the session name."""
        self.has_ended = True
        if self._subscription in self._live.subscriptions:
            self._live.subscriptions.remove(self._subscription)
        still = set().union(*(other.wanted.uris for other in self._live.subscriptions))
        for conversation, uri in self._subscribed:
            if uri not in still:
                conversation.request("resources/unsubscribe", encode({"uri": uri}))
        for child in self._children:
            if child.conversation is not None:
                child.conversation.cancel(child, "the client closed the stream")


def _params(wanted: Filter) -> Object:
    return {"notifications": msgspec.Raw(encode(wanted.as_notifications()))}
