"""Listening to modern servers on behalf of legacy clients, and of clients that listen to several servers at once."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.protocol.capabilities import Caller, caller_of_params
from gateway.protocol.methods import CHANGES
from gateway.protocol.subscription_filter import SUBSCRIPTION_ID, Filter
from transports.jsonrpc import Object, encode, encode_notification, parse, splice
from transports.reply_queue import Frame, ReplyQueue

if TYPE_CHECKING:
    from gateway.calls.live_session import LiveSession

__all__ = ["caller_of", "child_of", "everything", "subscription_relay_for"]

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_LISTEN: Final = "subscriptions/listen"


class _Heard(ReplyQueue):
    """Frames that go to a function instead of a client."""

    __slots__ = ("_hear",)

    def __init__(self, hear: Callable[[Frame], None]) -> None:
        super().__init__()
        self._hear = hear

    def push(self, frame: Frame) -> bool:
        self._hear(frame)
        return True


def caller_of(live: "LiveSession") -> Caller:
    """A legacy client, as modern servers are told of it."""
    return caller_of_params(live.session.client.initialize_params)


def everything(uris: Iterable[str]) -> Filter:
    """All a server may have to say, and these resources."""
    return Filter(kinds=frozenset(row.flag for row in CHANGES.values() if row.flag), uris=frozenset(uris))


def subscription_relay_for(live: "LiveSession", upstream: str) -> Exchange:
    """A `subscriptions/listen` of the gateway, whose frames a legacy client receives on its own stream."""

    def hear(frame: Frame) -> None:
        if frame.final:
            if live.hearing.get(upstream) is exchange:
                del live.hearing[upstream]  # the next call listens again
            return
        message = parse(frame.data)
        if message.method == _ACKNOWLEDGED:
            return
        params = message.params_object()
        meta = msgspec.json.decode(params.get("_meta", b"{}"), type=Object)
        meta.pop(SUBSCRIPTION_ID, None)
        plain = {key: value for key, value in params.items() if key != "_meta"}
        if meta:
            plain["_meta"] = msgspec.Raw(encode(meta))
        live.tell(encode_notification(str(message.method), splice(encode(plain))))

    exchange = Exchange(method=_LISTEN, client_id=0, live=live, replies=_Heard(hear))
    return exchange


def child_of(parent: Exchange) -> Exchange:
    """A part of a client's `subscriptions/listen`, to one of several servers."""

    def hear(frame: Frame) -> None:
        if not frame.final and parse(frame.data).method != _ACKNOWLEDGED:
            parent.emit(frame.data)

    return Exchange(method=_LISTEN, client_id=parent.client_id, live=parent.live, replies=_Heard(hear))
