"""Subscribe clients to changes: across eras, at several servers at once, or at a server that has to start first.

A modern client opens a stream (`subscriptions/listen`). A legacy client gets notifications of changed lists without a
request, and subscribes to each resource.

The gateway acknowledges a stream from what the servers have declared to its own probe. It opens the session's process
or connection afterwards, so that clients need not wait for a start before they send calls. A server then confirms its
part: a modern server by its acknowledgement, a legacy server by its answers to `resources/subscribe`. For each kind and
resource that may have changed before that, the client gets one notification. If a modern server is lost while others
remain, its part is opened again.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from gateway.bridge.modern_server_subscriptions import (
    GatewaySubscription,
    declaration_of,
    everything,
    gateway_subscription_of,
    part_for_server,
)
from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.link_manager import FULL_S, UNREACHED
from gateway.calls.live_session import LiveSession
from gateway.calls.server_start_failures import MOST_S, Backoff
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE, record_full
from gateway.observability.logs import CORRELATION
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import capabilities_of
from gateway.protocol.subscription_filter import (
    ENDED,
    MAX_LISTENED_BYTES,
    Filter,
    SubscriptionFilter,
    extension_members,
)
from gateway.relay.late_servers import UNAVAILABLE, Asker, LateServers
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import StoreError
from transports.era import Era
from transports.jsonrpc import Message, Object, encode
from transports.reply_queue import Frame
from transports.upstream_port import LinkClosed, LinkFull, UpstreamUnavailable

logger = logging.getLogger(__name__)

_MOST_FULL_S: Final = 1.0
"""Maximum seconds between two tries to subscribe at a server that does not read, because many streams may wait."""

_GONE: Final = frozenset({OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE})
"""Error codes of a subscription whose server was lost, or cannot be reached."""

CONFIRM_S: Final = 1.0
"""Seconds that the acknowledgement to the client waits for running servers to confirm their subscriptions."""


async def relay_changes(
    upstream: ConfiguredUpstream, live: LiveSession, correlation: str, *, anew: bool = False
) -> None:
    """Subscribe to changes at a modern server for a legacy client, which expects notifications of them without a
    request. Do nothing if the client has a subscription there. With `anew`, replace that subscription.

    Raises:
        UpstreamUnavailable, LinkClosed: the subscription failed.
    """
    before = gateway_subscription_of(live, upstream.name)
    if before is not None and not before.has_ended and not anew:
        return
    # Set before any await, so that only one of several calls at the same time subscribes.
    renew = functools.partial(_with_the_next_start, upstream, live, correlation)
    subscription = live.gateway_subscriptions[upstream.name] = GatewaySubscription(live, renew)
    if before is not None:
        subscription.replace(before)
    is_sent = False
    try:
        capabilities = await upstream.capabilities()
        if live.gateway_subscriptions.get(upstream.name) is not subscription:
            return  # the subscriptions have changed meanwhile
        wanted = _wanted(upstream, live, capabilities)
        subscription.set_filter(wanted)
        if wanted or _share_extension(live, upstream.extensions):
            conversation = upstream.conversation(live, Era.MODERN, correlation)
            await conversation.start(subscription, listen_params(wanted), declaration_of(live).meta(""))
            is_sent = True
            if live.gateway_subscriptions.get(upstream.name) is not subscription:
                subscription.withdraw()
    finally:
        if not is_sent:
            subscription.end()
            if live.gateway_subscriptions.get(upstream.name) is subscription:
                del live.gateway_subscriptions[upstream.name]
                if before is not None and before.has_ended:
                    live.gateway_subscriptions[upstream.name] = before  # so that the next subscription knows of the gap


def _with_the_next_start(upstream: ConfiguredUpstream, live: LiveSession, correlation: str) -> None:
    """Have the subscription made again when the server's process is next started, because the call that starts it may
    not know that the subscription was lost. Do nothing if the server is no child process, or if the session has
    ended."""

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
    """Return True if a legacy client's call must wait until the modern server has confirmed the client's subscription
    to changes. Return False if it is confirmed, or if there is nothing to subscribe to."""
    if not live.session.initialized:
        return False
    subscription = gateway_subscription_of(live, upstream.name)
    if subscription is not None:
        return subscription.has_ended or not subscription.is_confirmed
    is_notified = upstream.notifies and bool(_wanted(upstream, live, upstream.known_capabilities))
    return is_notified or _share_extension(live, upstream.extensions)


def _wanted(upstream: ConfiguredUpstream, live: LiveSession, capabilities: Mapping[str, Any]) -> Filter:
    """Return the changes of which a legacy client is to be notified: of all its lists, and of the resources that it has
    subscribed to. Leave out what a server with these capabilities cannot notify of."""
    uris = upstream.permits(live.session.context, frozenset(live.session.subscriptions))
    return everything(uris).honoured(capabilities)


async def changes_confirmed(upstream: ConfiguredUpstream, live: LiveSession) -> None:
    """Wait until the server has confirmed a legacy client's subscription to changes, at most `CONFIRM_S` seconds.
    Return at once if there is no such subscription."""
    subscription = gateway_subscription_of(live, upstream.name)
    if subscription is not None and not subscription.is_confirmed:
        await subscription.settled(CONFIRM_S)


async def open_stream(
    seen: Mapping[str, ConfiguredUpstream],
    only: ConfiguredUpstream | None,
    call: Call,
    late: LateServers,
    server_of: Callable[[str, Call], ConfiguredUpstream | None],
    send: Callable[[ConfiguredUpstream, Call], Awaitable[object]],
) -> None:
    """Open a client's stream of notifications (`subscriptions/listen`). If the URL has a single, modern server
    (`only`), send the request to it with `send`. Otherwise subscribe at all servers that the session sees (`seen`).
    `server_of` and the errors are those of `listen`."""
    # If the filter is empty, and no declared extension may notify, no server has to know of the stream.
    if bytes(call.params.get("notifications", b"")) == b"{}" and not Asker.of(call).declared.is_open:
        late.streams.add(call.exchange)
        SubscriptionFilter(call.exchange.client_id, Filter(), call.exchange.emit).acknowledge(Filter())
    elif only is None:
        late.streams.add(call.exchange)
        await listen(seen.values(), call, late, server_of)
    elif only.name in seen and await only.era_for(Era.MODERN) is Era.MODERN:
        call.exchange.listen_for(Filter.of(call.params))
        # Only a process has to be started: any other server acknowledges as fast as the gateway.
        if only.settings.kind == "command" and call.live is not None and has_to_start(only, call.live):
            await _listen_behind(only, call, functools.partial(send, only))
        else:
            await send(only, call)
    else:
        late.streams.add(call.exchange)
        await listen(seen.values(), call, None, None)


def _share_extension(live: LiveSession, server: Declared) -> bool:
    """Return True if the legacy client and the server both declare an extension, which may have its own
    notifications."""
    return bool(server.names) and not set(declaration_of(live).declared.names).isdisjoint(server.names)


async def _listen_behind(upstream: ConfiguredUpstream, call: Call, send: Callable[[Call], Awaitable[object]]) -> None:
    """Acknowledge a `subscriptions/listen` for a modern server that does not run yet. In the background, start the
    server and send it the request with `send`. If that fails, the client's stream ends with the error.

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
    honoured = wanted.honoured(upstream.known_capabilities)
    exchange.acknowledged_here(functools.partial(subscription.notify_all, honoured))
    conversation.in_background(or_fail(conversation, exchange, functools.partial(send, call)))
    subscription.acknowledge(honoured)


async def listen(
    upstreams: Iterable[ConfiguredUpstream],
    call: Call,
    late: LateServers | None,
    server_of: Callable[[str, Call], ConfiguredUpstream | None] | None = None,
) -> None:
    """Answer a `subscriptions/listen` for several servers, or for one legacy server (`late` is None). Subscribe at late
    servers once they have started, and then notify the client of changed lists.

    `server_of` returns the server that is known to have a resource; only this server gets the subscription to it. If
    `server_of` returns None, all servers get the subscription, because any of them may create the resource.

    Raises:
        Refused: the subscriptions of the session are too large together.
    """
    exchange, live, asker = call.exchange, call.live, Asker.of(call)
    assert live is not None
    subscription = SubscriptionFilter(exchange.client_id, Filter.of(call.params), exchange.emit, asker.declared)
    if sum(each.wanted.size for each in (*live.subscriptions, subscription)) > MAX_LISTENED_BYTES:
        raise record_full("params.notifications", MAX_LISTENED_BYTES)
    servers_by_uri = {} if server_of is None else {uri: server_of(uri, call) for uri in subscription.wanted.uris}
    server_subscriptions = ServerSubscriptions(
        live, subscription, exchange, servers_by_uri, extension_members(call.params)
    )
    exchange.when_done(server_subscriptions.end)
    live.subscriptions.append(subscription)
    honoured = Filter()
    awaited: list[str] = []
    if late is None:
        for upstream in upstreams:
            try:
                honoured |= await server_subscriptions.opened(upstream, call)
            except UNREACHED as error:
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


# -- at several servers, or at a legacy one, for one `subscriptions/listen`


def has_to_start(upstream: ConfiguredUpstream, live: LiveSession) -> bool:
    """Return True if the server has to start before the session can use it, but what it offers is known: the session
    has no open link to the server, and the server has answered the gateway's probe."""
    return upstream.discovery is not None and not upstream.is_open_to(live)


async def or_fail(conversation: Conversation, exchange: Exchange, work: Callable[[], Awaitable[object]]) -> None:
    """Run background work for a call (`exchange`). If the work fails, end the call with the error, so that the client's
    stream ends too."""
    CORRELATION.set(exchange.correlation)  # for the log lines of this asyncio task
    try:
        await work()
    except asyncio.CancelledError:
        exchange.fail(UPSTREAM_UNAVAILABLE, f"the connection to server {conversation.name!r} was closed")
        raise
    except Exception as error:  # nobody else would end the stream
        conversation.fail_start(exchange, error, UPSTREAM_UNAVAILABLE)


class ServerSubscriptions:
    """Manage the subscriptions at servers for one `subscriptions/listen` of a client, and end them when the client's
    request ends.

    The client's stream ends when the last server has ended its subscription. It stays open while a server may still
    notify: a legacy server that runs, or a late server."""

    def __init__(
        self,
        live: LiveSession,
        subscription: SubscriptionFilter,
        exchange: Exchange,
        servers_by_uri: Mapping[str, ConfiguredUpstream | None],
        further: Object,
    ) -> None:
        self._live = live
        self._subscription = subscription
        self._exchange = exchange
        self._asked_for = subscription.wanted
        self._beyond = further
        self._servers_by_uri = servers_by_uri
        self.has_ended = False
        self._awaited: set[str] = set()
        self._is_acknowledged = False
        self._is_lasting = False  # a legacy server notifies as long as it runs
        self._subscribed: dict[Conversation, frozenset[str]] = {}
        self._children: list[Exchange] = []
        self._has_child_ended = False
        self._failed: set[str] = set()  # servers whose parts have ended by an error, and were not opened again
        self._lost = LostSubscriptions(live, exchange.correlation, self._listen_again)
        self._unconfirmed: dict[str, asyncio.Future[None]] = {}  # subscriptions, by the name of the server
        self._answers: set[asyncio.Future[Message]] = set()  # to `resources/subscribe`

    async def opened(self, upstream: ConfiguredUpstream, call: Call, late: LateServers | None = None) -> Filter:
        """Subscribe at a server. Return the part of the client's filter that the server supports. If the server has to
        start first, derive this part from what the server has declared to the gateway's probe, and subscribe later in
        the background. With `late`, retry until that succeeds."""
        conversation = await upstream.conversation_for(call)
        if not has_to_start(upstream, self._live):
            return await self.join(upstream, conversation)
        await conversation.join(self._live)  # so that afterwards only the start is waited for
        self._awaited.add(upstream.name)
        if upstream.settings.kind != "command":
            self._ask_for(upstream)  # a connection takes no longer than an answer
        if late is None:
            joining = functools.partial(self.arrived, upstream, conversation)
            conversation.in_background(or_fail(conversation, self._exchange, joining))
        else:
            late.connect(upstream, Asker.of(call), self)
        declared = upstream.extensions  # to the gateway's probe
        self._subscription.honour({key: raw for key, raw in self._beyond.items() if declared.takes(key)})
        return self._wanted(upstream).honoured(upstream.known_capabilities)

    async def arrived(self, upstream: ConfiguredUpstream, conversation: Conversation) -> None:
        """Subscribe at a server that had to start, or was late, and is up now."""
        self._subscription.extend(await self.join(upstream, conversation))
        self._awaited.discard(upstream.name)
        self._end_with_the_last()

    async def join(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe in a conversation of either era. Return the part of the client's filter that the server
        supports."""
        if conversation.era is Era.MODERN:
            return await self.listen(upstream, conversation)
        return await self.subscribe(upstream, conversation)

    async def listen(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe at a modern server, with a `subscriptions/listen`. Return the part of the client's filter that the
        server supports."""
        capabilities = await upstream.capabilities()
        if self.has_ended:
            return Filter()
        part, declared = self._wanted(upstream).honoured(capabilities), upstream.extensions
        more = {key: raw for key, raw in self._beyond.items() if declared.takes(key)}
        if part or more:
            self._subscription.honour(more)
            declaration, has_it = self._exchange.declaration, functools.partial(self._confirm, upstream, part)
            child = part_for_server(
                self._exchange,
                self._subscription.relay,
                has_it,
                lambda child, last: self._child_ended(upstream, child, last),
            )
            child.listen_for(part)
            self._children.append(child)
            self._ask_for(upstream)
            try:
                await conversation.start(child, listen_params(part, more), declaration.meta("") if declaration else {})
            except BaseException:
                if child in self._children:
                    self._children.remove(child)
                self._confirm(upstream)
                raise
        else:
            self._confirm(upstream, part)
        return part

    async def _listen_again(self, upstream: ConfiguredUpstream, conversation: Conversation) -> None:
        CORRELATION.set(self._exchange.correlation)  # for the log lines of this asyncio task
        if self.has_ended:
            return
        try:
            await self.listen(upstream, conversation)
        except (*UNAVAILABLE, StoreError, asyncio.CancelledError) as error:
            if not self.has_ended:
                self._lost.lost(upstream)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _wanted(self, upstream: ConfiguredUpstream) -> Filter:
        wanted = self._asked_for
        uris = frozenset(uri for uri in wanted.uris if self._servers_by_uri.get(uri) in (None, upstream))
        return msgspec.structs.replace(wanted, uris=upstream.permits(self._exchange.context, uris))

    async def subscribe(self, upstream: ConfiguredUpstream, conversation: Conversation) -> Filter:
        """Subscribe to the client's resources at a legacy server, which notifies of changed lists without a
        subscription. Return the part of the client's filter that the server supports."""
        await conversation.join(self._live)
        await conversation.ready()
        if self.has_ended:
            return Filter()
        part = self._wanted(upstream).honoured(capabilities_of(conversation.initialize_result))
        self._is_lasting |= bool(part)
        answers: set[asyncio.Future[Message]] = set()
        unasked = deque(sorted(part.uris))
        self._subscribed[conversation] = self._subscribed.get(conversation, frozenset()) | part.uris
        self._ask_for(upstream)

        def answered(answer: asyncio.Future[Message]) -> None:
            if not answer.cancelled():
                answer.exception()  # marks the error as retrieved: without an answer nothing is known to be missed
            answers.discard(answer)
            self._answers.discard(answer)
            if not answers and not unasked:
                self._confirm(upstream, part)

        def ask(wait_s: float) -> None:
            while unasked and not self.has_ended:
                try:
                    answer = conversation.future_answer("resources/subscribe", encode({"uri": unasked[0]}))
                except LinkFull:
                    asyncio.get_running_loop().call_later(wait_s, ask, min(2 * wait_s, _MOST_FULL_S))
                    return
                except LinkClosed:  # the next link gets all subscriptions
                    unasked.clear()
                    break
                unasked.popleft()
                answers.add(answer)
                self._answers.add(answer)
                answer.add_done_callback(answered)
            if not answers:
                self._confirm(upstream, part)

        ask(FULL_S)
        return part

    def _ask_for(self, upstream: ConfiguredUpstream) -> None:
        """Record that a subscription is being sent to the server, so that `confirmed` waits for its confirmation."""
        if not self._is_acknowledged and upstream.name not in self._unconfirmed:
            self._unconfirmed[upstream.name] = asyncio.get_running_loop().create_future()

    def _confirm(self, upstream: ConfiguredUpstream, part: Filter | None = None) -> None:
        """Record that a server has confirmed its part of the client's filter (`part`). `part` None: the subscription at
        this server has failed. If the client has its acknowledgement already, send it each notification of a change
        that `part` asks for: it may have missed changes."""
        waiting = self._unconfirmed.pop(upstream.name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._is_acknowledged and part is not None and not self.has_ended:
            self._failed.discard(upstream.name)
            self._subscription.extend(part)
            self._subscription.notify_all(part)

    async def confirmed(self) -> None:
        """Wait at most `CONFIRM_S` seconds for the confirmations of all servers that are up."""
        if self._unconfirmed:
            await asyncio.wait(tuple(self._unconfirmed.values()), timeout=CONFIRM_S)

    def acknowledged(self, awaited: Iterable[str]) -> None:
        """Record that the client has got the acknowledgement, so that its stream may end. `awaited` names the servers
        that are late, and may still join the stream."""
        self._is_acknowledged = True
        self._awaited.update(awaited)
        self._end_with_the_last()

    def _child_ended(self, upstream: ConfiguredUpstream, child: Exchange, last: Frame) -> None:
        self._confirm(upstream)
        if child in self._children:
            self._children.remove(child)
            self._has_child_ended = True
            if last.error_code is not None:
                self._failed.add(upstream.name)
        self._end_with_the_last()
        if last.error_code in _GONE and not self.has_ended:
            self._lost.lost(upstream)

    def _end_with_the_last(self) -> None:
        """End the client's stream if no server is left that could still send notifications."""
        is_open = self._children or self._awaited or self._is_lasting
        if not (self._has_child_ended and self._is_acknowledged) or is_open or self.has_ended:
            return
        if self._failed:
            self._exchange.fail(UPSTREAM_UNAVAILABLE, "the servers with the subscriptions of this stream are gone")
        else:
            self._exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(ENDED)))

    def end(self) -> None:
        """End the subscriptions at the servers. At a legacy server, keep the subscription to a resource that another
        stream of the session, or another session that shares the server, still needs."""
        self.has_ended = True
        self._lost.end()
        for answer in tuple(self._answers):
            answer.cancel()
        if self._subscription in self._live.subscriptions:
            self._live.subscriptions.remove(self._subscription)
        for conversation, uris in self._subscribed.items():
            for live in itertools.chain((self._live,), conversation.users):
                if not uris:  # else the ends of many streams would take the square of their number
                    break
                if isinstance(live, LiveSession):
                    uris -= live.subscribed(uris)
            for uri in sorted(uris):
                conversation.request("resources/unsubscribe", encode({"uri": uri}))
        for child in tuple(self._children):
            if child.conversation is not None:
                child.conversation.cancel(child, "the client closed the stream")


def listen_params(wanted: Filter, more: Object | None = None) -> Object:
    return {"notifications": msgspec.Raw(encode({**wanted.as_notifications(), **(more or {})}))}


class LostSubscriptions:
    """Subscribe again, for one stream of a client, at servers that were lost. A child process is subscribed to when it
    next starts, because an unused process has no changes. A server at a URL is subscribed to after the delay of a
    `Backoff`. `listen` makes the subscription at a server, in a conversation of the session."""

    def __init__(
        self,
        live: LiveSession,
        correlation: str,
        listen: Callable[[ConfiguredUpstream, Conversation], Coroutine[Any, Any, None]],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._live = live
        self._correlation = correlation
        self._listen = listen
        self._clock = clock
        self._stop: dict[str, Callable[[], None]] = {}  # functions that cancel the wait, by the name of the server
        self._failures: dict[str, Backoff] = {}

    def lost(self, upstream: ConfiguredUpstream) -> None:
        """Subscribe again at this server, which was lost: when its process starts again, or after a delay if it has a
        URL."""
        name, again = upstream.name, functools.partial(self._again, upstream)
        self._forget(name)
        if not upstream.settings.is_remote:
            self._stop[name] = upstream.when_started(self._live, again)
            return
        failures, now = self._failures.get(name), self._clock()
        if failures is None or now - failures.failed_at - failures.delay_s >= MOST_S:  # the part has lasted
            failures = self._failures[name] = Backoff()
        failures.fail("", now)
        self._stop[name] = asyncio.get_running_loop().call_later(failures.delay_s, again).cancel

    def _again(self, upstream: ConfiguredUpstream) -> None:
        self._stop.pop(upstream.name, None)
        try:
            conversation = upstream.conversation(self._live, Era.MODERN, self._correlation)
        except UpstreamUnavailable:
            return  # the session has ended, and the stream with it
        conversation.in_background(self._listen(upstream, conversation))

    def _forget(self, name: str) -> None:
        if (stop := self._stop.pop(name, None)) is not None:
            stop()

    def end(self) -> None:
        """Stop all attempts to subscribe again."""
        for name in tuple(self._stop):
            self._forget(name)
