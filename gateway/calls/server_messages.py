"""Find the call or session to which a server's own request or notification belongs, and forward the message. On stdio,
requests and log messages do not name their call. If a process serves one session, its messages belong to that session.
If it serves several, a message goes to a session only if it cannot belong to another."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import client_of
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.questions_to_client import MAX_SERVER_ID_BYTES
from gateway.calls.server_task_owners import OwnedTask, related_id
from gateway.protocol.client_capabilities import declaration_in_params, refusal
from gateway.protocol.methods import CHANGES, SERVER_METHODS, Method
from gateway.protocol.params import meta_of
from gateway.protocol.subscription_filter import ACKNOWLEDGED, ENDED, SUBSCRIPTION_ID, with_subscription_id
from transports.era import LOG_LEVELS, Era
from transports.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    InvalidMessage,
    Message,
    Object,
    decode_id,
    encode,
    encode_notification,
    splice,
)
from transports.upstream_port import STANDALONE

logger = logging.getLogger(__name__)

_LOG_MESSAGE: Final = "notifications/message"
_VISITED: Final = "notifications/elicitation/complete"
_TASK_STATUS: Final = "notifications/tasks/status"
_TOOLS_CHANGED: Final = next(row for row in CHANGES.values() if row.kind == "tools")


class _Router(ABC):
    """Forwards a server's own messages (`gateway.calls.conversation.Router`). Subclasses find the call or the session.
    `on_change` is called when the server notifies that a list or resource has changed."""

    __slots__ = ("_on_change",)

    is_shared = False

    def __init__(self, on_change: Callable[[Method], None] = lambda change: None) -> None:
        self._on_change = on_change

    def relay_request(self, conversation: Conversation, message: Message, stream: int | str | None = None) -> None:
        if conversation.era is Era.MODERN:
            # MCP 2026-07-28, stdio §Sending Messages: servers send no requests, and clients MUST NOT send responses.
            logger.debug("server %s sent a request, %s, which its era does not have", conversation.name, message.method)
            return
        server_id = encode(message.id)
        if message.method == "ping":
            conversation.answer(server_id, Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
            return
        if len(server_id) > MAX_SERVER_ID_BYTES:
            # The id is kept until the client answers, which may be never.
            reason = f"The id of a request is longer than {MAX_SERVER_ID_BYTES} bytes."
            conversation.refuse(server_id, INVALID_REQUEST, reason)
            return
        try:
            live, exchange, shown = self._place(conversation, message, stream)
            is_named = exchange is not None and (
                exchange.number == stream or _is_about_task_of(exchange, conversation, message)
            )
            refused = None if live is None else self._refusal(live, exchange, message)
        except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
            # At once: a request that nobody can answer must not take a place among those that wait.
            conversation.refuse(server_id, INVALID_PARAMS, f"The request cannot be read: {error}")
            return
        if live is None:
            # In a shared process no client may get another's question.
            conversation.refuse(server_id, METHOD_NOT_FOUND, f"No client is available for {message.method} now.")
            return
        if refused:
            conversation.refuse(server_id, *refused)
            return
        conversation.calls.add_question(server_id, live)
        try:
            live.ask(conversation, shown, exchange, is_named=is_named)
        except InvalidMessage as error:
            conversation.refuse(server_id, error.code, str(error))

    def _place(
        self, conversation: Conversation, message: Message, stream: int | str | None
    ) -> tuple[LiveSession | None, Exchange | None, Message]:
        """Return the session and the call that a message belongs to, and the message for the client. A message about a
        task (MCP 2025-11-25) belongs to the task's session, and gets the task id that the client knows."""
        own_id = "" if message.params is msgspec.UNSET else related_id(message.params_object())
        if not own_id:
            return (*self._meant(conversation, stream), message)
        tasks = conversation.known_tasks
        task = None if tasks is None else tasks.get(own_id)
        if task is None:  # the task of a client, or an unknown task
            return (*(self._meant(conversation, stream) if not self.is_shared else (None, None)), message)
        live, exchange = self._meant(conversation, stream)
        if task.stream is not None or live is not task.live:
            exchange = task.stream
        params = task.named(message.params_object())
        return _live_of(task), exchange, msgspec.structs.replace(message, params=msgspec.Raw(encode(params)))

    def relay_notification(self, conversation: Conversation, message: Message, stream: int | str | None = None) -> None:
        method = str(message.method)
        try:
            params = message.params_object()
            change = CHANGES.get(method)
            if change is not None:
                self._forget(conversation, change)
            if method == "notifications/progress":
                _progress(conversation, params)
            elif method == "notifications/cancelled":
                self._cancelled(conversation, params)
            elif conversation.era is Era.MODERN and _relay_subscribed(conversation, method, params):
                pass
            elif method == _TASK_STATUS:
                _task_status(conversation, params)
            elif change is not None:
                self._changed(conversation, message, params)
            else:
                self._relay(conversation, message, params, stream)
        except (InvalidMessage, msgspec.MsgspecError, RecursionError):
            return  # an unreadable notification gets no answer: it has no id

    def closed(self, conversation: Conversation) -> None:
        conversation.calls.forget_server()
        for live in self._audience(conversation):
            live.link_closed(conversation)

    def _cancelled(self, conversation: Conversation, params: Object) -> None:
        server_id = decode_id(params.get("requestId", msgspec.Raw(b"null")))
        if conversation.era is Era.LEGACY:
            live = conversation.calls.remove_question(encode(server_id))
            if isinstance(live, LiveSession):
                live.questions.withdraw(conversation, encode(server_id), params)
            return
        # The only request that a server may cancel is a subscription (MCP 2026-07-28, Cancellation).
        exchange = conversation.calls.find(server_id)
        if exchange is not None and exchange.is_subscription:
            conversation.message(Message(jsonrpc="2.0", id=exchange.number, result=msgspec.Raw(ENDED)))

    def tools_changed(self, conversation: Conversation) -> None:
        self._forget(conversation, _TOOLS_CHANGED)

    def _forget(self, conversation: Conversation, change: Method) -> None:
        self._on_change(change)
        if change.flag:
            conversation.lists.forget(change.kind)

    def _changed(self, conversation: Conversation, message: Message, params: Object) -> None:
        if conversation.era is not Era.LEGACY:
            return  # a modern server names the subscription
        method, frame = str(message.method), _frame(message)
        uri = msgspec.json.decode(params["uri"], type=str) if "uri" in params else None
        for live in self._audience(conversation):
            if live.session.era == Era.MODERN:
                for subscription in live.subscriptions:
                    subscription.notify(method, params, uri)
            elif uri is None or self._wants(live, uri):
                live.send_to_client(frame)

    def _relay(self, conversation: Conversation, message: Message, params: Object, stream: int | str | None) -> None:
        live, exchange, message = self._place(conversation, message, stream)
        method, frame = str(message.method), _frame(message)
        is_extension, is_modern = method not in SERVER_METHODS, live is not None and live.session.era == Era.MODERN
        if method == _LOG_MESSAGE and exchange is not None and exchange.era == "modern":
            # On stdio a log message does not name its call. It belongs to one of the calls that asked for messages.
            calls = _calls(conversation) if exchange.number != stream else [exchange]
            wanting = [call for call in calls if call.live is exchange.live and _is_wanted(call, params)]
            if not wanting:
                return
            exchange = wanting[-1]
        if is_extension and stream == STANDALONE:
            exchange = None
        if is_modern and conversation.era is Era.LEGACY and not is_extension:
            if exchange is not None and method == _LOG_MESSAGE:
                exchange.emit(frame)
        elif exchange is not None:
            exchange.emit(frame)
        elif live is not None and is_modern:
            if is_extension:
                _to_subscriptions(conversation, live, method, params)
        elif live is not None and (conversation.era is Era.LEGACY or is_extension):
            live.send_to_client(frame)

    def _meant(
        self, conversation: Conversation, stream: int | str | None
    ) -> tuple[LiveSession | None, Exchange | None]:
        """Return the session and the call to which a message belongs that came on the stream `stream`. If no call has
        that stream, return the result of `_addressee`."""
        exchange = conversation.calls.find(stream)
        if exchange is None or exchange.is_subscription:
            return self._addressee(conversation)
        return live_session_of(exchange), exchange

    @abstractmethod
    def _addressee(self, conversation: Conversation) -> tuple[LiveSession | None, Exchange | None]:
        """Return the session and the call to which a message belongs that does not name its call. The session is None
        if it is uncertain, or if the call has none. The call is None if the message belongs to no call, or if it is
        uncertain to which."""

    def _refusal(self, live: LiveSession, exchange: Exchange | None, message: Message) -> tuple[int, str] | None:
        """Return the error code and text to answer a server's request, if the legacy client has not declared that it
        can be asked this. Return None if the client may be asked."""
        return None  # a process of its own has the client's declarations

    @abstractmethod
    def _audience(self, conversation: Conversation) -> Iterable[LiveSession]:
        """Return the sessions that are notified when lists or resources of the server change."""

    @abstractmethod
    def _wants(self, live: LiveSession, uri: object) -> bool:
        """Return True if a legacy session must be notified of changes of the resource `uri`."""


class IsolatedRouter(_Router):
    """Forwards the messages of a process that serves one session."""

    __slots__ = ("_live",)

    def __init__(self, live: LiveSession, on_change: Callable[[Method], None] = lambda change: None) -> None:
        super().__init__(on_change)
        self._live = live

    def _addressee(self, conversation: Conversation) -> tuple[LiveSession | None, Exchange | None]:
        calls = _calls(conversation)
        if len(calls) == 1 or (calls and not self._live.open_streams):
            return self._live, calls[-1]
        return self._live, None

    def _audience(self, conversation: Conversation) -> Iterable[LiveSession]:
        return (self._live,)

    def _wants(self, live: LiveSession, uri: object) -> bool:
        return True


class SharedRouter(_Router):
    """Forwards the messages of a process that serves several sessions, or none."""

    is_shared = True

    def _relay(self, conversation: Conversation, message: Message, params: Object, stream: int | str | None) -> None:
        # The end of a user's visit mostly comes after its call, and may be told only to the client that was asked.
        if message.method != _VISITED or conversation.calls.find(stream) is not None:
            super()._relay(conversation, message, params, stream)

    def _meant(
        self, conversation: Conversation, stream: int | str | None
    ) -> tuple[LiveSession | None, Exchange | None]:
        if stream not in (None, STANDALONE) and conversation.calls.find(stream) is None:
            return None, None  # a request of the gateway, or a call that has ended: none of the others
        return super()._meant(conversation, stream)

    def _addressee(self, conversation: Conversation) -> tuple[LiveSession | None, Exchange | None]:
        calls = _calls(conversation)
        if not calls or any(client_of(call) is not client_of(calls[0]) for call in calls):
            return None, None
        since = monotonic() - conversation.deadlines.call_s
        if conversation.calls.may_work_for_others(client_of(calls[0]), since):
            return None, None
        return live_session_of(calls[-1]), calls[-1]

    def _refusal(self, live: LiveSession, exchange: Exchange | None, message: Message) -> tuple[int, str] | None:
        if live.session.era == Era.MODERN or (exchange is not None and exchange.declaration is not None):
            return None  # `live.ask` looks at what a modern client declares
        declaration = declaration_in_params(live.session.client.initialize_params)
        params = {} if message.params is msgspec.UNSET else message.params_object()
        return refusal(declaration.capabilities, str(message.method), params)

    def _audience(self, conversation: Conversation) -> Iterable[LiveSession]:
        return [live for live in conversation.users if isinstance(live, LiveSession)]

    def _wants(self, live: LiveSession, uri: object) -> bool:
        return uri in live.session.subscriptions


def _is_about_task_of(exchange: Exchange, conversation: Conversation, message: Message) -> bool:
    """Return True if a message of the server names the task whose result the call `exchange` waits for (MCP 2025-11-25,
    Tasks)."""
    tasks = conversation.known_tasks
    if tasks is None or message.params is msgspec.UNSET:
        return False
    task = tasks.get(related_id(message.params_object()))
    return task is not None and task.stream is exchange


def _frame(message: Message) -> bytes:
    """Return a notification of the server as JSON, for the client."""
    params = None if message.params is msgspec.UNSET else splice(message.params)
    return encode_notification(str(message.method), None if params == b"null" else params)


def _to_subscriptions(conversation: Conversation, live: LiveSession, method: str, params: Object) -> None:
    """Forward an extension's notification that belongs to no call to the session's open notification streams. A modern
    client gets it only on streams whose requests have declared the extension."""
    for subscription in live.subscriptions:
        subscription.pass_on(method, params)
    for exchange in tuple(conversation.calls.sent.values()):
        declaration = exchange.declaration if exchange.is_subscription and exchange.live is live else None
        if declaration is not None and declaration.declared.takes(method):
            exchange.emit(encode_notification(method, splice(encode(with_subscription_id(params, exchange.client_id)))))


def _is_wanted(exchange: Exchange, params: Object) -> bool:
    """Return True if a call wants log messages of the level in `params` (MCP 2026-07-28, Logging)."""
    level = msgspec.json.decode(params.get("level", b"null"))
    wanted = exchange.declaration.log_level if exchange.declaration is not None else ""
    return level in LOG_LEVELS and wanted in LOG_LEVELS and LOG_LEVELS.index(level) >= LOG_LEVELS.index(wanted)


def _calls(conversation: Conversation) -> list[Exchange]:
    return [exchange for exchange in conversation.calls.sent.values() if not exchange.is_subscription]


def _progress(conversation: Conversation, params: Object) -> None:
    number = decode_id(params.get("progressToken", msgspec.Raw(b"null")))
    fast = conversation.calls.fast.get(number)
    if fast is not None and (token := fast.progress_token):
        fast.emit(_progress_frame(params, msgspec.Raw(token)))
        return
    exchange = conversation.calls.find(number)
    if exchange is None:
        _task_progress(conversation, number, params)
        return
    exchange.restart_deadline()
    if exchange.progress_token is not None:
        exchange.emit(_progress_frame(params, exchange.progress_token))


def _task_progress(conversation: Conversation, number: object, params: Object) -> None:
    """Forward a progress notification about a task to the client of the task. `number` is the request id of the call
    that has created the task. That call either still waits for the task, or was answered with it."""
    tasks, token = conversation.known_tasks, conversation.calls.token_of_task(number)
    task = None if tasks is None else tasks.get(related_id(params))
    stream, live = None if task is None else task.stream, None if token is None else token.session()
    if task is not None:
        params = task.named(params)
    if stream is not None and task is not None and not task.handle:
        stream.restart_deadline()
        if stream.progress_token is not None:
            stream.emit(_progress_frame(params, stream.progress_token))
    elif token is not None and isinstance(live, LiveSession) and live.session.era != Era.MODERN:
        frame = _progress_frame(params, token.token)
        if stream is None or not stream.emit(frame):
            live.send_to_client(frame)


def _progress_frame(params: Object, token: msgspec.Raw) -> bytes:
    return encode_notification("notifications/progress", splice(encode(params | {"progressToken": token})))


def _task_status(conversation: Conversation, params: Object) -> None:
    """Forward a task's status notification (MCP 2025-11-25, Tasks) to the session of the task. Do nothing if the task
    is unknown."""
    own_id = msgspec.json.decode(params.get("taskId", b"null"))
    tasks = conversation.known_tasks
    task = None if tasks is None or not isinstance(own_id, str) else tasks.get(own_id)
    if task is not None:
        task.seen(params)
        if not task.handle:
            return
        frame = encode_notification(_TASK_STATUS, splice(encode(params | {"taskId": msgspec.Raw(encode(task.handle))})))
        live, stream = _live_of(task), task.stream
        if live.session.era == Era.MODERN:
            return  # a modern client takes no notification outside of calls
        if stream is not None:
            stream.emit(frame)
        else:
            live.send_to_client(frame)


def _live_of(task: OwnedTask) -> LiveSession:
    return task.live  # type: ignore[return-value]  # nothing else implements `ExchangeSession`


def _relay_subscribed(conversation: Conversation, method: str, params: Object) -> bool:
    """Forward a notification about a subscription, with the client's own subscription id, and return True. Drop changes
    that the client has not subscribed to (MCP 2026-07-28, Subscriptions §Opening a Stream). Return False if the message
    names no subscription."""
    meta = meta_of(params)
    if SUBSCRIPTION_ID not in meta:
        return False
    exchange = conversation.calls.find(decode_id(meta[SUBSCRIPTION_ID]))
    if exchange is None or (method == ACKNOWLEDGED and exchange.take_acknowledgement()):
        return True
    if exchange.listens_for(method):
        exchange.emit(encode_notification(method, splice(encode(with_subscription_id(params, exchange.client_id)))))
    return True
