"""Subscribe clients to changes: across eras, at several servers at once, or at a server that has to start first.

A modern client opens a stream (`subscriptions/listen`). A legacy client gets notifications of lists without asking, and
subscribes to resources one by one.

A stream is acknowledged by what a server has declared to the gateway's probe. The session's own process or connection
is opened after that, so that clients do not wait for a start before they send calls. Changes before the server has the
subscription are not lost: the client then gets one notification for each kind and resource.
"""

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from gateway.bridge.subscription_relay import caller_of, everything, subscription_relay_for, subscription_relay_of
from gateway.calls.call import Call
from gateway.calls.live_session import LiveSession
from gateway.errors import record_full
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.subscription_filter import MAX_LISTENED_BYTES, Filter, SubscriptionFilter, extension_members
from gateway.relay.late_servers import UNAVAILABLE, Asker, LateServers
from gateway.relay.server_subscriptions import CONFIRM_S, ServerSubscriptions, has_to_start, listen_params, or_fail
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import StoreError
from transports.era import Era
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["changes_confirmed", "listen", "open_stream", "relay_changes", "waits_for_changes"]

logger = logging.getLogger(__name__)


async def relay_changes(
    upstream: ConfiguredUpstream, live: LiveSession, correlation: str, *, anew: bool = False
) -> None:
    """Subscribe at a modern server for a legacy client, which expects notifications without a request. With `anew`,
    replace the subscription that it has.

    Raises:
        UpstreamUnavailable, LinkClosed: the subscription failed.
    """
    before = subscription_relay_of(live, upstream.name)
    if before is not None and not before.has_ended and not anew:
        return
    # Set before any await, so that only one of several calls at the same time subscribes.
    relay = live.subscription_relays[upstream.name] = subscription_relay_for(live)
    relay.when_gone(functools.partial(_with_the_next_start, upstream, live, correlation))
    if before is not None:
        relay.follow(before)
    is_sent = False
    try:
        capabilities = await upstream.capabilities()
        if live.subscription_relays.get(upstream.name) is not relay:
            return  # the subscriptions have changed meanwhile
        wanted = _wanted(upstream, live, capabilities)
        relay.ask_for(wanted)
        if wanted or _share_extension(live, upstream.extensions):
            conversation = upstream.conversation(live, Era.MODERN, correlation)
            await conversation.start(relay, listen_params(wanted), caller_of(live).meta(""))
            is_sent = True
            if live.subscription_relays.get(upstream.name) is not relay:
                relay.withdraw()
    finally:
        if not is_sent:
            relay.end()
            if live.subscription_relays.get(upstream.name) is relay:
                del live.subscription_relays[upstream.name]
                if before is not None and before.has_ended:
                    live.subscription_relays[upstream.name] = before  # so that the next subscription knows of the gap


def _with_the_next_start(upstream: ConfiguredUpstream, live: LiveSession, correlation: str) -> None:
    """Subscribe again when the process starts again. A call that starts it may not know yet that it was gone."""

    def again() -> None:
        with contextlib.suppress(UpstreamUnavailable):  # the session has ended
            upstream.conversation(live, Era.MODERN, correlation).in_background(subscribe())

    async def subscribe() -> None:
        try:
            await relay_changes(upstream, live, correlation)
        except (*UNAVAILABLE, StoreError) as error:  # the next call subscribes
            logger.debug("the subscription to server %s failed: %s", upstream.name, error)

    if not live.ended and upstream.settings.kind == "command":
        upstream.when_started(live, again)


def waits_for_changes(upstream: ConfiguredUpstream, live: LiveSession) -> bool:
    """Return True if a legacy client's call has to wait until the modern server has the client's subscription. Return
    False if `relay_changes` would subscribe to nothing."""
    if not live.session.initialized:
        return False
    relay = subscription_relay_of(live, upstream.name)
    if relay is not None:
        return relay.has_ended or not relay.is_confirmed
    is_notified = upstream.notifies and bool(_wanted(upstream, live, upstream.declared))
    return is_notified or _share_extension(live, upstream.extensions)


def _wanted(upstream: ConfiguredUpstream, live: LiveSession, capabilities: Mapping[str, Any]) -> Filter:
    """Return the changes of which a server with these capabilities notifies the legacy client."""
    uris = upstream.permits(live.session.context, frozenset(live.session.subscriptions))
    return everything(uris).honoured(capabilities)


async def changes_confirmed(upstream: ConfiguredUpstream, live: LiveSession) -> None:
    """Wait `CONFIRM_S` at most until the server has a legacy client's subscription, so that a call is sent after it."""
    relay = subscription_relay_of(live, upstream.name)
    if relay is not None and not relay.is_confirmed:
        await relay.settled(CONFIRM_S)


async def open_stream(
    seen: Mapping[str, ConfiguredUpstream],
    only: ConfiguredUpstream | None,
    call: Call,
    late: LateServers,
    owner: Callable[[str, Call], ConfiguredUpstream | None],
    send: Callable[[ConfiguredUpstream, Call], Awaitable[object]],
) -> None:
    """Open a stream of notifications: at the only server if it speaks the modern era, or else at all servers that the
    session sees. `send` sends the call to one server. `owner` and errors are those of `listen`."""
    if _asks_for_nothing(call):
        SubscriptionFilter(call.exchange.client_id, Filter(), call.exchange.emit).acknowledge(Filter())
    elif only is None:
        await listen(seen.values(), call, late, owner)
    elif only.name in seen and await only.era_for(Era.MODERN) is Era.MODERN:
        call.exchange.listen_for(Filter.of(call.params))
        # Only a process has to be started: any other server acknowledges as fast as the gateway.
        if only.settings.kind == "command" and call.live is not None and has_to_start(only, call.live):
            await _listen_behind(only, call, functools.partial(send, only))
        else:
            await send(only, call)
    else:
        await listen(seen.values(), call, None, None)


def _asks_for_nothing(call: Call) -> bool:
    """Return True if no server has to know of the stream: its filter is empty, and the client has declared no extension
    that might have notifications of its own."""
    return bytes(call.params.get("notifications", b"")) == b"{}" and not Asker.of(call).declared.is_open


def _share_extension(live: LiveSession, server: Declared) -> bool:
    """Return True if a legacy client and a server have declared a common extension, which may have notifications of its
    own."""
    return bool(server.names) and not set(caller_of(live).declared.names).isdisjoint(server.names)


async def _listen_behind(upstream: ConfiguredUpstream, call: Call, send: Callable[[Call], Awaitable[object]]) -> None:
    """Acknowledge a `subscriptions/listen` at a modern server that has to start, and then have `send` send it there. If
    the server cannot be reached, or refuses, its error ends the stream.

    Raises:
        UpstreamUnavailable: the session has ended.
        StoreUnavailable: the store does not answer.
    """
    exchange, live = call.exchange, call.live
    assert live is not None
    conversation = await upstream.conversation_for(call)
    await conversation.join(live)  # so that afterwards only the start is waited for
    wanted, declared = Filter.of(call.params), upstream.extensions
    wanted = msgspec.structs.replace(wanted, uris=upstream.permits(exchange.context, wanted.uris))
    subscription = SubscriptionFilter(exchange.client_id, Filter(), exchange.emit)
    subscription.honour({key: raw for key, raw in extension_members(call.params).items() if declared.takes(key)})
    exchange.queue_at(conversation)
    honoured = wanted.honoured(upstream.declared)
    exchange.acknowledged_here(functools.partial(subscription.notify_all, honoured))
    conversation.in_background(or_fail(conversation, exchange, functools.partial(send, call)))
    subscription.acknowledge(honoured)


async def listen(
    upstreams: Iterable[ConfiguredUpstream],
    call: Call,
    late: LateServers | None,
    owner: Callable[[str, Call], ConfiguredUpstream | None] | None = None,
) -> None:
    """Answer a `subscriptions/listen` for several servers, or for one legacy server (`late` is None). Subscribe at late
    servers when they are up: the gateway itself then notifies the client of changed lists.

    `owner` returns the server known to have a resource: only that server gets the subscription to it. A resource
    without a known owner is subscribed to at all servers, because any of them may create it.

    Raises:
        Refused: the subscriptions of the session are too large together.
    """
    exchange, live, asker = call.exchange, call.live, Asker.of(call)
    assert live is not None
    subscription = SubscriptionFilter(exchange.client_id, Filter.of(call.params), exchange.emit, asker.declared)
    if sum(each.wanted.size for each in (*live.subscriptions, subscription)) > MAX_LISTENED_BYTES:
        raise record_full("params.notifications", MAX_LISTENED_BYTES)
    elsewhere = {} if owner is None else {uri: owner(uri, call) for uri in subscription.wanted.uris}
    server_subscriptions = ServerSubscriptions(live, subscription, exchange, elsewhere, extension_members(call.params))
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
            asker,
            lambda upstream: server_subscriptions.opened(upstream, call, late),
            waiting=server_subscriptions,
        )
        honoured = Filter(kinds=subscription.wanted.kinds)
        for part in joined.answers.values():
            honoured |= part
        awaited = [missing.server for missing in joined.missing]
    await server_subscriptions.confirmed()
    subscription.acknowledge(honoured)
    server_subscriptions.acknowledged(awaited)
