"""Send a modern client the notifications that its `subscriptions/listen` asks for, from several servers or legacy ones.

MCP 2026-07-28, Subscriptions.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.protocol.extensions import Declared, object_of
from gateway.protocol.methods import CHANGES
from transports.jsonrpc import Object, RequestId, encode, encode_notification, parse, splice

MAX_LISTENED_BYTES: Final = 64 << 10
"""Maximum number of bytes of the URIs in all open subscriptions of a session, which stay in memory."""

MAX_EARLY: Final = 256
"""Maximum number of extensions' notifications that are queued until a subscription is acknowledged."""

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
ENDED: Final = b'{"resultType":"complete"}'
"""The result with which a server ends a `subscriptions/listen` (MCP 2026-07-28, Subscriptions)."""
_NOTHING: Final = Declared()
_FLAGGED: Final = tuple(row for row in CHANGES.values() if row.flag)
_UPDATED: Final = next(row.name for row in CHANGES.values() if not row.flag)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a client subscribes to: kinds of lists, and URIs of resources."""

    kinds: frozenset[str] = frozenset()
    uris: frozenset[str] = frozenset()

    @classmethod
    def of(cls, params: Object) -> "Filter":
        """Return the filter in the params of a `subscriptions/listen`. Raises `msgspec.MsgspecError` if the filter is
        not an object."""
        wanted = msgspec.json.decode(params.get("notifications", b"{}"), type=dict[str, Any])
        kinds = frozenset(row.flag for row in _FLAGGED if wanted.get(row.flag) is True)
        uris = wanted.get("resourceSubscriptions")
        return cls(kinds=kinds, uris=frozenset(map(str, uris)) if isinstance(uris, list) else frozenset())

    @property
    def size(self) -> int:
        """Return the total number of characters of the URIs."""
        return sum(map(len, self.uris))

    def honoured(self, capabilities: Any) -> "Filter":
        """Return the part of the filter that servers with these capabilities support."""
        kinds = {row.flag for row in _FLAGGED if capabilities.get(row.kind, {}).get("listChanged")}
        subscribes = bool(capabilities.get("resources", {}).get("subscribe"))
        return Filter(kinds=self.kinds & kinds, uris=self.uris if subscribes else frozenset())

    def __or__(self, other: "Filter") -> "Filter":
        return Filter(kinds=self.kinds | other.kinds, uris=self.uris | other.uris)

    def __bool__(self) -> bool:
        return bool(self.kinds or self.uris)

    def wants(self, method: str, uri: object) -> bool:
        """Return True if the filter includes this notification. `uri` is that of the changed resource; ignored for a
        list."""
        row = CHANGES[method]
        return row.flag in self.kinds if row.flag else uri in self.uris

    def may_have(self, method: str) -> bool:
        """Return True if notifications with this method may belong to the subscription. Those of extensions always may.
        URIs are not compared, because a server may report a resource below a subscribed one (MCP,
        `ResourceUpdatedNotification`)."""
        row = CHANGES.get(method)
        return row is None or (row.flag in self.kinds if row.flag else bool(self.uris))

    def changes(self) -> Iterator[tuple[str, Object, str | None]]:
        """Yield a change notification for each kind and each resource in the filter: its method, its params, and the
        resource's URI (None for a list)."""
        for row in _FLAGGED:
            if row.flag in self.kinds:
                yield row.name, {}, None
        for uri in sorted(self.uris):
            yield _UPDATED, {"uri": msgspec.Raw(encode(uri))}, uri

    def as_notifications(self) -> dict[str, Any]:
        """Return the filter as the member `notifications` in the params of a `subscriptions/listen`."""
        wanted: dict[str, Any] = dict.fromkeys(sorted(self.kinds), True)
        return wanted | ({"resourceSubscriptions": sorted(self.uris)} if self.uris else {})


def extension_members(params: Object) -> Object:
    """Return the members in the filter of a `subscriptions/listen` that neither MCP nor its tasks extension defines."""
    known = {"resourceSubscriptions", "taskIds", *(row.flag for row in _FLAGGED)}
    return {key: raw for key, raw in object_of(params.get("notifications")).items() if key not in known}


class SubscriptionFilter:
    """Send a client the notifications that its open `subscriptions/listen` asks for. Queue those that come before the
    acknowledgement is sent. `emit` is called with each frame for the client. `declared` has the extensions that the
    client has declared."""

    def __init__(self, client_id: RequestId, wanted: Filter, emit: Any, declared: Declared = _NOTHING) -> None:
        self.wanted = wanted
        self._declared = declared
        self._client_id = client_id
        self._emit = emit
        self._early: dict[tuple[str, object], Object] | None = {}  # changes before the acknowledgement, each once
        self._updated: frozenset[str] | None = None  # the resources of which all have a change in `_early`
        self._beyond: Object = {}

    def honour(self, more: Object) -> None:
        """Add `more` to the acknowledgement: members of the filter that an extension defines and a server supports."""
        self._beyond |= more

    def acknowledge(self, honoured: Filter) -> None:
        """Send the acknowledgement, which is the first frame of the subscription, and then the queued notifications.
        `honoured` is the part of the filter that the servers support. It replaces the filter."""
        self.wanted = honoured
        params: Object = {"notifications": msgspec.Raw(encode(honoured.as_notifications() | self._beyond))}
        self._send(ACKNOWLEDGED, params)
        early, self._early = self._early or {}, None
        for (method, uri), params in early.items():
            if method in CHANGES:
                self.notify(method, params, uri)
            else:
                self._send(method, params)

    def extend(self, more: Filter) -> None:
        """Add `more` to the filter, for a server that has answered only after the acknowledgement was sent."""
        self.wanted |= more

    def notify(self, method: str, params: Object, uri: object) -> None:
        """Send or queue the notification of a change, if the filter asks for it. `uri` is the changed resource; ignored
        for a list."""
        if not self.wanted.wants(method, uri):
            return
        if self._early is not None:
            self._early[method, uri] = params
        else:
            self._send(method, params)

    def notify_all(self, part: Filter) -> None:
        """Notify the client of a change of each kind and resource in `part`, because it may have missed real
        changes."""
        for method, params, uri in part.changes():
            self.notify(method, params, uri)

    def relay(self, frame: bytes) -> None:
        """Forward a notification of a server that has got this subscription itself. After the acknowledgement, it is
        sent unchanged. Before, it is queued, but only the kind of a change: a change of one resource counts as a change
        of all subscribed resources."""
        if self._early is None:
            self._emit(frame)
            return
        message = parse(frame)
        row = CHANGES.get(str(message.method))
        if row is not None and row.flag:
            self.notify_all(Filter(kinds=frozenset({row.flag})))
        elif row is not None:
            if self._updated is not self.wanted.uris:  # each time would take as long as there are resources
                self._updated = self.wanted.uris
                self.notify_all(Filter(uris=self._updated))
        elif len(self._early) < MAX_EARLY:
            self._early[str(message.method), len(self._early)] = message.params_object()

    def pass_on(self, method: str, params: Object) -> None:
        """Send or queue a notification of an extension, if the client has declared the extension."""
        if not self._declared.takes(method):
            return
        if self._early is None:
            self._send(method, params)
        elif len(self._early) < MAX_EARLY:
            self._early[method, len(self._early)] = params

    def _send(self, method: str, params: Object) -> None:
        self._emit(encode_notification(method, splice(encode(with_subscription_id(params, self._client_id)))))


def with_subscription_id(params: Object, client_id: RequestId) -> Object:
    """Return the params of a notification with the subscription id (the id of the client's request) in `_meta`."""
    meta = msgspec.json.decode(params.get("_meta", b"{}"), type=Object)
    return params | {"_meta": msgspec.Raw(encode(meta | {SUBSCRIPTION_ID: msgspec.Raw(encode(client_id))}))}
