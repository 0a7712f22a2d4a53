"""What a server asks its client stands in the timeline of the session, with how long the answer took."""

from typing import Any, cast

import msgspec

from gateway.calls.live_session import LiveSession
from session_store import EventLog, Session, TimelineEntry
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.jsonrpc import Message


class Server:
    """Gets the answer."""

    def __init__(self) -> None:
        self.answers: list[Message] = []

    def answer(self, request_id: bytes, message: Message) -> None:
        self.answers.append(message)


@requirement("ops.timeline")
def test_a_question_and_its_answer_are_entries() -> None:
    entries: list[tuple[Session, TimelineEntry]] = []
    live = LiveSession(
        a_session(FakeClock()), cast("EventLog", None), None, lambda session, entry: entries.append((session, entry))
    )
    sent: list[bytes] = []
    questions = live.questions
    questions._send = lambda frame: not sent.append(frame)  # type: ignore[func-returns-value]  # a fake stream
    server = Server()
    params = msgspec.Raw(b'{"message":"the secret question"}')
    questions.ask(cast("Any", server), Message(jsonrpc="2.0", id=7, method="elicitation/create", params=params), None)
    assert questions.answered(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b"{}"))) and server.answers
    assert [(one.kind, one.name, one.outcome) for _, one in entries] == [
        ("question", "elicitation/create", "asked"),
        ("question", "elicitation/create", "answered"),
    ]
    assert entries[0][0] is live.session and "secret" not in str(entries)
