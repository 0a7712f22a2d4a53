"""Subscribe at modern servers for clients: for a legacy client, or for one part of a modern client's stream."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange, fallback_id
from gateway.calls.link_manager import LinkSession
from gateway.calls.live_session import LiveSession
from gateway.protocol.client_capabilities import ClientDeclaration, declaration_in_params
from gateway.protocol.methods import CHANGES
from gateway.protocol.subscription_filter import SUBSCRIPTION_ID, Filter
from transports.jsonrpc import Object, encode, encode_notification, parse, splice
from transports.reply_queue import Frame, ReplyQueue

_LISTEN: Final = "subscriptions/listen"


class RelayedReplies(ReplyQueue):
    """A queue of replies that calls `receive` with each message, instead of sending it to a client. `client` is the
    reply queue of the client's stream, on which keepalives are sent; None to send none."""

    __slots__ = ("_client", "_receive")

    def __init__(self, receive: Callable[[Frame], None], client: ReplyQueue | None = None) -> None:
        super().__init__()
        self._receive = receive
        self._client = client

    def tick(self, now: float) -> None:
        if self._client is not None:
            self._client.tick(now)

    def push(self, frame: Frame) -> bool:
        self._receive(frame)
        return True


def declaration_of(live: LinkSession) -> ClientDeclaration:
    """Return what the legacy client of a session has declared at `initialize` (its name and capabilities), in the form
    for requests to modern servers."""
    return declaration_in_params(live.session.client.initialize_params)


def declaration_for(exchange: Exchange) -> ClientDeclaration | None:
    """Return what the client of a call has declared: with the call itself or, if it is a legacy client, at the start of
    its session. None if the call has neither a declaration nor a session."""
    if exchange.declaration is None and exchange.live is not None:
        return declaration_of(exchange.live)
    return exchange.declaration


def everything(uris: Iterable[str]) -> Filter:
    """Return a filter for changes of all lists, and of the resources with these URIs."""
    return Filter(kinds=frozenset(row.flag for row in CHANGES.values() if row.flag), uris=frozenset(uris))


class GatewaySubscription(Exchange):
    """A `subscriptions/listen` that the gateway sends to a modern server for a legacy client, which expects
    notifications without a request.

    A new one is not sent yet. Its notifications go to the client's standalone stream. `gone` is called when it ends
    after the server has acknowledged it: the server has ended it, or is gone. It is not called if the gateway withdraws
    it.

    `is_confirmed`: the server has acknowledged the subscription. `is_waited_for`: calls wait for the acknowledgement.
    `may_miss`: the client may have missed a change, so the gateway notifies the client of all changes when the
    acknowledgement comes.
    """

    def __init__(self, live: LiveSession, gone: Callable[[], None]) -> None:
        replies = RelayedReplies(self._receive)
        super().__init__(method=_LISTEN, client_id=fallback_id(), live=live, replies=replies)
        self._filter = Filter()
        self.is_confirmed = self.has_ended = self.may_miss = False
        self.is_waited_for = True
        self._send = live.send_to_client
        self._settled = asyncio.Event()
        self._before: GatewaySubscription | None = None
        self._is_withdrawn = False
        self._gone = gone
        self.acknowledged_here(self._confirmed)

    def set_filter(self, wanted: Filter) -> None:
        """Set the filter that is sent to the server: the changes of which it can notify."""
        self._filter = wanted

    def _receive(self, frame: Frame) -> None:
        if frame.final:
            self.end()  # the next call subscribes again
            return
        message = parse(frame.data)
        params = message.params_object()
        meta = msgspec.json.decode(params.get("_meta", b"{}"), type=Object)
        meta.pop(SUBSCRIPTION_ID, None)
        plain = {key: value for key, value in params.items() if key != "_meta"}
        if meta:
            plain["_meta"] = msgspec.Raw(encode(meta))
        self._send(encode_notification(str(message.method), splice(encode(plain)) if plain else None))

    def replace(self, before: "GatewaySubscription") -> None:
        """Replace the earlier subscription `before`. If the server has acknowledged `before`, withdraw it only when
        this subscription is acknowledged, has ended or was waited for in vain (`settled`), so that the client misses no
        change. Otherwise withdraw it at once."""
        self.is_waited_for = before.is_confirmed or (before.is_waited_for and not before.has_ended)
        self.may_miss = before.may_miss or (before.is_confirmed and before.has_ended)
        if before.has_ended:
            return
        if before.is_confirmed:
            self._before = before
        else:
            self._before, before._before = before._before, None
            before.withdraw()

    async def settled(self, within_s: float) -> None:
        """Wait up to `within_s` seconds until the server has acknowledged or ended the subscription. After a timeout,
        later calls of this method do not wait."""
        if self._settled.is_set() or not self.is_waited_for:
            self.may_miss |= not self._settled.is_set()
            return
        try:
            async with asyncio.timeout(within_s):
                await self._settled.wait()
        except TimeoutError:
            self.is_waited_for, self.may_miss = False, True
            self._end_before()

    def _confirmed(self) -> None:
        self.is_confirmed = True
        self._settle()
        if self.may_miss:
            self.may_miss = False
            for method, params, _ in self._filter.changes():
                self._send(encode_notification(method, splice(encode(params)) if params else None))

    def end(self) -> None:
        """Record that the server has ended the subscription, or that the subscription was never sent."""
        self.has_ended = True
        self._settle()
        if self.is_confirmed and not self._is_withdrawn:
            self._gone()

    def withdraw(self) -> None:
        """Cancel the subscription at the server, if it was sent."""
        self._is_withdrawn = True
        if self.conversation is not None:
            self.conversation.cancel(self, "the subscriptions have changed")

    def _settle(self) -> None:
        self._settled.set()
        self._end_before()

    def _end_before(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before.withdraw()


def gateway_subscription_of(live: LiveSession, upstream: str) -> GatewaySubscription | None:
    """Return the session's subscription at this server, even an ended one; None if there is none."""
    found = live.gateway_subscriptions.get(upstream)
    return found if isinstance(found, GatewaySubscription) else None


def part_for_server(
    parent: Exchange,
    emit: Callable[[bytes], None],
    acknowledged: Callable[[], None],
    ended: Callable[[Exchange, Frame], None],
) -> Exchange:
    """Return a request to one server: its part of `parent`, a client's `subscriptions/listen` for several servers. The
    request is not sent yet.

    `emit` is called with each notification, and `acknowledged` when the server has acknowledged the request. `ended` is
    called with the request and its last frame: a result from the server, or an error if the server is gone.
    """

    def receive(frame: Frame) -> None:
        if frame.final:
            ended(child, frame)
        else:
            emit(frame.data)

    replies = RelayedReplies(receive, parent.replies)
    child = Exchange(method=_LISTEN, client_id=parent.client_id, live=parent.live, replies=replies)
    child.acknowledged_here(acknowledged)
    return child
