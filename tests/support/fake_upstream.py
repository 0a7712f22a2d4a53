"""A server without a process: a conversation with it, and what it was sent. A live session, and a call."""

import asyncio
from typing import Any, cast

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import Deadlines
from gateway.calls.link_manager import LinkSession
from gateway.calls.live_session import AskModern, LiveSession
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.context.resources_for_links import LinkResources
from session_store import EventLog, MemoryEventLog
from session_store.testing import FakeClock, a_session
from transports.era import Era
from transports.jsonrpc import Message, encode, parse
from transports.reply_queue import ReplyQueue
from transports.upstream_port import ConnectOptions, Link, LinkClosed, LinkEvents


class FakeLink:
    """`refusal` is raised for whatever is sent."""

    pid: int | None = None
    resume = ""
    may_forget = True

    def __init__(self, events: LinkEvents) -> None:
        self.output_tail: list[str] = []
        self.sent: list[Any] = []
        self.events = events
        self.was_sent = asyncio.Event()
        self.refusal: LinkClosed | None = None

    def stderr_tail(self) -> list[str]:
        return self.output_tail

    def send(self, frame: bytes) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(msgspec.json.decode(frame))
        self.was_sent.set()

    def answer(self, result: object) -> None:
        """Answer the last request."""
        self.events.message(parse(encode({"jsonrpc": "2.0", "id": self.sent[-1]["id"], "result": result})))

    async def close(self) -> None:
        self.events.closed("it exited")


class FakeUpstream:
    """The source of the links, and the router of the server's messages. `error` is raised when a link is opened;
    `refused_headers` counts the calls whose headers the server refused."""

    name = "fake"
    is_gateway = False
    session = principal = ""
    recorder: MessageRecorder | None = None

    def secrets(self, given: ConnectOptions) -> set[str]:
        return set()

    def __init__(self) -> None:
        self.era = Era.MODERN
        self.error: Exception | None = None
        self.refused_headers = 0
        self.starts: list[str] = []
        self.links: list[FakeLink] = []
        self.conversation = Conversation(
            self, self, Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None)
        )

    async def resources(self) -> LinkResources:
        if self.error is not None:
            raise self.error
        return LinkResources()

    async def connect(self, options: ConnectOptions, events: LinkEvents) -> Link:
        self.links.append(FakeLink(events))
        return self.links[-1]

    def handshake(self) -> bytes | None:
        return None

    def known_handshake(self) -> bytes | None:
        return None

    def replay(self) -> list[bytes]:
        return []

    async def record_use(self, live: LinkSession) -> bool:
        return False

    async def remote_session_changed(self, resume: str) -> None: ...
    def started(self, pid: int | None, took_s: float, correlation: str) -> None: ...
    def answered(self) -> None:
        self.starts.append("answered")

    def failed(self, why: str) -> None:
        self.starts.append("failed")

    def restarted(self, reason: str) -> None: ...
    def relay_request(self, conversation: Conversation, message: Message, stream: object = None) -> None: ...
    def relay_notification(self, conversation: Conversation, message: Message, stream: object = None) -> None: ...
    def tools_changed(self, conversation: Conversation) -> None:
        self.refused_headers += 1

    def closed(self, conversation: Conversation) -> None: ...


def a_live(events: object = None, ask_modern: AskModern | None = None, **record: Any) -> LiveSession:
    """A session whose record has these fields. Without `events`, its log is in memory."""
    log = MemoryEventLog() if events is None else cast("EventLog", events)
    return LiveSession(a_session(FakeClock(), **record), log, ask_modern)


def a_call(live: Any = None, method: str = "tools/call") -> Exchange:
    return Exchange(method=method, client_id=7, live=live, replies=ReplyQueue())


async def answer_of(exchange: Exchange) -> Any:
    """The next message to the client of a call."""
    async with asyncio.timeout(60):
        frame = await exchange.replies.next()
    assert frame is not None
    return msgspec.json.decode(frame.data)
