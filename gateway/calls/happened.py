"""What becomes of questions to clients, as entries of the timelines of their sessions."""

from collections.abc import Callable
from time import time

from gateway.calls.exchange import Exchange
from session_store import Session, TimelineEntry

__all__ = ["Happened", "ignored", "question_notes"]

Happened = Callable[[Session, TimelineEntry], None]
"""Keep something in the timeline of a session."""


def ignored(session: Session, entry: TimelineEntry) -> None:
    """Keep nothing."""


def question_notes(
    happened: Happened, session: Callable[[], Session]
) -> Callable[[Exchange | None, str, str, float], None]:
    """What `Questions` tells of each question: its call, its method, what became of it, and after how many seconds."""

    def noted(exchange: Exchange | None, method: str, outcome: str, took_s: float) -> None:
        server, correlation = ("", "") if exchange is None else (exchange.server, exchange.correlation)
        at, took_s = round(time() - took_s, 3), round(took_s, 3)
        entry = TimelineEntry(at, "question", server, method, outcome, took_s, correlation=correlation)
        happened(session(), entry)

    return noted
