"""Serve a modern client's `subscriptions/listen` for servers that do not know it, from their own notifications.

MCP 2026-07-28, Subscriptions.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.protocol.extensions import Declared, object_of
from gateway.protocol.methods import CHANGES
from transports.jsonrpc import Object, RequestId, encode, encode_notification, parse, splice

MAX_LISTENED_BYTES: Final = 64 << 10
"""Bytes of the URIs in all open subscriptions of a session. They are kept as long as those are open."""

MAX_EARLY: Final = 256
"""Notifications outside MCP that may wait for the acknowledgement of one subscription."""

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
ENDED: Final = b'{"resultType":"complete"}'
"""The result of a `subscriptions/listen` that its server has ended (MCP 2026-07-28, Subscriptions)."""
_NOTHING: Final = Declared()
_FLAGGED: Final = tuple(row for row in CHANGES.values() if row.flag)
_UPDATED: Final = next(row.name for row in CHANGES.values() if not row.flag)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a client subscribes to."""

    kinds: frozenset[str] = frozenset()
    uris: frozenset[str] = frozenset()

    @classmethod
    def of(cls, params: Object) -> "Filter":
        """Return the filter in the params of a `subscriptions/listen`. Raises `msgspec.MsgspecError`."""
        wanted = msgspec.json.decode(params.get("notifications", b"{}"), type=dict[str, Any])
        kinds = frozenset(row.flag for row in _FLAGGED if wanted.get(row.flag) is True)
        uris = wanted.get("resourceSubscriptions")
        return cls(kinds=kinds, uris=frozenset(map(str, uris)) if isinstance(uris, list) else frozenset())

    @property
    def size(self) -> int:
        """Return the number of characters of its URIs."""
        return sum(map(len, self.uris))

    def honoured(self, capabilities: Any) -> "Filter":
        """Return the part of the filter that servers with these capabilities can fulfil."""
        kinds = {row.flag for row in _FLAGGED if capabilities.get(row.kind, {}).get("listChanged")}
        subscribes = bool(capabilities.get("resources", {}).get("subscribe"))
        return Filter(kinds=self.kinds & kinds, uris=self.uris if subscribes else frozenset())

    def __or__(self, other: "Filter") -> "Filter":
        return Filter(kinds=self.kinds | other.kinds, uris=self.uris | other.uris)

    def __bool__(self) -> bool:
        return bool(self.kinds or self.uris)

    def wants(self, method: str, uri: object) -> bool:
        """Return whether the filter asks for a notification. `uri` names the changed resource, if it is about one."""
        row = CHANGES[method]
        return row.flag in self.kinds if row.flag else uri in self.uris

    def may_have(self, method: str) -> bool:
        """Return True if notifications with this method can belong to the subscription; those of extensions always can.
        URIs are not compared: a server may report a resource below a named one (MCP, `ResourceUpdatedNotification`)."""
        row = CHANGES.get(method)
        return row is None or (row.flag in self.kinds if row.flag else bool(self.uris))

    def changes(self) -> Iterator[tuple[str, Object, str | None]]:
        """Yield a notification of each kind and resource: its method, its params, and the URI of the resource."""
        for row in _FLAGGED:
            if row.flag in self.kinds:
                yield row.name, {}, None
        for uri in sorted(self.uris):
            yield _UPDATED, {"uri": msgspec.Raw(encode(uri))}, uri

    def as_notifications(self) -> dict[str, Any]:
        """Return the filter as the wire has it: the `notifications` in the params of a `subscriptions/listen`."""
        wanted: dict[str, Any] = dict.fromkeys(sorted(self.kinds), True)
        return wanted | ({"resourceSubscriptions": sorted(self.uris)} if self.uris else {})


def extension_members(params: Object) -> Object:
    """Return the members of the filter of a `subscriptions/listen` that MCP and its tasks do not define."""
    known = {"resourceSubscriptions", "taskIds", *(row.flag for row in _FLAGGED)}
    return {key: raw for key, raw in object_of(params.get("notifications")).items() if key not in known}


class SubscriptionFilter:
    """Send the notifications that one open `subscriptions/listen` asks for. Early ones wait for its acknowledgement."""

    def __init__(self, client_id: RequestId, wanted: Filter, emit: Any, declared: Declared = _NOTHING) -> None:
        self.wanted = wanted
        self._declared = declared
        self._client_id = client_id
        self._emit = emit
        self._early: dict[tuple[str, object], Object] | None = {}  # changes before the acknowledgement, each once
        self._beyond: Object = {}

    def honour(self, more: Object) -> None:
        """Record members of the filter that a server gets, and that MCP does not define."""
        self._beyond |= more

    def acknowledge(self, honoured: Filter) -> None:
        """Send the acknowledgement, the first frame of the subscription. The changes that waited for it follow."""
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
        """Add to the honoured filter: a server that supports more has come after the acknowledgement."""
        self.wanted |= more

    def notify(self, method: str, params: Object, uri: object) -> None:
        """Pass on a change if the filter asks for it. `uri` names the changed resource, if it is about one."""
        if not self.wanted.wants(method, uri):
            return
        if self._early is not None:
            self._early[method, uri] = params
        else:
            self._send(method, params)

    def notify_all(self, part: Filter) -> None:
        """Notify the client of each kind and resource in `part`, because their changes may have been missed."""
        for method, params, uri in part.changes():
            self.notify(method, params, uri)

    def relay(self, frame: bytes) -> None:
        """Pass on a notification of a server that has the subscription, as it is. Before the acknowledgement, only the
        kind of a change is kept: a change of any resource counts as one of all named resources."""
        if self._early is None:
            self._emit(frame)
            return
        message = parse(frame)
        row = CHANGES.get(str(message.method))
        if row is not None:
            changed = Filter(kinds=frozenset({row.flag})) if row.flag else Filter(uris=self.wanted.uris)
            self.notify_all(changed)
        elif len(self._early) < MAX_EARLY:
            self._early[str(message.method), len(self._early)] = message.params_object()

    def pass_on(self, method: str, params: Object) -> None:
        """Pass on a notification that MCP does not define, if the client has declared its extension."""
        if not self._declared.takes(method):
            return
        if self._early is None:
            self._send(method, params)
        elif len(self._early) < MAX_EARLY:
            self._early[method, len(self._early)] = params

    def _send(self, method: str, params: Object) -> None:
        self._emit(encode_notification(method, splice(encode(with_subscription_id(params, self._client_id)))))


def with_subscription_id(params: Object, client_id: RequestId) -> Object:
    """Return the params of a notification, with the client's own subscription id."""
    meta = msgspec.json.decode(params.get("_meta", b"{}"), type=Object)
    return params | {"_meta": msgspec.Raw(encode(meta | {SUBSCRIPTION_ID: msgspec.Raw(encode(client_id))}))}
