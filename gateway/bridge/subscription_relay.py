"""The gateway's own subscriptions at modern servers: for legacy clients, and for subscriptions to several servers."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.unnamed import unnamed
from gateway.protocol.capabilities import Caller, caller_of_params
from gateway.protocol.methods import CHANGES
from gateway.protocol.subscription_filter import ACKNOWLEDGED, SUBSCRIPTION_ID, Filter
from transports.jsonrpc import Object, encode, encode_notification, parse, splice
from transports.reply_queue import Frame, ReplyQueue

__all__ = ["RelayedReplies", "caller_of", "child_of", "everything", "subscription_relay_for"]

_LISTEN: Final = "subscriptions/listen"


class RelayedReplies(ReplyQueue):
    """Replies that go to a function instead of a client. `client` are those of the client's stream that they are a part
    of: it is kept alive while nothing comes."""

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


def caller_of(live: LiveSession) -> Caller:
    """The description of a legacy client that modern servers get with every request."""
    return caller_of_params(live.session.client.initialize_params)


def everything(uris: Iterable[str]) -> Filter:
    """A filter for all kinds of changes, and for changes of these resources."""
    return Filter(kinds=frozenset(row.flag for row in CHANGES.values() if row.flag), uris=frozenset(uris))


def subscription_relay_for(live: LiveSession, upstream: str) -> Exchange:
    """A `subscriptions/listen` of the gateway's. Its notifications go to a legacy client on the client's own stream."""

    def receive(frame: Frame) -> None:
        if frame.final:
            if live.subscription_relays.get(upstream) is exchange:
                del live.subscription_relays[upstream]  # the next call subscribes again
            return
        message = parse(frame.data)
        if message.method == ACKNOWLEDGED:
            return
        params = message.params_object()
        meta = msgspec.json.decode(params.get("_meta", b"{}"), type=Object)
        meta.pop(SUBSCRIPTION_ID, None)
        plain = {key: value for key, value in params.items() if key != "_meta"}
        if meta:
            plain["_meta"] = msgspec.Raw(encode(meta))
        live.send_to_client(encode_notification(str(message.method), splice(encode(plain)) if plain else None))

    exchange = Exchange(method=_LISTEN, client_id=unnamed(), live=live, replies=RelayedReplies(receive))
    return exchange


def child_of(
    parent: Exchange,
    emit: Callable[[bytes], None],
    acknowledged: Callable[[], None],
    ended: Callable[[Exchange, Frame], None],
) -> Exchange:
    """The part of a client's `subscriptions/listen` that goes to one of several servers. `emit` gets its notifications.
    `acknowledged` is called when the server has the subscription. `ended` gets this part and its last frame: a result
    if the server has ended it, an error if the server is gone."""

    def receive(frame: Frame) -> None:
        if frame.final:
            ended(child, frame)
        else:
            emit(frame.data)

    replies = RelayedReplies(receive, parent.replies)
    child = Exchange(method=_LISTEN, client_id=parent.client_id, live=parent.live, replies=replies)
    child.acknowledged_here(acknowledged)
    return child
