"""Hold the state of sessions on this replica that is not in their stored records: conversations with servers, calls in
flight, questions, subscriptions. `LiveSessions` is the gateway's only dictionary of sessions by id."""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Set
from time import monotonic, time
from typing import Final, Protocol

from msgspec.structs import replace

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import GONE, LIVE, LiveEvent, LiveState, Loss, step
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.calls.open_call_counts import Usage
from gateway.calls.questions_to_client import Questions
from gateway.calls.session_event_streams import Followers, LostStreams, Outbox
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.identity.credential_claims import CallerToken, CredentialClaims
from gateway.observability.observed_call import Counted, Failure
from gateway.protocol.shown_tool_hashes import ShownTools
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
"""Maximum number of sessions that operators watch at the same time."""

WATCHED_S: Final = 600.0
"""Seconds after which an operator's watch of a session ends, unless it is extended."""

_NONE: Final[Set[Exchange]] = frozenset()

AskModern = Callable[["LiveSession", Conversation, Message, Exchange | None], None]
"""A function that sends a legacy server's request to the modern client of the call to which the request belongs. The
call is an argument if the request names it (`gateway.bridge.call_suspension`)."""


AddEntry = Callable[[Session, TimelineEntry], None]
"""A function that adds an entry to the timeline of a session."""


def ignored(session: Session, entry: TimelineEntry) -> None:
    """Do nothing. Used if timelines are off."""


class ReturnWatch(Protocol):
    """Waits for the second request of a session, which shows that the client has kept the session's id."""

    @property
    def is_waiting(self) -> bool:
        """Return True if the session has had only its first request."""


class SessionPath(Protocol):
    """A fast path of a session: the cached decision on a call, kept for a connection that repeats the call."""

    def let_go(self) -> None:
        """Drop all references to the session, which has ended."""


class LiveSession(Usage):
    """The state of one session on this replica."""

    # Slots save one dictionary for each: there are as many as there are sessions.
    __slots__ = """__weakref__ _ask_modern _draining _events _outbox _questions alias calls conversations ended
        _exchanges failed failures _finishing _followers _add_entry lost _lost_tools new_process _paths read_at
        renewals _replaced return_watch recorder session shown state gateway_subscriptions subscriptions token
        used_before version""".split()

    def __init__(
        self, session: Session, events: EventStreams, ask_modern: AskModern | None = None, add_entry: AddEntry = ignored
    ) -> None:
        super().__init__()
        self.session = session
        self.shown = ShownTools.read(session.shown)
        """The tools that the session's client has seen."""
        self._lost_tools: set[tuple[str, str]] | None = None  # tools of servers whose calls are refused
        self.recorder: MessageRecorder | None = None
        """Records the session's messages for an operator. None if no operator watches."""
        self.version = self.renewals = 0
        """`version` is raised when the state, the record, a link or the watcher changes, because cached decisions on
        calls depend on these. `renewals` counts how often the session's context was replaced."""
        self.token: CallerToken | None = None
        """The last access token that a caller of the session has sent, for servers that act on the caller's behalf. It
        is never written to the store."""
        self.conversations: dict[tuple[str, Era, bytes], Conversation] = {}
        self._exchanges: dict[Exchange, None] | None = None  # calls of a session end in the order in which they came
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
        # The servers whose processes the session has lost, as in its record, and why they are new.
        self.used_before, self.new_process = session.links, "gateway_restart"
        self._events = events
        self._questions: Questions | None = None
        self._ask_modern, self._add_entry = ask_modern, add_entry
        self._outbox: Outbox | None = None
        self._followers: Followers | None = None
        self._replaced: set[str] | None = None  # servers of which the session has lost a former process
        self._paths: set[weakref.ref[SessionPath]] | None = None

    @property
    def is_busy(self) -> bool:
        """Return True if a call or a stream of the session is under way, or a call waits for the client."""
        return self.busy > 0 or self.has_suspended

    @property
    def has_suspended(self) -> bool:
        """Return True if a call is suspended until the client answers a question."""
        return self._questions is not None and self._questions.has_suspended

    @property
    def exchanges(self) -> Set[Exchange]:
        """Return the calls in flight. This takes all calls off the fast path: only then do they have exchanges."""
        for conversation in self.every_conversation():
            conversation.calls.fall_back()
        return _NONE if self._exchanges is None else self._exchanges.keys()

    def every_conversation(self) -> list[Conversation]:
        """Return the present conversations with servers, and the former ones that only finish their calls."""
        return [*self.conversations.values(), *(self._finishing or ())]

    def exchange_begins(self, exchange: Exchange) -> None:
        """Add a call to those in flight."""
        if self._exchanges is None:
            self._exchanges = {}
        self._exchanges[exchange] = None

    def exchange_ended(self, exchange: Exchange) -> None:
        """Remove a call from those in flight."""
        if self._exchanges is not None:
            self._exchanges.pop(exchange, None)

    def free_memory(self) -> None:
        """Free the memory that earlier calls have left, if no call is in flight."""
        self._exchanges = self._exchanges or None

    @property
    def questions(self) -> Questions:
        """Return the questions of servers to the client. Create the object if needed."""
        if self._questions is None:
            self._questions = Questions(self.send_to_client, self._question_noted)
        return self._questions

    def _question_noted(self, exchange: Exchange | None, method: str, outcome: str, took_s: float) -> None:
        """Add the outcome of a question to the timeline. `took_s` is the seconds since it was sent to the client."""
        server, correlation = ("", "") if exchange is None else (exchange.server, exchange.correlation)
        at, took_s = round(time() - took_s, 3), round(took_s, 3)
        entry = TimelineEntry(at, "question", server, method, outcome, took_s, correlation=correlation)
        self._add_entry(self.session, entry)

    @property
    def suspended(self) -> dict[str, Exchange]:
        """Return the calls that wait for answers of a modern client, by the name that `requestState` has for them. Some
        may have ended. Do not change the result."""
        return {} if self._questions is None else self._questions.suspended

    def subscribed(self, uris: frozenset[str]) -> Set[str]:
        """Return the resources among `uris` whose changes the client wants to be notified of."""
        listened = [each.wanted.uris for each in self.subscriptions]
        return uris.intersection(self.session.subscriptions).union(*map(uris.intersection, listened))

    def in_flight_as(self, client_id: object) -> list[Exchange]:
        """Return the calls in flight to which the client has given this request id. Usually there is at most one.

        A client should not use an id twice at the same time, but clients that share a session (`session.reattach`)
        cannot know each other's ids. Each of these calls is answered, and a cancellation ends all of them."""
        return [exchange for exchange in self.exchanges if exchange.client_id == client_id]

    @property
    def is_elsewhere(self) -> bool:
        """Return True if another replica or a later process continues the session."""
        return self.state is LiveState.ELSEWHERE

    @property
    def recovered(self) -> bool:
        """Return True if the event streams that an earlier process has left unfinished were ended, or kept so that
        their calls can be repeated."""
        return self.state is not LiveState.OPENING

    @property
    def draining(self) -> asyncio.Event:
        """Return an event that is set when the session's event streams must end."""
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
        """Count an answered call. `failure` describes a failed call; only the last failures are kept."""
        self.calls += 1
        if failure is not None:
            self.failed += 1
            self.failures = (*self.failures[1 - _KEPT_FAILURES :], failure)

    def act_for(self, claims: CredentialClaims | None) -> None:
        """Keep the caller's access token in memory, if `claims` have one, for servers that act on the caller's behalf.
        The session's present context must be from the same claims."""
        if claims is not None and claims.token is not None and claims.token.token:
            self.token = claims.token

    def record_shown_tools(self, shown: ShownTools) -> None:
        """Record the tools that the session's client has seen, in place of the former ones."""
        self.shown = shown

    def record_lost_tool(self, server: str, name: str) -> bool:
        """Record that calls of a tool are refused, because the tool has changed since the client saw it. Return False
        if that is recorded already."""
        lost = self._lost_tools = self._lost_tools or set()
        is_new = (server, name) not in lost
        lost.add((server, name))
        return is_new

    def drain(self) -> None:
        """End the session's event streams. Calls in flight continue."""
        if not self.ended:
            self._step(LiveEvent.DRAIN)

    def admit(self) -> None:
        """Allow event streams again, because the drain was called off."""
        if self.state is LiveState.DRAINING:
            self._step(LiveEvent.ADMIT)
            self._draining = None
            if self.lost is not None and self.lost.has_failed:
                self._step(LiveEvent.UNRECOVERED)

    def end_streams(self) -> None:
        """End the event streams that are open now. Clients may open new ones, if their credentials still permit it."""
        if self._draining is not None:
            self._draining.set()
            self._draining = None
        self.changed()

    def hand_over(self) -> None:
        """Record that another replica or a later process continues the session."""
        self._step(LiveEvent.HAND_OVER)

    def changed(self) -> None:
        """Invalidate the decisions cached for calls of the session."""
        self.version += 1

    def hold_path(self, path: SessionPath) -> None:
        """Register a fast path by a weak reference. Its `let_go` is called when the session ends."""
        if self._paths is None:
            self._paths = set()
        self._paths.add(weakref.ref(path, self._paths.discard))

    def _end_paths(self) -> None:
        paths, self._paths = self._paths, None
        for path in [held() for held in paths or ()]:
            if path is not None:
                path.let_go()

    # -- who watches

    def watched_by(self, recorder: MessageRecorder | None) -> None:
        """Record the messages of the session and its servers in `recorder` from now on, for an operator. None: stop
        recording."""
        self.recorder = recorder
        self.changed()
        for conversation in self.every_conversation():
            conversation.watch(recorder)

    def client_sent(self, message: Message | None) -> None:
        """Record a message of the client in the operator's watch, if there is one."""
        if self.recorder is not None and message is not None:
            self.recorder.from_client(message)

    # -- to the client

    def send_to_client(self, frame: bytes) -> bool:
        """Queue a message on the standalone stream. Return False if it is dropped: the session has ended, or too many
        messages wait for the store."""
        if self.ended:
            return False
        if self.recorder is not None:
            self.recorder.to_client(frame)
        if self._outbox is None:
            self._outbox = Outbox(self.session.id, self._events)
        return self._outbox.put(frame)

    @property
    def followers(self) -> Followers:
        """Return the GET requests that follow event streams of the session's calls. Create the object if needed."""
        if self._followers is None:
            self._followers = Followers()
        return self._followers

    async def recover(self) -> None:
        """End the streams that an earlier process has left unfinished, so that their clients get an error when they
        resume them. Keep a stream whose request is stored, because its call can be repeated (`LostStreams`)."""
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
        """Record that no earlier process has left unfinished streams of this session."""
        if self.state is LiveState.OPENING:
            self._step(LiveEvent.RECOVER)

    def ask(
        self, conversation: Conversation, message: Message, exchange: Exchange | None, *, is_named: bool = False
    ) -> None:
        """Send the client a server's request, in the form of the client's era: a modern client gets it as a result,
        even in a legacy session. `is_named` is True if the request says to which call (`exchange`) it belongs."""
        is_modern = exchange is not None and exchange.declaration is not None
        if self.session.era != Era.MODERN and not is_modern:
            self.questions.ask(conversation, message, exchange)
        elif self._ask_modern is not None:
            self._ask_modern(self, conversation, message, exchange if is_named else None)

    def withdraw_questions(self, exchange: Exchange) -> None:
        """Cancel the questions from results of this call, which has ended."""
        if self._questions is not None:
            self._questions.withdraw_for(exchange)

    def link_closed(self, conversation: Conversation) -> None:
        """Cancel the questions of a server whose link is gone: the server cannot get the answers."""
        if self._questions is not None:
            self._questions.closed(conversation)

    def replace_record(self, session: Session, *, is_read: bool = False) -> None:
        """Replace the cached record of the session. `is_read` is True if the record was read from the store just now.

        A live session belongs to one claim (epoch). A record with another epoch shows that another replica has owned
        the session since. Then keep the cached record, but without an owner, so that the next call reads the record
        from the store."""
        if session.epoch != self.session.epoch:
            session, is_read, self.read_at = replace(self.session, owner=""), False, 0.0
        if session is not self.session and not session.is_but_used(self.session):
            self.changed()
        self.session = session
        if is_read:
            self.read_at = monotonic()

    # -- whether its client comes back

    @property
    def is_unreturned(self) -> bool:
        """Return True if the session has had only its first request."""
        return self.return_watch is not None and self.return_watch.is_waiting

    def watch_return(self, watch: ReturnWatch | None) -> None:
        """Set the watch for the second request of the session's client. None: stop waiting for it."""
        self.return_watch = watch
        self.changed()

    # -- its end

    async def close_outdated_links(self, *, finish_calls: bool) -> None:
        """Close the links to servers, because the servers got an earlier context (rights) of the session. The next call
        opens new links. With `finish_calls`, a link with calls in flight is closed when they are answered; otherwise
        they fail."""
        self.renewals += 1
        await self._stop_servers("context", _RENEWED, finish_calls=finish_calls)

    async def stop_servers(self) -> None:
        """Close the links to servers, because the client has disconnected. The session stays, in case the client comes
        back."""
        await self._stop_servers("idle_stop", _LEFT)

    async def replace_server(self, conversation: Conversation, reason: str) -> None:
        """Close the conversation with a server whose configuration has changed. The next call uses the new server, and
        its result reports the change. Calls in flight fail with `reason`."""
        for key in [key for key, held in self.conversations.items() if held is conversation]:
            del self.conversations[key]
        same = [held for held in self.conversations.values() if held.name == conversation.name]
        others = [held for held in same if held.deadlines is not conversation.deadlines]
        for held in others:  # the new server speaks another era, or the client has declared more
            held.users.notify(self, Loss.CONFIGURED)
        if not others:
            self._replaced = (self._replaced or set()) | {conversation.name}
        self.changed()
        await conversation.close(reason)

    def take_replaced(self, server: str) -> bool:
        """Return True if `replace_server` has closed the server's former process and the client was not told yet. Later
        calls return False."""
        if self._replaced is None or server not in self._replaced:
            return False
        self._replaced = (self._replaced - {server}) or None
        return True

    async def _stop_servers(self, why: str, reason: str, *, finish_calls: bool = False) -> None:
        conversations = list(self.conversations.values()) if finish_calls else self.every_conversation()
        self.conversations.clear()
        self.changed()
        self.used_before, self.new_process = self.session.links, why
        if finish_calls and (busy := [each for each in conversations if each.finish_calls(reason)]):
            self._finishing = self._finishing or weakref.WeakSet()
            self._finishing.update(busy)
            conversations = [each for each in conversations if each not in busy]
        await asyncio.gather(*(c.close(reason) for c in conversations), return_exceptions=True)

    async def close(self, *, over: bool = True, taken_over: bool = False) -> None:
        """Close the session on this replica, and wait until all its processes have ended.

        `over` False: the gateway stops, but the session continues elsewhere, so its event streams stay in the store.
        `taken_over`: another replica has taken the session over, so the outcome of calls in flight is unknown.
        """
        self._step(LiveEvent.END if over else LiveEvent.HAND_OVER)
        reason = "the session has ended" if over else "the gateway stops"
        self._end_calls(reason, taken_over=taken_over)
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
            await self.flush_events()

    def lose(self) -> None:
        """End the calls in flight at once, with the error that their outcome is unknown: another replica has owned the
        session since they began. The caller must close the session."""
        self.hand_over()
        self._end_calls("", taken_over=True)

    def _end_calls(self, reason: str, *, taken_over: bool) -> None:
        for exchange in dict.fromkeys((*self.exchanges, *self.suspended.values())):
            if exchange.conversation is not None and taken_over:
                exchange.conversation.fail(exchange, OUTCOME_UNKNOWN, _TAKEN_OVER)
            elif exchange.conversation is not None:
                exchange.conversation.cancel(exchange, reason)
            elif exchange.is_subscription:  # which waits to learn the era of its server
                exchange.fail(CANCELLED, f"Cancelled: {reason}")
        if self._questions is not None:
            self._questions.end(reason)

    async def flush_events(self) -> None:
        """Write all recorded events to the store, for the process that serves the session next."""
        await self._events.release(self.session.id)


class LiveSessions:
    """The sessions that this replica has in memory, by id."""

    def __init__(
        self, events: EventStreams, ask_modern: AskModern | None = None, add_entry: AddEntry = ignored
    ) -> None:
        self._add_entry = add_entry
        self._events = events
        self._ask_modern = ask_modern
        self._live: dict[str, LiveSession] = {}
        self._named: dict[str, LiveSession] = {}  # by alias

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._live.values()))

    @property
    def count(self) -> int:
        return len(self._live)

    def ids(self) -> list[str]:
        return [*self._live]

    def get(self, session_id: str) -> LiveSession | None:
        return self._live.get(session_id)

    def epoch_of(self, session_id: str, replica: str) -> int | None:
        """Return the ownership epoch in which this replica serves the session. Return None if the session is not live
        here, or its record names another owner. `replica`: this replica's id; empty without a cluster."""
        live = self._live.get(session_id)
        return live.session.epoch if live is not None and live.session.owner == replica else None

    def of(self, session: Session, *, new_process: str = "") -> LiveSession:
        """Return the live session of a stored record, and give it this record. Create the live session if there is
        none. `new_process` is the reason why servers that the session has used before get new processes here."""
        live = self._live.get(session.id)
        if live is None:
            live = self._live[session.id] = LiveSession(session, self._events, self._ask_modern, self._add_entry)
        live.replace_record(session)
        if new_process:
            live.new_process = new_process
        return live

    def of_new(self, session: Session) -> LiveSession:
        """Return the live session of a new record. No earlier process can have left event streams of it."""
        live = self.of(session)
        live.recover_nothing()
        return live

    def note_alias(self, live: LiveSession, alias: str) -> None:
        """Record the alias (second name) under which the store has found a live session, so that `named` finds it."""
        live.alias = alias
        self._named[alias] = live

    def named(self, alias: str) -> LiveSession | None:
        """Return the live session that `note_alias` last recorded under this alias; None if there is none."""
        return self._named.get(alias)

    def in_use(self, session_id: str) -> bool:
        """Return True if the session has a call in flight, a suspended call, or an open stream."""
        live = self._live.get(session_id)
        return live is not None and live.is_busy

    def remove(self, session_id: str) -> LiveSession | None:
        """Remove and return a session, so that requests do not find it while it is closed; None if there is none."""
        live = self._live.pop(session_id, None)
        if live is not None:
            live.changed()
        if live is not None and self._named.get(live.alias) is live:
            del self._named[live.alias]
        return live

    def hand_over(self, live: LiveSession) -> None:
        """Remove a session that another replica serves from now on. The caller must close it."""
        live.hand_over()
        self.remove(live.session.id)


def live_session_of(exchange: Exchange) -> LiveSession | None:
    """Return the live session of an exchange with its full type. `Exchange.live` has a narrower type."""
    return exchange.live  # type: ignore[return-value]  # nothing else implements `ExchangeSession`


class FrameWatches:
    """The sessions of this replica that operators watch."""

    def __init__(self) -> None:
        self._watched: dict[LiveSession, asyncio.TimerHandle] = {}

    def __iter__(self) -> Iterator[MessageRecorder]:
        return iter([live.recorder for live in self._watched if live.recorder is not None])

    def start(self, live: LiveSession, by: str) -> bool:
        """Watch a session for the operator `by`, or extend the watch. Delete the messages recorded for another
        operator, who may have had other rights to see them. Return False if too many sessions are watched."""
        for ended in [one for one in self._watched if one.ended]:
            self.stop(ended)
        if live not in self._watched and len(self._watched) >= MOST_WATCHED:
            return False
        if live.recorder is None or live.recorder.by != by:
            live.watched_by(None)
            live.watched_by(MessageRecorder(live.session.id, by))
        assert live.recorder is not None
        live.recorder.extend(time() + WATCHED_S)
        if (timer := self._watched.pop(live, None)) is not None:
            timer.cancel()
        self._watched[live] = asyncio.get_running_loop().call_later(WATCHED_S, self.stop, live)
        return True

    def stop(self, live: LiveSession) -> None:
        """Stop watching a session, and delete the recorded messages."""
        if (timer := self._watched.pop(live, None)) is not None:
            timer.cancel()
        live.watched_by(None)
