"""Record the newest messages of a session and its servers' stderr lines, for an operator who watches the session.
Credentials are removed from them, and the memory is limited."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from time import time
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from gateway.observability.redacted_bodies import BodyRedactor
from transports.inbound_port import Refused
from transports.jsonrpc import InvalidMessage, Message, encode, parse

MOST_FRAMES: Final = 500
MOST_LINES: Final = 500
MOST_KEPT_CHARS: Final = 1 << 20
"""Maximum characters of all recorded message bodies of one session; the same for its lines."""

_MOST_LINE: Final = 500
_MOST_NAME: Final = 200
_MOST_REQUESTS: Final = 256
_MOST_LATEST: Final = 16
_SMALL_BYTES: Final = 64 << 10

Direction = Literal["client to gateway", "gateway to client", "gateway to server", "server to gateway"]
_OPPOSITE: Final[dict[str, Direction]] = {
    "client to gateway": "gateway to client",
    "gateway to client": "client to gateway",
    "gateway to server": "server to gateway",
    "server to gateway": "gateway to server",
}


class SeenFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded message. `number` is larger than that of every earlier message. `at` is in seconds since 1970. The
    `method` of a response is that of its request. `size` is the length of params, result or error in bytes, and `body`
    is the part of them that may be shown."""

    number: int
    at: float
    direction: Direction
    kind: Literal["request", "notification", "response", "error"]
    server: str = ""
    method: str = ""
    id: str = ""
    size: int = 0
    body: str = ""


class StderrLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a server's stderr, shortened. `number` is larger than that of every earlier line; 0 if the session is
    not watched. `at` is in seconds since 1970; 0 if the line was written before the watch began."""

    number: int
    server: str
    text: str
    at: float = 0.0


Item = TypeVar("Item", SeenFrame, StderrLine)


class _Ring(Generic[Item]):
    """A list that keeps only its newest items, limited in number and in characters."""

    def __init__(self, most: int, first: int, length: Callable[[Item], int]) -> None:
        self._items: deque[Item] = deque()
        self._most = most
        self._length: Callable[[Item], int] = length
        self._chars = 0
        self._first = self.next_number = first

    def add(self, item: Item) -> None:
        self._items.append(item)
        self._chars += self._length(item)
        self.next_number += 1
        while len(self._items) > self._most or self._chars > MOST_KEPT_CHARS:
            self._chars -= self._length(self._items.popleft())

    def behind(self, after: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items: the oldest of those whose number is above `after`, or the newest of all if
        `after` is 0. Also return how many items above `after` were dropped."""
        if limit <= 0:
            return [], 0
        if not after:
            return list(self._items)[-limit:], 0
        found = [item for item in self._items if item.number > after][:limit]
        oldest = self._items[0].number if self._items else self.next_number
        return found, max(0, oldest - max(after + 1, self._first))


class MessageRecorder:
    """Record the messages and stderr lines of a session that an operator watches."""

    def __init__(self, session_id: str, by: str, clock: Callable[[], float] = time) -> None:
        first = int(clock() * 1000)  # larger than every number of an earlier watch
        self.by = by
        """The operator."""
        self.ends_at = 0.0
        """When the watch ends, in seconds since 1970."""
        self.frames: _Ring[SeenFrame] = _Ring(MOST_FRAMES, first, lambda frame: len(frame.body))
        self.lines: _Ring[StderrLine] = _Ring(MOST_LINES, first, lambda line: len(line.text))
        self._clock = clock
        self._asked: OrderedDict[tuple[str, str, Any], str] = OrderedDict()
        self._latest: deque[Message] = deque(maxlen=_MOST_LATEST)
        self._bodies = BodyRedactor()
        self._bodies.hide((session_id,))

    def extend(self, ends_at: float) -> None:
        self.ends_at = ends_at

    def hide(self, values: Iterable[str], *, are_renewed: bool = False) -> None:
        """Replace these secret values in everything that is recorded from now on. `are_renewed` is True if they take
        the place of earlier secrets of a link that goes on."""
        self._bodies.hide(values, are_renewed=are_renewed)

    # -- messages

    def from_client(self, message: Message) -> None:
        """Record a message from the client. Do nothing if the same message was recorded already."""
        if any(message is one for one in self._latest):
            return
        if len(_body_of(message)) <= _SMALL_BYTES and _is_small(message):
            self._latest.append(message)
        self._note("client to gateway", "", message)

    def to_client(self, frame: bytes) -> None:
        self._note("gateway to client", "", _read(frame))

    def refused(self, message: Message, refused: Refused) -> None:
        """Record the refusal of a client's message, if the message was recorded here."""
        if any(message is one for one in self._latest):
            error = msgspec.Raw(encode(refused.error()))
            self._note("gateway to client", "", Message(jsonrpc="2.0", id=message.id, error=error))

    def to_server(self, server: str, frame: bytes) -> None:
        self._note("gateway to server", server, _read(frame))

    def from_server(self, server: str, message: Message) -> None:
        self._note("server to gateway", server, message)

    def _note(self, direction: Direction, server: str, message: Message | None) -> None:
        if message is None:
            return
        raw = _body_of(message)
        frame = SeenFrame(
            number=self.frames.next_number,
            at=round(self._clock(), 3),
            direction=direction,
            kind=_kind(message),
            server=server,
            method=self._method(direction, server, message),
            id="" if message.id in (msgspec.UNSET, None) else self._bodies.text(str(message.id), _MOST_NAME),
            size=len(raw),
            body=self._bodies.body(raw) if raw else "",
        )
        self.frames.add(frame)

    def _method(self, direction: Direction, server: str, message: Message) -> str:
        """Return the method of a message; for a response, the method of its request."""
        if isinstance(message.method, msgspec.UnsetType):
            return self._asked.pop((_OPPOSITE[direction], server, message.id), "")
        method = self._bodies.text(message.method, _MOST_NAME)
        if message.is_request and _is_small(message):
            self._asked[direction, server, message.id] = method
            if len(self._asked) > _MOST_REQUESTS:
                self._asked.popitem(last=False)
        return method

    # -- stderr

    def line(self, server: str, text: str, *, is_earlier: bool = False) -> None:
        """Record a stderr line of a server. `is_earlier`: it was written before the watch began."""
        shown = self._bodies.text(text, _MOST_LINE)
        at = 0.0 if is_earlier else round(self._clock(), 3)
        self.lines.add(StderrLine(number=self.lines.next_number, server=server, text=shown, at=at))


def _body_of(message: Message) -> bytes:
    parts = (message.params, message.result, message.error)
    return next((bytes(part) for part in parts if not isinstance(part, msgspec.UnsetType)), b"")


def _is_small(message: Message) -> bool:
    """Return False if the id or the method is too long to be kept: both may be as long as a message."""
    return all(len(part) <= _MOST_NAME for part in (message.id, message.method) if isinstance(part, str))


def _kind(message: Message) -> Literal["request", "notification", "response", "error"]:
    if not message.is_response:
        return "request" if message.is_request else "notification"
    return "response" if isinstance(message.error, msgspec.UnsetType) else "error"


def _read(frame: bytes) -> Message | None:
    try:
        return parse(frame)
    except InvalidMessage:  # the gateway's own frames are messages
        return None
