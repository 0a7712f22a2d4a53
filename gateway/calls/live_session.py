"""What this replica holds of a session beside its record: conversations, exchanges, open questions, the event stream.

The one dict keyed by session id in the gateway is here.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final

import msgspec

from gateway.bridge.suspended_calls import withdraw_suspended
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.streams import STANDALONE, call_of_stream
from gateway.calls.usage import Usage
from gateway.errors import OUTCOME_UNKNOWN, UNREAD
from gateway.observability.observed import Failure
from gateway.protocol.params import meta_of
from gateway.protocol.subscription_filter import SubscriptionFilter
from session_store import EventLog, Session, StoreUnavailable
from transports.era import Era
from transports.jsonrpc import (
    Message,
    Object,
    RequestId,
    encode,
    encode_error,
    encode_notification,
    encode_request,
    splice,
)
from transports.reply_queue import MAX_QUEUED_BYTES

__all__ = ["MAX_SERVER_ID_BYTES", "LiveSession", "LiveSessions"]

logger = logging.getLogger(__name__)

_UNKNOWN: Final = (
    "The gateway that served this session is gone without an answer; whether the call took effect is unknown"
)

_TAKEN_OVER: Final = "another gateway has taken the session over; whether the call took effect is unknown"

MAX_TOLD: Final = 256
"""What may wait to be told to a client while the store does not answer."""

_STORE_AGAIN_S: Final = 0.5

MAX_QUESTIONS: Final = 256
"""What a server may ask of one client without getting an answer."""


_KEPT_FAILURES: Final = 5

MAX_SERVER_ID_BYTES: Final = 1_024
"""The id of a server's request, and the token of its progress, as JSON: each is kept while its client is asked."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A request of a server's that a client has yet to answer. `answered` is who wants the answer."""

    conversation: Conversation
    server_id: bytes
    exchange: Exchange | None
    progress_token: msgspec.Raw | None
    answered: Callable[[Message], None]


class LiveSession(Usage):
    """One session, alive on this replica."""

    # Without a dictionary each: there are as many as there are sessions.
    __slots__ = """__weakref__ _events _has_left _last_question _leaving _outbox _outbox_bytes _pump _questions alias
        calls conversations ended exchanges failed failures goes_on hearing listening
        new_process suspended read_at recovered session unclear""".split()

    def __init__(self, session: Session, events: EventLog) -> None:
        super().__init__()
        self.session = session
        self.conversations: dict[tuple[str, Era, bytes], Conversation] = {}
        self.exchanges: dict[RequestId, Exchange] = {}
        self.suspended: dict[str, Exchange] = {}  # calls of a modern client that have asked it something
        self.hearing: dict[str, Exchange] = {}  # what listens to a modern server for a legacy client
        self.listening: list[SubscriptionFilter] = []  # what it wants to hear of legacy servers
        self.ended = False
        self.goes_on = False  # elsewhere, or later: what it has at servers behind URLs is not given up
        self.recovered = session.era == Era.MODERN  # its streams do not outlive a connection
        self.alias = ""
        self.read_at = 0.0  # when the store said of it what its record says, by the monotonic clock
        self.calls = self.failed = 0  # answered here, and how many of them failed
        self.failures: deque[Failure] | None = None  # the last of those
        self._has_left = False
        self._leaving: asyncio.Event | None = None
        self.new_process = "gateway_restart"  # why its servers' processes are new, where it had used them before
        self._events = events
        self._questions: dict[int, _Question] = {}
        self._last_question = 0
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self.unclear: list[int] = []  # sizes of questions that may belong to one of several calls
        self._pump: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call or a stream of it is under way, those that wait for the client included."""
        return self.busy > 0 or self.has_suspended

    @property
    def has_suspended(self) -> bool:
        """Whether a call waits for the client."""
        return any(exchange.is_suspended and exchange.conversation is not None for exchange in self.suspended.values())

    @property
    def leaving(self) -> asyncio.Event:
        """Set once its clients have to go elsewhere, or nowhere. Made for those who wait for it."""
        if self._leaving is None:
            self._leaving = asyncio.Event()
            if self._has_left:
                self._leaving.set()
        return self._leaving

    def count(self, failure: Failure | None) -> None:
        """Count an answered call; keep the last failures."""
        self.calls += 1
        if failure is not None:
            self.failed += 1
            if self.failures is None:
                self.failures = deque(maxlen=_KEPT_FAILURES)
            self.failures.append(failure)

    def leave(self) -> None:
        """Let its streams end."""
        self._has_left = True
        if self._leaving is not None:
            self._leaving.set()

    # -- to the client

    def tell(self, frame: bytes) -> bool:
        """Put a message on the standalone stream; it waits there for a client that is not listening yet. False when too
        much waits for the store already, and the message is dropped."""
        is_full = self._outbox and self._outbox_bytes + len(frame) > MAX_QUEUED_BYTES
        if self.ended or is_full or len(self._outbox) >= MAX_TOLD:
            return False
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if self._pump is None:
            self._pump = asyncio.create_task(self._flush())
        return True

    async def _flush(self) -> None:
        try:
            while self._outbox and not self.ended:
                try:
                    await self._events.append(self.session.id, STANDALONE, self._outbox[0])
                except StoreUnavailable:
                    await asyncio.sleep(_STORE_AGAIN_S)
                else:
                    self._outbox_bytes -= len(self._outbox.popleft())
        finally:
            self._pump = None

    async def recover(self) -> None:
        """Bring streams to an end that an earlier process has left open: their clients come back for the rest."""
        if self.recovered:
            return
        self.recovered = True
        try:
            for stream in await self._events.unfinished(self.session.id):
                request_id = call_of_stream(stream)
                if request_id is not None:
                    error = {"code": OUTCOME_UNKNOWN, "message": _UNKNOWN}
                    await self._events.append(self.session.id, stream, encode_error(request_id, error))
                    await self._events.finish(self.session.id, stream)
        except BaseException:
            self.recovered = False
            raise

    def ask(self, conversation: Conversation, message: Message, exchange: Exchange | None) -> None:
        """Put a server's request to the client, on the stream of the call it belongs to or on the standalone one."""
        if len(self._questions) >= MAX_QUESTIONS:
            conversation.refuse(encode(message.id), UNREAD, "Too many requests wait for this client already.")
            return
        server_id = encode(message.id)

        def answered(answer: Message) -> None:
            conversation.answer(server_id, answer)

        if not self._put(conversation, server_id, exchange, str(message.method), message.params_object(), answered):
            conversation.refuse(server_id, UNREAD, "The client does not read its messages.")

    def put(
        self,
        conversation: Conversation,
        exchange: Exchange,
        method: str,
        params: Object,
        answered: Callable[[Message], None],
    ) -> None:
        """As `ask`, for a question that came as a result."""
        if len(self._questions) >= MAX_QUESTIONS:
            conversation.cancel(exchange, "too many requests wait for this client already")
        elif not self._put(conversation, b"", exchange, method, params, answered):
            conversation.cancel(exchange, "the client does not read its messages")

    def _put(
        self,
        conversation: Conversation,
        server_id: bytes,
        exchange: Exchange | None,
        method: str,
        params: Object,
        answered: Callable[[Message], None],
    ) -> bool:
        self._last_question += 1
        number = self._last_question
        params, token = _with_progress_token(params, number)
        self._questions[number] = _Question(conversation, server_id, exchange, token, answered)
        frame = splice(encode_request(number, method, encode(params)))
        if not (self.tell(frame) if exchange is None else exchange.emit(frame)):
            del self._questions[number]
            return False
        return True

    def answered(self, message: Message) -> bool:
        """A client's answer to one of those requests; False when nobody waits for it (any more)."""
        question = self._questions.pop(message.id, None) if isinstance(message.id, int) else None
        if question is None:
            return False
        question.answered(message)
        if question.exchange is not None:
            question.exchange.heard()
        return True

    def withdraw(self, conversation: Conversation, params: Object) -> None:
        """The server gave up a request of its own: tell the client, by the id the client knows."""
        server_id = bytes(params.get("requestId", b""))
        if not server_id:
            return
        withdraw_suspended(self, conversation, server_id)
        for number, question in list(self._questions.items()):
            if question.conversation is conversation and question.server_id == server_id:
                del self._questions[number]
                params = params | {"requestId": msgspec.Raw(encode(number))}
                frame = encode_notification("notifications/cancelled", splice(encode(params)))
                if question.exchange is None or not question.exchange.emit(frame):
                    self.tell(frame)

    def unask(self, exchange: Exchange) -> None:
        """A call is over: what came as a result of it needs no answer any more."""
        for number, question in list(self._questions.items()):
            if question.exchange is exchange and not question.server_id:
                del self._questions[number]
                frame = encode_notification("notifications/cancelled", encode({"requestId": number}))
                if not exchange.emit(frame):
                    self.tell(frame)

    def lost(self, conversation: Conversation) -> None:
        """What that server asked needs no answer any more. What came as a result may be brought to its next process."""
        withdraw_suspended(self, conversation, None)
        for number, question in list(self._questions.items()):
            if question.conversation is conversation and question.server_id:
                self.withdraw(conversation, {"requestId": msgspec.Raw(question.server_id)})
                self._questions.pop(number, None)

    # -- from the client

    def asker(self, number: object) -> tuple[Conversation, msgspec.Raw] | None:
        """Who waits for progress on the question that carried this token, and under which token of its own."""
        question = self._questions.get(number) if isinstance(number, int) else None
        if question is None or question.progress_token is None:
            return None
        return question.conversation, question.progress_token

    def replace_record(self, session: Session, *, is_read: bool = False) -> None:
        """Use this record from now on. `is_read`: the store has just returned it."""
        self.session = session
        if is_read:
            self.read_at = monotonic()

    # -- its end

    async def renew(self) -> None:
        """Be rid of servers that know it as it was; the next call starts them anew."""
        conversations = list(self.conversations.values())
        self.conversations.clear()
        self.new_process = "context"
        await asyncio.gather(*(c.close() for c in conversations), return_exceptions=True)

    async def close(self, *, over: bool = True, lost: bool = False) -> None:
        """End everything this replica holds of the session; no process of it is left when this returns.

        `over` False: the gateway stops, the session does not. What its streams have kept stays for a later process.
        `lost`: another replica has taken it over, so what becomes of calls in flight is not known.
        """
        self.ended = True
        self.goes_on = not over
        self.leave()
        reason = "the session has ended" if over else "the gateway stops"
        for exchange in list(self.exchanges.values()):
            if exchange.conversation is not None and lost:
                exchange.conversation.fail(exchange, OUTCOME_UNKNOWN, _TAKEN_OVER)
            elif exchange.conversation is not None:
                exchange.conversation.cancel(exchange, reason)
        for question in self._questions.values():
            if question.server_id:
                question.conversation.refuse(question.server_id, UNREAD, f"{reason.capitalize()}.")
        self.suspended.clear()
        self._questions.clear()
        conversations = list(self.conversations.values())
        self.conversations.clear()
        await asyncio.gather(*(c.close() for c in conversations), return_exceptions=True)
        if over:
            with contextlib.suppress(StoreUnavailable):  # it goes with its session's time to live
                await self._events.drop(self.session.id)


def _with_progress_token(params: Object, number: int) -> tuple[Object, msgspec.Raw | None]:
    meta = meta_of(params)
    token = meta.get("progressToken")
    if token is None:
        return params, None
    if len(memoryview(token)) > MAX_SERVER_ID_BYTES:
        del meta["progressToken"]
        return params | {"_meta": msgspec.Raw(encode(meta))}, None
    # A copy: what was cut out of a message keeps all of it.
    token = msgspec.Raw(bytes(token))
    return params | {"_meta": msgspec.Raw(encode(meta | {"progressToken": msgspec.Raw(encode(number))}))}, token


class LiveSessions:
    """The sessions this replica holds something of, by id."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._live: dict[str, LiveSession] = {}

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._live.values()))

    def get(self, session_id: str) -> LiveSession | None:
        return self._live.get(session_id)

    def of(self, session: Session, *, new_process: str = "") -> LiveSession:
        """The live side of that session, with the record as it is now. `new_process`: why the session's servers have
        new processes here, if it has used them before."""
        live = self._live.get(session.id)
        if live is None:
            live = self._live[session.id] = LiveSession(session, self._events)
        live.replace_record(session)
        if new_process:
            live.new_process = new_process
        return live

    def of_new(self, session: Session) -> LiveSession:
        """The live side of a session that was opened here: no earlier process has left streams open."""
        live = self.of(session)
        live.recovered = True
        return live

    def note_alias(self, live: LiveSession, alias: str) -> None:
        """Note the alias by which the store finds that session."""
        live.alias = alias

    def named(self, alias: str) -> list[LiveSession]:
        """The sessions that the store has found by that alias."""
        return [live for live in self if live.alias == alias]

    def in_use(self, session_id: str) -> bool:
        """Whether the session has an exchange in flight, a parked one, or an open stream."""
        live = self._live.get(session_id)
        return live is not None and live.is_busy

    def remove(self, session_id: str) -> LiveSession | None:
        """Forget first, close afterwards: a session that is going is not found any more."""
        return self._live.pop(session_id, None)

    def hand_over(self, live: LiveSession) -> None:
        """Forget a session that another replica serves from now on. It begins nothing more, and has to be closed."""
        live.ended = True
        self.remove(live.session.id)
