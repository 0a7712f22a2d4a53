"""The life of an exchange as a table, and who may time it out in each state. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.calls.state_table import step

__all__ = [
    "ANSWER",
    "ASKING",
    "EXCHANGE",
    "OVER",
    "QUEUED",
    "SEND",
    "TIMED_BY",
    "Clock",
    "ExchangeEvent",
    "ExchangeLife",
    "ExchangeState",
]


class ExchangeState(StrEnum):
    """The state of a client's request."""

    QUEUED = "queued"
    """The server does not have it: the link is still opening, or has refused it."""
    SENT = "sent"
    """The server has it."""
    ASKING = "asking"
    """Its client was asked something; the call waits for the answer."""
    ANSWERED = "answered"
    """The server has answered, with a result or an error."""
    FAILED = "failed"
    """The gateway has answered with an error."""
    CANCELLED = "cancelled"
    """Cancelled by the client, or because its session has ended."""
    ABANDONED = "abandoned"
    """Ended without an answer: nobody waits for one."""


class ExchangeEvent(StrEnum):
    """What happens to a request."""

    SEND = "send"
    ASK = "ask"
    RESUME = "resume"
    """The client has answered, and the server has the call already."""
    REQUEUE = "requeue"
    """The link has refused it, or the server wants to be called again: it will be sent once more."""
    ANSWER = "answer"
    FAIL = "fail"
    CANCEL = "cancel"
    ABANDON = "abandon"


class Clock(StrEnum):
    """Who may time an exchange out."""

    LINK = "link"
    """The opening of the link, after `Deadlines.start_s`."""
    SERVER = "server"
    """The conversation, `Deadlines.call_s` after the last message that belongs to the call."""
    CLIENT = "client"
    """The conversation: `Deadlines.suspended_s` after a modern client was asked, `call_s` after a legacy client was."""
    NOBODY = "nobody"


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

# What nearly every exchange uses: to read a member of an enum takes ten times as long as to read a name.
QUEUED: Final = ExchangeState.QUEUED
ASKING: Final = ExchangeState.ASKING
SEND: Final = ExchangeEvent.SEND
ANSWER: Final = ExchangeEvent.ANSWER

OVER: Final = frozenset({_S.ANSWERED, _S.FAILED, _S.CANCELLED, _S.ABANDONED})

TIMED_BY: Final[Mapping[ExchangeState, Clock]] = {
    _S.QUEUED: Clock.LINK,
    _S.SENT: Clock.SERVER,
    _S.ASKING: Clock.CLIENT,
    **dict.fromkeys(OVER, Clock.NOBODY),
}


class ExchangeLife:
    """The state of one exchange."""

    state = ExchangeState.QUEUED

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER

    def step(self, event: ExchangeEvent) -> None:
        """Change the state. Raises `IllegalStep` if the table has no such step; then nothing has changed."""
        self.state = step(EXCHANGE, self.state, event)
