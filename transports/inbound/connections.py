"""Accept the connections of a listener, end those that exceed a deadline, and end idle ones to make room for others. A
timer compares the state of each connection with its state at the last check, so a request costs nothing here. This
module knows no HTTP: a connection reports for what it waits."""

import asyncio
import contextlib
import enum
import itertools
import logging
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from transports.inbound.unauthenticated_limits import Limited, Limits, Refusals, network_of

logger = logging.getLogger(__name__)

_MAX_CHECK_EVERY_S: Final = 1.0
_MOST_AT_ONCE: Final = 128
_MOST_CUT_AT_ONCE: Final = 32
"""Maximum number of connections that are ended in one turn of the event loop. At most `_MOST_AT_ONCE` are checked.
Either takes about a millisecond."""

_TOLD_EVERY_S: Final = 10.0

_LINGER_S: Final = 2.0
"""Seconds that a client has to read the last response. Closing at once could lose the response (RFC 9112 §9.6)."""

_MOST_DROPPED: Final = 1 << 20
"""The most bytes that are read and discarded after the last response. If more arrive, reading pauses until `_LINGER_S`
has passed."""

_MOST_DROPPED_BODY: Final = 8 << 20
"""Maximum bytes that are read and discarded while the body of a refused request still arrives: some clients read no
response before they have sent the whole body."""


class Phase(enum.Enum):
    """What a connection is waiting for."""

    HEAD = enum.auto()
    """The connection waits for its first request, or for the rest of a request head."""
    BODY = enum.auto()
    BUSY = enum.auto()
    """The connection waits for the gateway: for an answer, or until the gateway reads on."""
    IDLE = enum.auto()
    """The connection waits for the next request."""
    LINGERING = enum.auto()
    """The connection waits until its client has read the last response."""


class Connection(Protocol):
    """The methods of a connection that `Connections` calls."""

    def progress(self) -> tuple[Phase, int]:
        """Return the phase of the connection (for what it waits), and a number that changes with any progress."""

    def unsent(self) -> int:
        """Return the bytes in the send buffer: written, but not yet accepted by the kernel."""

    def cut(self, kind: Limited | None) -> None:
        """End the connection because it exceeded the limit `kind`; None if it was idle for too long, which is no
        fault."""

    def drop(self) -> None:
        """End the connection now, without waiting for the client: to make room, or because `cut` has failed. It is no
        longer checked."""


class CycleTransport:
    """Wrap a transport for uvicorn's cycles (request and response). Its `close` ends the connection after a response;
    the usual `close` resets a connection on which the request is still arriving."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.write = transport.write  # direct, because each response is written with it
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LingeringClose:
    """End a connection after its last response. Read and discard what the client still sends, up to a limit."""

    __slots__ = ("_may_drop", "has_begun")

    def __init__(self) -> None:
        self.has_begun = False
        self._may_drop = _MOST_DROPPED

    def begin(self, transport: asyncio.Transport, flow: FlowControl, *, in_body: bool = False) -> None:
        """Stop sending, and discard what still arrives. `in_body`: the body of an answered request is still
        arriving."""
        self.has_begun = True
        if in_body:
            self._may_drop = _MOST_DROPPED_BODY
        if (in_body and not transport.can_write_eof()) or end_writing(transport):
            flow.resume_reading()

    def drop(self, size: int, flow: FlowControl) -> None:
        """Record that `size` bytes have arrived, which the caller discards. Pause reading if `begin` was not called
        yet, or if more bytes than the limit have arrived since then."""
        self._may_drop -= size if self.has_begun else 0
        if not self.has_begun or self._may_drop < 0:
            flow.pause_reading()


class _Seen:
    __slots__ = ("peer", "progress", "since", "taken_at", "unsent")

    def __init__(self, peer: Hashable, now: float) -> None:
        self.peer = peer
        self.progress: tuple[Phase, int] = (Phase.HEAD, 0)
        self.since = self.taken_at = now
        self.unsent = 0

    def note(self, progress: tuple[Phase, int], unsent: int, now: float) -> None:
        """Record when the connection last made progress, and when its send buffer last became smaller or was empty."""
        if not unsent or unsent < self.unsent:
            self.taken_at = now
        self.unsent = unsent
        if progress != self.progress:
            self.progress, self.since = progress, now


_SPARE: Final = (Phase.HEAD, Phase.IDLE)
_KINDS: Final = {Phase.HEAD: Limited.HEAD_TIME, Phase.BODY: Limited.BODY_TIME}


class Connections:
    """Keep the open connections of one listener, or of several that share their limits. The number of connections from
    one address is limited, unless `uncounted` returns True for this address: a proxy with many clients has it."""

    def __init__(
        self, limits: Limits, refusals: Refusals, *, uncounted: Callable[[str], bool] = lambda address: False
    ) -> None:
        self.limits = limits
        self.refusals = refusals
        self._uncounted = uncounted
        self._open: dict[Connection, _Seen] = {}
        self._peers: Counter[Hashable] = Counter()
        self._spare: deque[Connection] = deque()
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._stalled_s = 0.0
        self._told_at = -_TOLD_EVERY_S
        self._allowed_s = {
            Phase.HEAD: limits.head_timeout_s,
            Phase.BODY: limits.body_timeout_s,
            Phase.IDLE: limits.idle_timeout_s,
            Phase.LINGERING: _LINGER_S,
        }
        shortest = min(*self._allowed_s.values(), limits.write_timeout_s)
        self._check_every_s = min(_MAX_CHECK_EVERY_S, shortest / 4)

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection, peer: str, *, place: str = "") -> Limited | None:
        """Register a connection and return None, or return the limit that refuses it. On a Unix socket, connections are
        counted by `place`, not by the address `peer`."""
        counted = place or self._counted(peer)
        if counted is not None and self._peers[counted] >= self.limits.peer_connections:
            return self._refuse(Limited.PEER_CONNECTIONS)
        if len(self._open) >= self.limits.connections and not self._make_room():
            return self._refuse(Limited.CONNECTIONS)
        self._open[connection] = _Seen(counted, self._now())
        if counted is not None:
            self._peers[counted] += 1
        if self._timer is None:
            self._check_later()
        return None

    def has_room(self, peer: str) -> bool:
        """Return True if a connection from `peer` would be accepted without ending another one."""
        counted = self._counted(peer)
        is_one_too_many = counted is not None and self._peers[counted] >= self.limits.peer_connections
        return len(self._open) < self.limits.connections and not is_one_too_many

    def _counted(self, peer: str) -> Hashable:
        """Return the key under which connections from the address `peer` are counted; None if they are not counted."""
        return None if not peer or self._uncounted(peer) else network_of(peer) or peer

    def _refuse(self, kind: Limited) -> Limited:
        self.refusals[kind] += 1
        return kind

    def swap(self, connection: Connection, successor: Connection) -> None:
        """Replace a connection by another object, `successor`, which takes over its transport."""
        self._open[successor] = self._open.pop(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection. Do nothing if it was refused or replaced."""
        seen = self._open.pop(connection, None)
        if seen is None or seen.peer is None:
            return
        self._peers[seen.peer] -= 1
        if not self._peers[seen.peer]:
            del self._peers[seen.peer]

    def _make_room(self) -> bool:
        """End one connection that waits for a request, to make room. Prefer one that has never sent a request; else
        take the one that has been idle longest. Return False if no connection waits."""
        if not self._spare:
            # So many have come at once that the last periodic check saw none: look among the oldest ones.
            now, spare = self._now(), []
            for one, noted in itertools.islice(self._open.items(), _MOST_AT_ONCE):
                noted.note(one.progress(), one.unsent(), now)
                if noted.progress[0] in _SPARE:
                    spare.append((noted.progress[1] > 0, noted.since, one))
            self._spare = _in_order(spare)
        while self._spare:
            connection = self._spare.popleft()
            seen = self._open.get(connection)
            if seen is not None and connection.progress() == seen.progress:
                self.leave(connection)
                self.refusals[Limited.CONNECTIONS] += 1
                self._tell_full("the one that has been idle longest is closed for each new one")
                connection.drop()
                return True
        self._tell_full("new ones get 503, because none is idle")
        return False

    def _tell_full(self, outcome: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._told_at + _TOLD_EVERY_S:
            self._told_at = now
            logger.warning(
                "all %d connections are taken: %s (gateway.limits.connections, or the limit of open files, ulimit -n)",
                *(self.limits.connections, outcome),
            )

    def _now(self) -> float:
        """Return the time in seconds by which deadlines are measured. It stands still while the event loop is blocked,
        because nothing that clients send is read then."""
        return asyncio.get_running_loop().time() - self._stalled_s

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._check_every_s
        self._timer = loop.call_at(self._due, self._check)

    def _check(self) -> None:
        self._stalled_s += max(0.0, asyncio.get_running_loop().time() - self._due)
        self._check_some(list(self._open), [])

    def _check_some(self, left: list[Connection], spare: list[tuple[bool, float, Connection]]) -> None:
        """Check some of the connections in `left` now, and the others in later turns of the event loop, so that
        requests do not wait. Collect in `spare` the connections that wait for a request."""
        now, cut = self._now(), 0
        for _ in range(min(len(left), _MOST_AT_ONCE)):
            connection = left.pop()
            seen = self._open.get(connection)
            if seen is None:
                continue
            try:
                has_time = self._keep_or_cut(connection, seen, now)
            except Exception:
                # A fault of one connection must not end the deadlines of all others.
                logger.exception("closing a connection whose limits could not be checked")
                connection.drop()
                has_time = False
            if has_time and seen.progress[0] in _SPARE:
                spare.append((seen.progress[1] > 0, seen.since, connection))
            cut += not has_time
            if cut == _MOST_CUT_AT_ONCE:
                break
        if left:
            self._timer = asyncio.get_running_loop().call_soon(self._check_some, left, spare)
            return
        self._spare, self._timer = _in_order(spare), None
        if self._open:
            self._check_later()

    def _keep_or_cut(self, connection: Connection, seen: _Seen, now: float) -> bool:
        """End the connection and return False if it has exceeded a deadline; else return True."""
        progress, unsent = connection.progress(), connection.unsent()
        seen.note(progress, unsent, now)
        phase = progress[0]
        if unsent and now - seen.taken_at >= self.limits.write_timeout_s:
            connection.cut(Limited.WRITE_TIME)
        elif phase is not Phase.BUSY and now - seen.since >= self._allowed_s[phase]:
            connection.cut(_KINDS.get(phase))
        else:
            return True
        return False

    def close(self) -> None:
        """Stop the periodic checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _in_order(spare: list[tuple[bool, float, Connection]]) -> deque[Connection]:
    """Return waiting connections in the order in which they are ended to make room: those that have never sent a
    request come first."""
    spare.sort(key=lambda entry: entry[:2])
    return deque(connection for *_, connection in spare)


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a TCP reset. Unsent data is discarded, so that neither this process nor the kernel keeps
    it."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def end_writing(transport: asyncio.Transport) -> bool:
    """Stop sending, but go on reading: closing both directions could lose the last response (RFC 9112 §9.6).

    If that is impossible, close the whole connection and return False.
    """
    if not transport.can_write_eof():
        transport.close()
        return False
    try:
        transport.write_eof()
    except OSError:  # the connection was reset, and the event loop has not reported it yet
        transport.abort()
        return False
    return True


def drop(transport: asyncio.Transport) -> None:
    """End a connection now. Unsent data is discarded."""
    if transport.get_write_buffer_size():
        reset(transport)
    else:
        transport.abort()
