"""A simulated network: connections in memory, with delays, cuts and resets.

A connection keeps what it carries in order and loses nothing, as TCP does. Where it is cut, its bytes wait. Only where
a way is spoilt, as by a faulty proxy, a write is lost or arrives twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from tests.simulation.virtual_time import VirtualLoop

Address = tuple[str, int]
DELAY_S: Final = 0.0005
"""The most that a message takes where the network is not slow."""

_END: Final = b""
_HIT: Final = 0.25
_PORTS_FROM: Final = 40_000


class Network:
    """The addresses that hosts listen at, and the pairs of hosts that do not reach each other."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.listening: dict[Address, tuple[str, Callable[[], asyncio.Protocol]]] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.spoilt: dict[tuple[str, str], int] = {}
        """How often a write arrives, if it is one of the quarter that is hit: never (0) or twice."""
        self.ends: dict[str, dict[End, None]] = {}
        self._port = _PORTS_FROM
        self._waiting: dict[tuple[str, str], dict[End, None]] = {}

    def delay_s(self, a: str, b: str) -> float:
        """How long a message from `a` to `b` takes."""
        return DELAY_S * self.loop.random.random() + self.slow.get((a, b), 0.0) * self.loop.random.random()

    # -- faults

    def cut(self, a: str, b: str) -> None:
        """Let nothing pass from `a` to `b`."""
        self.cuts.add((a, b))

    def mend(self, a: str, b: str) -> None:
        """Let pass what waits, and what is sent from now on."""
        self.cuts.discard((a, b))
        for end in self._waiting.pop((a, b), {}):
            end.arrive_soon(self.delay_s(a, b))

    def wait_for(self, a: str, b: str, end: "End") -> None:
        """Bytes wait for the end of a cut."""
        self._waiting.setdefault((a, b), {})[end] = None

    def kill(self, host: str) -> None:
        """The host's kernel ends its connections."""
        self.listening = {at: (by, make) for at, (by, make) in self.listening.items() if by != host}
        for end in [*self.ends.get(host, ())]:
            end.is_over = True
            end.other.queue.append(None)
            end.other.arrive_soon(self.delay_s(host, end.other.host))
        self.ends.pop(host, None)

    def reset(self, a: str, b: str) -> None:
        """End the connections between two hosts, with what is on its way."""
        for end in [end for end in self.ends.get(a, ()) if end.other.host == b]:
            for each in (end, end.other):
                each.queue.clear()
                each.queue.append(None)
                each.arrive_soon(0.0)

    # -- what the loop offers

    def listen(self, make: Callable[[], asyncio.Protocol], host: str, port: int) -> "Listener":
        if (host, port) in self.listening:
            raise OSError(98, "Address already in use")
        self.listening[host, port] = (self.loop.host, make)
        return Listener(self, (host, port))

    async def connect(self, make: Callable[[], asyncio.Protocol], at: Address) -> tuple["End", asyncio.Protocol]:
        """Open a connection from the host that runs now. Waits where there is a cut."""
        here, there = self.loop.host, self.host_at(at)
        while self.is_cut(here, there):  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.delay_s(here, there) + self.delay_s(there, here))
        if at not in self.listening or self.loop.is_dead(there):
            raise ConnectionRefusedError(111, "Connection refused")
        self._port += 1
        there, accept = self.listening[at]
        mine, theirs = End(self, here, at), End(self, there, (here, self._port))
        mine.other, theirs.other = theirs, mine
        self.loop.at_host(there, 0.0, theirs.begin, accept)
        protocol = make()
        mine.begin(lambda: protocol)
        return mine, protocol

    def is_cut(self, a: str, b: str) -> bool:
        """True if no connection can be opened from `a` to `b`."""
        return (a, b) in self.cuts or (b, a) in self.cuts

    def host_at(self, at: Address) -> str:
        """The host that listens there, or else the one of that address."""
        return self.listening[at][0] if at in self.listening else at[0]


class Listener:
    """What `create_server` returns: it is its own socket."""

    def __init__(self, network: Network, at: Address) -> None:
        self._network = network
        self._at = at
        self.sockets = (self,)

    def getsockname(self) -> Address:
        return self._at

    def close(self) -> None:
        self._network.listening.pop(self._at, None)

    async def wait_closed(self) -> None:
        """Nothing is left open."""


class End(asyncio.Transport):
    """One end of a connection. `queue` has what is on its way to it: bytes, `_END`, or None for a reset."""

    other: "End"

    def __init__(self, network: Network, host: str, peer: Address) -> None:
        super().__init__()
        self._network = network
        self.host = host
        self._peer = peer
        self._protocol: asyncio.Protocol | None = None
        self.queue: deque[bytes | None] = deque()
        self.is_over = self._is_closing = False
        self._reads = True
        self._last_at = 0.0

    def begin(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._network.ends.setdefault(self.host, {})[self] = None
        self._protocol = make()
        self._protocol.connection_made(self)
        self._arrive()

    # -- what comes

    def arrive_soon(self, delay_s: float) -> None:
        """Let the first of the queue arrive, after those before it."""
        loop = self._network.loop
        self._last_at = max(self._last_at, loop.now + delay_s)
        loop.at_host(self.host, self._last_at - loop.now, self._arrive)

    def _arrive(self) -> None:
        way = (self.other.host, self.host)
        while self.queue and self._reads and not self._is_closing and self._protocol is not None:
            if way in self._network.cuts:
                self._network.wait_for(*way, self)
                return
            piece = self.queue.popleft()
            if piece is None:
                self._lose(ConnectionResetError(104, "Connection reset by peer"))
            elif piece != _END:
                self._protocol.data_received(piece)
            elif not self._protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if self.is_over or self._protocol is None:
            return
        self.is_over = self._is_closing = True
        self._network.ends.get(self.host, {}).pop(self, None)
        self._protocol.connection_lost(error)

    # -- the transport

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        way, random = (self.host, self.other.host), self._network.loop.random
        is_hit = way in self._network.spoilt and random.random() < _HIT
        for _ in range(self._network.spoilt[way] if is_hit else 1):
            self._send(bytes(data))

    def _send(self, piece: bytes | None) -> None:
        self.other.queue.append(piece)
        self.other.arrive_soon(self._network.delay_s(self.host, self.other.host))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send(_END)
            self._network.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self.is_over:
            self._is_closing = True
            self._send(None)
            self._network.loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The buffer is never full."""

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._network.loop.call_soon(self._arrive)

    def is_reading(self) -> bool:
        return self._reads


class SimulatedLoop(VirtualLoop):
    """The loop, and its network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(self)

    async def create_connection(  # type: ignore[override]  # what the product gives
        self, protocol_factory: Any, host: str = "", port: int = 0, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, (host, int(port)))

    async def create_server(self, protocol_factory: Any, host: str = "", port: int = 0, **_: Any) -> Any:  # type: ignore[override]
        return self.network.listen(protocol_factory, host, port)
