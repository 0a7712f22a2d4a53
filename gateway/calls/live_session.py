"""Hold what this replica has of a session beside its record: conversations, exchanges, questions, subscriptions.

The gateway's one dictionary of sessions by id is here.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Set
from time import monotonic, time
from typing import Final, Protocol

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import GONE, LIVE, LiveEvent, LiveState, step
from gateway.calls.questions import Questions
from gateway.calls.session_frames import SessionFrames
from gateway.calls.streams import LostStreams, Outbox
from gateway.calls.usage import Usage
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.observability.observed_call import Counted, Failure
from gateway.protocol.subscription_filter import SubscriptionFilter
from session_store import EventStreams, Session, StoreUnavailable, TimelineEntry
from transports.era import Era
from transports.jsonrpc import Message

logger = logging.getLogger(__name__)

_TAKEN_OVER: Final = "another gateway has taken the session over; whether the call took effect is unknown"

_RENEWED: Final = "the session's context has changed, and its servers are started again"

_LEFT: Final = "the session's client has left, and its servers are stopped"

_KEPT_FAILURES: Final = 5

MOST_WATCHED: Final = 8
"""Sessions that operators may watch at the same time."""

WATCHED_S: Final = 600.0
"""Seconds after which a watch ends by itself."""

_NONE: Final[Set[Exchange]] = frozenset()

AskModern = Callable[["LiveSession", Conversation, Message, Exchange | None], None]
"""Puts a legacy server's request to the modern client whose call it belongs to (`gateway.bridge.suspended_calls`). The
call is given if the request names it."""


Happened = Callable[[Session, TimelineEntry], None]
"""Keeps an entry in the timeline of a session."""


def ignored(session: Session, entry: TimelineEntry) -> None:
    """Keep nothing: there is no timeline."""


class ReturnWatch(Protocol):
    """Waits for the client of a session to send a second request."""

    @property
    def is_waiting(self) -> bool:
        """Return True if only the session's first request has come yet."""


class SessionPath(Protocol):
    """Keeps decisions on the calls of a session, for a connection that repeats such calls."""

    def let_go(self) -> None:
        """Drop all decisions of the session, which has ended."""


class LiveSession(Usage):
    """One session, alive on this replica.

    `frames` gets the messages of the session; None while nobody watches. `version` changes with everything that
    decisions on its calls rest on: its life, its record, its links, who watches. `renewals` counts the contexts that it
    had before the present one.
    """

    # Slots save one dictionary for each: there are as many as there are sessions.
    __slots__ = """__weakref__ _ask_modern _draining _events _outbox _questions alias calls conversations ended
        _exchanges failed failures _finishing frames _happened lost new_process _paths read_at renewals return_watch
        session state gateway_subscriptions subscriptions version""".split()

    def __init__(
        self, session: Session, events: EventStreams, ask_modern: AskModern | None = None, happened: Happened = ignored
    ) -> None:
        super().__init__()
        self.session = session
        self.frames: SessionFrames | None = None
        self.version = self.renewals = 0
        self.conversations: dict[tuple[str, Era, bytes], Conversation] = {}
        self._exchanges: set[Exchange] | None = None
        self._finishing: weakref.WeakSet[Conversation] | None = None  # they have calls of a former context
        self.gateway_subscriptions: dict[str, Exchange] = {}  # of a legacy client, by the name of the modern server
        self.subscriptions: list[SubscriptionFilter] = []  # of a modern client, to several or legacy servers
        # The streams of a modern session do not outlive a connection.
        self.state = LiveState.LIVE if session.era == Era.MODERN else LiveState.OPENING
        self.lost: LostStreams | None = None  # if an earlier process has left streams open
        self.ended = False  # closed on this replica: no call begins in it any more
        self.alias = ""
        self.read_at = 0.0  # when the record was read from the store, by the monotonic clock
        before = Counted.of(session.counted)
        self.calls, self.failed = before.calls, before.failed  # answered calls, and how many of them failed
        self.failures = before.failures  # the last of those
        self.return_watch: ReturnWatch | None = None  # None: no request of its client needs to be noticed
        self._draining: asyncio.Event | None = None
        self.new_process = "gateway_restart"  # why its servers have new processes, if it has used them before
        self._events = events
        self._questions: Questions | None = None
        self._ask_modern, self._happened = ask_modern, happened
        self._outbox: Outbox | None = None
        self._paths: set[weakref.ref[SessionPath]] | None = None

    @property
    def is_busy(self) -> bool:
        """Return True if a call or a stream of the session is under way, or a call waits for the client."""
        return self.busy > 0 or self.has_suspended

    @property
    def has_suspended(self) -> bool:
        """Return True if a call waits for the client's answer to a question."""
        return self._questions is not None and self._questions.has_suspended

    @property
    def exchanges(self) -> Set[Exchange]:
        """Return the calls in flight. Calls on the fast path leave it first."""
        for conversation in self.every_conversation():
            conversation.calls.fall_back()
        return _NONE if self._exchanges is None else self._exchanges

    def every_conversation(self) -> list[Conversation]:
        """Return the open conversations, and those that only finish calls of a former context."""
        return [*self.conversations.values(), *(self._finishing or ())]

    def exchange_begins(self, exchange: Exchange) -> None:
        """Add the call to those in flight."""
        if self._exchanges is None:
            self._exchanges = set()
        self._exchanges.add(exchange)

    def exchange_ended(self, exchange: Exchange) -> None:
        """Remove the call from those in flight."""
        if self._exchanges is not None:
            self._exchanges.discard(exchange)

    def free_memory(self) -> None:
        """Free the memory of earlier calls if none is in flight."""
        self._exchanges = self._exchanges or None

    @property
    def questions(self) -> Questions:
        """Return the questions of servers to the client."""
        if self._questions is None:
            self._questions = Questions(self.send_to_client, self._question_noted)
        return self._questions

    def _question_noted(self, exchange: Exchange | None, method: str, outcome: str, took_s: float) -> None:
        """Keep the outcome of a question in the timeline. `took_s`: seconds since it was asked."""
        server, correlation = ("", "") if exchange is None else (exchange.server, exchange.correlation)
        at, took_s = round(time() - took_s, 3), round(took_s, 3)
        entry = TimelineEntry(at, "question", server, method, outcome, took_s, correlation=correlation)
        self._happened(self.session, entry)

    @property
    def suspended(self) -> dict[str, Exchange]:
        """Return the calls that have asked a modern client something, by name. Do not change the result."""
        return {} if self._questions is None else self._questions.suspended

    def in_flight_as(self, client_id: object) -> list[Exchange]:
        """Return the calls under that id: several, if the client used the id again while its first call was in flight.

        JSON-RPC asks a client not to, but clients that share a session (`session.reattach`) cannot know. Each of the
        calls is answered, and a cancellation ends all of them.
        """
        return [exchange for exchange in self.exchanges if exchange.client_id == client_id]

    @property
    def is_elsewhere(self) -> bool:
        """Return True if another replica or a later process continues the session, whose remote sessions are kept."""
        return self.state is LiveState.ELSEWHERE

    @property
    def recovered(self) -> bool:
        """Return True if no stream of an earlier process is left open."""
        return self.state is not LiveState.OPENING

    @property
    def draining(self) -> asyncio.Event:
        """Return the event that is set once the session's streams have to end."""
        if self._draining is None:
            self._draining = asyncio.Event()
            if self.state is LiveState.DRAINING or self.ended:
                self._draining.set()
        return self._draining

    def _step(self, event: LiveEvent) -> None:
        self.state = step(LIVE, self.state, event)
        self.changed()
        self.ended = self.state in GONE
        if self._draining is not None and (self.state is LiveState.DRAINING or self.ended):
            self._draining.set()
        if self._outbox is not None and self.ended:
            self._outbox.stop()

    def count(self, failure: Failure | None) -> None:
        """Count an answered call, and keep the last failures."""
        self.calls += 1
        if failure is not None:
            self.failed += 1
            self.failures = (*self.failures[1 - _KEPT_FAILURES :], failure)

    def drain(self) -> None:
        """Tell the session's streams to end. Calls in flight continue."""
        if not self.ended:
            self._step(LiveEvent.DRAIN)

    def hand_over(self) -> None:
        """Leave the session to another replica, or to a later process."""
        self._step(LiveEvent.HAND_OVER)

    def changed(self) -> None:
        """Invalidate what was decided on calls of the session: the next call decides anew."""
        self.version += 1

    def hold_path(self, path: SessionPath) -> None:
        """Keep a weak reference to a fast path of the session, whose `let_go` is called when the session ends."""
        if self._paths is None:
            self._paths = set()
        self._paths.add(weakref.ref(path, self._paths.discard))

    def _end_paths(self) -> None:
        paths, self._paths = self._paths, None
        for path in [held() for held in paths or ()]:
            if path is not None:
                path.let_go()

    # -- who watches

    def watched_by(self, frames: SessionFrames | None) -> None:
        """Show an operator the messages of the session and of its links from now on, by `frames`. None: stop that."""
        self.frames = frames
        self.changed()
        for conversation in self.every_conversation():
            conversation.watch(frames)

    def client_sent(self, message: Message | None) -> None:
        """Show a message of the client to the operator, if one watches."""
        if self.frames is not None and message is not None:
            self.frames.from_client(message)

    # -- to the client

    def send_to_client(self, frame: bytes) -> bool:
        """Put a message on the standalone stream, where it waits for the client to read it. Return False if the message
        is dropped: too much waits for the store already, or the session has ended."""
        if self.ended:
            return False
        if self.frames is not None:
            self.frames.to_client(frame)
        if self._outbox is None:
            self._outbox = Outbox(self.session.id, self._events)
        return self._outbox.put(frame)

    async def recover(self) -> None:
        """End the streams that an earlier process has left open: their clients come back for the rest. A stream whose
        request is kept stays open (`LostStreams`)."""
        if self.recovered:
            return
        self.recover_nothing()
        self.lost = lost = LostStreams()
        try:
            if not await lost.look(self._events, self.session.id):
                self.lost = None
        except BaseException:
            if self.state is LiveState.LIVE:
                self._step(LiveEvent.UNRECOVERED)
            raise

    def recover_nothing(self) -> None:
        """Record that no earlier process has left streams of the session open."""
        if self.state is LiveState.OPENING:
            self._step(LiveEvent.RECOVER)

    def ask(
        self, conversation: Conversation, message: Message, exchange: Exchange | None, *, is_named: bool = False
    ) -> None:
        """Send the client a server's request, in the way of the client's era. A modern client may call in a legacy
        session, but cannot answer a request. `is_named`: the server's request names its call."""
        is_modern = exchange is not None and exchange.caller is not None
        if self.session.era != Era.MODERN and not is_modern:
            self.questions.ask(conversation, message, exchange)
        elif self._ask_modern is not None:
            self._ask_modern(self, conversation, message, exchange if is_named else None)

    def withdraw_questions(self, exchange: Exchange) -> None:
        """Withdraw the questions that the client was asked as results of a call, which is over."""
        if self._questions is not None:
            self._questions.withdraw_for(exchange)

    def link_closed(self, conversation: Conversation) -> None:
        """Withdraw the requests of a server whose link is gone, so that it gets no answers."""
        if self._questions is not None:
            self._questions.closed(conversation)

    def replace_record(self, session: Session, *, is_read: bool = False) -> None:
        """Replace the cached record of the session. `is_read`: the store has just returned it."""
        if session is not self.session and not session.is_but_used(self.session):
            self.changed()
        self.session = session
        if is_read:
            self.read_at = monotonic()

    # -- whether its client comes back

    @property
    def is_unreturned(self) -> bool:
        """Return True if the client has opened the session and not come back yet."""
        return self.return_watch is not None and self.return_watch.is_waiting

    def watch_return(self, watch: ReturnWatch | None) -> None:
        """Wait for the session's client to come back, by this watch. None: wait no longer."""
        self.return_watch = watch
        self.changed()

    def client_returned(self) -> None:
        """Use the idle time of a session in use for its links from now on: the client has come back."""
        for conversation in self.conversations.values():
            conversation.links.stop_idle_after(conversation.deadlines.idle_stop_s)

    # -- its end

    async def renew(self, *, finish_calls: bool) -> None:
        """Close the links, whose servers have the session's former context. The next call opens new ones. With
        `finish_calls`, servers answer the calls that they have before they stop."""
        self.renewals += 1
        await self._stop_servers("context", _RENEWED, finish_calls=finish_calls)

    async def stop_servers(self) -> None:
        """Close the links, because the client has left. It may come back."""
        await self._stop_servers("idle_stop", _LEFT)

    async def _stop_servers(self, why: str, reason: str, *, finish_calls: bool = False) -> None:
        conversations = list(self.conversations.values()) if finish_calls else self.every_conversation()
        self.conversations.clear()
        self.changed()
        self.new_process = why
        if finish_calls and (busy := [each for each in conversations if each.finish_calls(reason)]):
            self._finishing = self._finishing or weakref.WeakSet()
            self._finishing.update(busy)
            conversations = [each for each in conversations if each not in busy]
        await asyncio.gather(*(c.close(reason) for c in conversations), return_exceptions=True)

    async def close(self, *, over: bool = True, taken_over: bool = False) -> None:
        """End everything that this replica holds of the session. No process of it is left on return.

        `over` False: the gateway stops and the session continues. Its recorded streams stay for a later process.
        `taken_over`: another replica has taken it over, so the outcome of calls in flight is unknown.
        """
        self._step(LiveEvent.END if over else LiveEvent.HAND_OVER)
        reason = "the session has ended" if over else "the gateway stops"
        for exchange in {*self.exchanges, *self.suspended.values()}:
            if exchange.conversation is not None and taken_over:
                exchange.conversation.fail(exchange, OUTCOME_UNKNOWN, _TAKEN_OVER)
            elif exchange.conversation is not None:
                exchange.conversation.cancel(exchange, reason)
            elif exchange.is_subscription:  # of several servers, or of a legacy one
                exchange.fail(CANCELLED, f"Cancelled: {reason}")
        if self._questions is not None:
            self._questions.end(reason)
        # Later, because calls that were answered in this turn record something in the next one.
        asyncio.get_running_loop().call_soon(self._end_paths)
        conversations = self.every_conversation()
        self.conversations.clear()
        await asyncio.gather(*(c.close() for c in conversations), return_exceptions=True)
        if self._outbox is not None:
            await self._outbox.close()
        if over:
            with contextlib.suppress(StoreUnavailable):  # the log expires with the session's time to live
                await self._events.drop(self.session.id)
        else:
            await self.leave_events()

    async def leave_events(self) -> None:
        """Write what was recorded here to the store, for the process that serves the session next."""
        await self._events.release(self.session.id)


class LiveSessions:
    """The live sessions of this replica, by id."""

    def __init__(self, events: EventStreams, ask_modern: AskModern | None = None, happened: Happened = ignored) -> None:
        self._happened = happened
        self._events = events
        self._ask_modern = ask_modern
        self._live: dict[str, LiveSession] = {}
        self._named: dict[str, LiveSession] = {}  # by alias

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._live.values()))

    @property
    def count(self) -> int:
        """Return the number of live sessions."""
        return len(self._live)

    def ids(self) -> list[str]:
        """Return the ids of all live sessions."""
        return [*self._live]

    def get(self, session_id: str) -> LiveSession | None:
        return self._live.get(session_id)

    def epoch_of(self, session_id: str, replica: str) -> int | None:
        """Return the epoch in which this replica serves the session. None if it does not, or if the record names
        another owner than `replica` ("" without a cluster)."""
        live = self._live.get(session_id)
        return live.session.epoch if live is not None and live.session.owner == replica else None

    def of(self, session: Session, *, new_process: str = "") -> LiveSession:
        """Return the live session of a record, and use that record from now on. `new_process`: why the session's
        servers have new processes here, if it has used them before."""
        live = self._live.get(session.id)
        if live is None:
            live = self._live[session.id] = LiveSession(session, self._events, self._ask_modern, self._happened)
        live.replace_record(session)
        if new_process:
            live.new_process = new_process
        return live

    def of_new(self, session: Session) -> LiveSession:
        """Return the live session of a new record. No earlier process can have left streams of it open."""
        live = self.of(session)
        live.recover_nothing()
        return live

    def note_alias(self, live: LiveSession, alias: str) -> None:
        """Record the alias by which the store finds that session."""
        live.alias = alias
        self._named[alias] = live

    def named(self, alias: str) -> LiveSession | None:
        """Return the session that was last found in the store by that alias; None if there is none."""
        return self._named.get(alias)

    def in_use(self, session_id: str) -> bool:
        """Return True if the session has a call in flight, a suspended call, or an open stream."""
        live = self._live.get(session_id)
        return live is not None and live.is_busy

    def remove(self, session_id: str) -> LiveSession | None:
        """Remove a session before it is closed, so that no request finds it any more."""
        live = self._live.pop(session_id, None)
        if live is not None:
            live.changed()
        if live is not None and self._named.get(live.alias) is live:
            del self._named[live.alias]
        return live

    def hand_over(self, live: LiveSession) -> None:
        """Remove a session that another replica serves from now on. It starts no more calls, and has to be closed."""
        live.hand_over()
        self.remove(live.session.id)


def live_session_of(exchange: Exchange) -> LiveSession | None:
    """Return the live session of an exchange, whose own type names only what the exchange needs of it."""
    return exchange.live  # type: ignore[return-value]  # nothing else implements `ExchangeSession`


class FrameWatches:
    """The sessions of this replica that operators watch: few, and not for long."""

    def __init__(self) -> None:
        self._watched: dict[LiveSession, asyncio.TimerHandle] = {}

    def __iter__(self) -> Iterator[SessionFrames]:
        return iter([live.frames for live in self._watched if live.frames is not None])

    def start(self, live: LiveSession, by: str) -> bool:
        """Watch a session for the operator `by`, or extend the watch. Return False if too many are watched."""
        for ended in [one for one in self._watched if one.ended]:
            self.stop(ended)
        if live not in self._watched and len(self._watched) >= MOST_WATCHED:
            return False
        if live.frames is None:
            live.watched_by(SessionFrames(live.session.id, by))
        assert live.frames is not None
        live.frames.extend(by, time() + WATCHED_S)
        if (timer := self._watched.pop(live, None)) is not None:
            timer.cancel()
        self._watched[live] = asyncio.get_running_loop().call_later(WATCHED_S, self.stop, live)
        return True

    def stop(self, live: LiveSession) -> None:
        """Stop watching a session, and forget what was seen."""
        if (timer := self._watched.pop(live, None)) is not None:
            timer.cancel()
        live.watched_by(None)
