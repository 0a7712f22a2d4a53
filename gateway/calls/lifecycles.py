"""Define the lifecycles of an exchange (a client's request), of a link (a connection to a server) and of a live
session, as tables of states and events. Define the deadlines of exchanges and links. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=StrEnum)


class IllegalStep(Exception):
    """The event is impossible in the present state, by the lifecycle's table. The state has not changed."""


def step(table: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    """Return the state that follows when `event` happens in `state`. `table` has the next states by state and event.

    Raises:
        IllegalStep: the table has no such step.
    """
    try:
        return table[state][event]
    except KeyError:
        raise IllegalStep(f"{event} is no step from {state}") from None


# -- exchanges


class ExchangeState(StrEnum):
    """The state of an exchange, which is a client's request."""

    QUEUED = "queued"
    """The request is not sent yet: the link to the server is still opening, or has refused the request. The exchange
    may be ended `Deadlines.start_s` after the opening began."""
    SENT = "sent"
    """The request was sent to the server. The exchange may be ended `Deadlines.call_s` after the last message that
    belongs to the call."""
    ASKING = "asking"
    """The call waits for its client to answer a question of the server. The exchange may be ended after
    `Deadlines.suspended_s` for a modern client, or `call_s` for a legacy client."""
    ANSWERED = "answered"
    """The server has answered, with a result or an error."""
    FAILED = "failed"
    """The gateway has answered with an error."""
    CANCELLED = "cancelled"
    """The client has cancelled the request, or its session has ended."""
    ABANDONED = "abandoned"
    """The request has ended without an answer, because no client waits for one."""


class ExchangeEvent(StrEnum):
    """An event that changes the state of an exchange, which is a client's request."""

    SEND = "send"
    ASK = "ask"
    RESUME = "resume"
    """The client has answered the question, and the server continues the call."""
    REQUEUE = "requeue"
    """The request will be sent again: the link has refused it, or the server needs it once more, such as with
    answers."""
    ANSWER = "answer"
    FAIL = "fail"
    CANCEL = "cancel"
    ABANDON = "abandon"


_S, _E = ExchangeState, ExchangeEvent
_ENDS: Final = {_E.ANSWER: _S.ANSWERED, _E.FAIL: _S.FAILED, _E.CANCEL: _S.CANCELLED, _E.ABANDON: _S.ABANDONED}

EXCHANGE: Final[Mapping[ExchangeState, Mapping[ExchangeEvent, ExchangeState]]] = {
    _S.QUEUED: {_E.SEND: _S.SENT, **_ENDS},
    _S.SENT: {_E.ASK: _S.ASKING, _E.REQUEUE: _S.QUEUED, **_ENDS},
    _S.ASKING: {_E.SEND: _S.SENT, _E.RESUME: _S.SENT, _E.REQUEUE: _S.QUEUED, **_ENDS},
    # The first end counts. A later one changes nothing.
    _S.ANSWERED: dict.fromkeys(_ENDS, _S.ANSWERED),
    _S.FAILED: dict.fromkeys(_ENDS, _S.FAILED),
    _S.CANCELLED: dict.fromkeys(_ENDS, _S.CANCELLED),
    _S.ABANDONED: dict.fromkeys(_ENDS, _S.ABANDONED),
}

# For nearly every exchange: reading a member of an enum takes ten times as long as reading a name.
QUEUED: Final = ExchangeState.QUEUED
ASKING: Final = ExchangeState.ASKING
SEND: Final = ExchangeEvent.SEND
ANSWER: Final = ExchangeEvent.ANSWER

OVER: Final = frozenset({_S.ANSWERED, _S.FAILED, _S.CANCELLED, _S.ABANDONED})


# -- deadlines


@dataclass(slots=True, kw_only=True)
class Deadlines:
    """The time limits of the conversations with one server, in seconds. A reload of the configuration changes them in
    place."""

    start_s: float
    """Until a link is open, including the handshake."""
    noise_s: float = 5.0
    """Until a link is open, counted from the server's first output line that is no message."""
    call_s: float
    """Until a call is answered, counted from the last message that belongs to it."""
    suspended_s: float
    """Until a modern client answers the questions of a legacy server."""
    idle_stop_s: float | None
    """Until a link without calls is closed. None: it is never closed for that."""
    unreturned_stop_s: float | None = None
    """In place of `idle_stop_s`, for a session whose client has sent only its first request."""

    def replace(self, start_s: float, noise_s: float, call_s: float) -> None:
        """Apply these limits from now on."""
        self.start_s, self.noise_s, self.call_s = start_s, noise_s, call_s


# -- links


class Loss(StrEnum):
    """The reason why a connection to a server (link) was replaced, as clients, the log and the metrics report it."""

    STOPPED = "idle_stop"
    """The gateway has closed the link because it was idle."""
    CRASHED = "crash"
    """The link has ended by itself, such as by the exit of the process, or has taken no more messages."""
    FORGOTTEN = "upstream_session"
    """The remote server no longer knows its session."""
    CONFIGURED = "configuration"
    """The configuration of the server has changed."""


LOSSES: Final = frozenset(Loss)


class LinkState(StrEnum):
    """The state of a conversation's link, the connection to a server."""

    ABSENT = "absent"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    ENDED = "ended"
    """The conversation has ended. No new link is opened."""


class LinkEvent(StrEnum):
    """An event that changes the state of a link, the connection to a server."""

    OPEN = "open"
    OPENED = "opened"
    FAILED = "failed"
    """The link could not be opened, or the server refused the handshake."""
    LOST = "lost"
    """The process ended, or the server has forgotten the session."""
    DISCARD = "discard"
    """The gateway closes the link because it is idle, or because it takes no messages any more."""
    CLOSED = "closed"
    END = "end"


LINK: Final[Mapping[LinkState, Mapping[LinkEvent, LinkState]]] = {
    LinkState.ABSENT: {
        LinkEvent.OPEN: LinkState.OPENING,
        LinkEvent.LOST: LinkState.ABSENT,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.OPENING: {
        LinkEvent.OPENED: LinkState.OPEN,
        LinkEvent.LOST: LinkState.OPENING,  # the opening fails by itself
        LinkEvent.FAILED: LinkState.ABSENT,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.OPEN: {
        LinkEvent.LOST: LinkState.ABSENT,
        LinkEvent.DISCARD: LinkState.CLOSING,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.CLOSING: {
        LinkEvent.LOST: LinkState.CLOSING,
        LinkEvent.CLOSED: LinkState.ABSENT,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.ENDED: {
        LinkEvent.FAILED: LinkState.ENDED,
        LinkEvent.LOST: LinkState.ENDED,
        LinkEvent.CLOSED: LinkState.ENDED,
        LinkEvent.END: LinkState.ENDED,
    },
}
"""The lifecycle of a link: for each state, the next state by event. A link is opened only after the one before has
ended, so a conversation never has two."""


# -- live sessions


class LiveState(StrEnum):
    """The state of a session on this replica of the gateway."""

    OPENING = "opening"
    """Event streams that an earlier process has left unfinished are not yet ended."""
    LIVE = "live"
    DRAINING = "draining"
    """The session's event streams are being ended. Calls in flight continue."""
    ENDED = "ended"
    ELSEWHERE = "elsewhere"
    """Another replica or a later process continues the session. So the sessions that it has at remote servers stay
    open."""


class LiveEvent(StrEnum):
    """An event that changes the state of a session on this replica."""

    RECOVER = "recover"
    UNRECOVERED = "unrecovered"
    """The store has failed while unfinished streams were being ended. The next request tries again."""
    DRAIN = "drain"
    ADMIT = "admit"
    END = "end"
    HAND_OVER = "hand over"


_LIVE_ENDS: Final = {LiveEvent.END: LiveState.ENDED, LiveEvent.HAND_OVER: LiveState.ELSEWHERE}

LIVE: Final[Mapping[LiveState, Mapping[LiveEvent, LiveState]]] = {
    LiveState.OPENING: {LiveEvent.RECOVER: LiveState.LIVE, LiveEvent.DRAIN: LiveState.DRAINING, **_LIVE_ENDS},
    LiveState.LIVE: {LiveEvent.UNRECOVERED: LiveState.OPENING, LiveEvent.DRAIN: LiveState.DRAINING, **_LIVE_ENDS},
    LiveState.DRAINING: {LiveEvent.DRAIN: LiveState.DRAINING, LiveEvent.ADMIT: LiveState.LIVE, **_LIVE_ENDS},
    LiveState.ENDED: {LiveEvent.END: LiveState.ENDED, LiveEvent.HAND_OVER: LiveState.ENDED},
    LiveState.ELSEWHERE: {LiveEvent.HAND_OVER: LiveState.ELSEWHERE, LiveEvent.END: LiveState.ENDED},
}

GONE: Final = frozenset({LiveState.ENDED, LiveState.ELSEWHERE})
