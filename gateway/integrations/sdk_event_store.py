"""Store the events and subscriptions of servers that use the official SDK's own transport in the gateway's stores.

The SDK names streams in its event store by request ids, which are equal for many clients. `SdkEventStore` separates the
streams of sessions, so that no client can resume the stream of another.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

import msgspec

try:
    from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
    from mcp.shared import subscriptions
    from mcp_types.jsonrpc import JSONRPCMessage, jsonrpc_message_adapter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'mcp-session-gateway[mcp]'", name=error.name) from None

from session_store import Bus, EventLog, UnknownEvent

logger = logging.getLogger(__name__)

SESSIONS_HELD: Final = 10_000
_HEADER: Final = b"mcp-session-id"
_TOPIC: Final = "mcp:sdk:changes"
_log: ContextVar[str] = ContextVar("mcp_sdk_event_log")

App = Callable[[Any, Any, Any], Awaitable[None]]


class SdkEventStore(EventStore):
    """Store the events of an SDK app in the event log `events`, for replay. Pass this to
    `streamable_http_app(event_store=…)`. Wrap the app with `around`, so that the session of each event is known."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._logs: OrderedDict[bytes, str] = OrderedDict()

    def around(self, app: App) -> App:
        """Return `app` wrapped in ASGI middleware that notes the session of each request. Events that the app stores
        during the request go to the log of this session."""

        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            session = dict(scope["headers"]).get(_HEADER, b"")
            log = self._logs.get(session) or secrets.token_urlsafe(18)
            _log.set(log)

            async def sending(event: MutableMapping[str, Any]) -> None:
                if event["type"] == "http.response.start":
                    named = dict(event["headers"]).get(_HEADER)
                    if named is not None:
                        self._remember(named, log)
                await send(event)

            await app(scope, receive, sending)

        return wrapped

    def _remember(self, session: bytes, log: str) -> None:
        # A session keeps its first log, because its tasks go on writing there.
        self._logs.setdefault(session, log)
        self._logs.move_to_end(session)
        while len(self._logs) > SESSIONS_HELD:
            self._logs.popitem(last=False)

    @staticmethod
    def _current() -> str:
        log = _log.get("")
        if not log:
            raise RuntimeError("put the app into SdkEventStore.around, or the store cannot tell sessions apart")
        return log

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        frame = b"" if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        return await self._events.append(self._current(), stream_id, frame)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        log = self._current()
        try:
            stream = await self._events.stream_of(log, last_event_id)
            kept = await self._events.kept(log, stream, last_event_id)
        except UnknownEvent:
            return None
        for event in kept:
            if event.frame:
                message = jsonrpc_message_adapter.validate_json(event.frame)
                await send_callback(EventMessage(message, event.id))
        return stream


class _Change(msgspec.Struct, frozen=True):
    name: str
    uri: str = ""


class SdkSubscriptionBus:
    """A `SubscriptionBus` of the SDK that uses the store's bus: changes that one replica publishes reach the
    `subscriptions/listen` streams of all replicas. Use it inside `async with bus.running()`. `topic`: the bus's name
    for these messages."""

    def __init__(self, bus: Bus, topic: str = _TOPIC) -> None:
        self._bus = bus
        self._topic = topic
        self._listeners: dict[object, Callable[[subscriptions.ServerEvent], None]] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["SdkSubscriptionBus"]:
        """Inside the block, deliver the changes that any replica publishes to the listeners in this process. Yields
        this object."""
        async with self._bus.subscribed(self._topic, self._hear):
            yield self

    async def publish(self, event: subscriptions.ServerEvent) -> None:
        change = _Change(name=type(event).__name__, uri=str(getattr(event, "uri", "")))
        await self._bus.publish(self._topic, msgspec.json.encode(change))
        await asyncio.sleep(0)  # lets the streams read between the changes of a burst

    def subscribe(self, listener: Callable[[subscriptions.ServerEvent], None]) -> Callable[[], None]:
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def _hear(self, data: bytes | None) -> None:
        if data is None:
            return  # the bus was interrupted: missed changes are not told, and clients read again when a stream breaks
        change = msgspec.json.decode(data, type=_Change)
        kind: Any = getattr(subscriptions, change.name, None)
        if kind is None:
            return
        event = kind(uri=change.uri) if change.uri else kind()
        for listener in tuple(self._listeners.values()):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed")
