"""Resolve names to addresses as this machine does (getaddrinfo), in a limited number of threads."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Literal

from cachetools import TTLCache

MAX_WAITING: Final = 512
"""The maximum number of names in the second queue of `LookupTurns`: all names of slow askers, and the further names of
other askers, after the first of each."""

MAX_FIRST: Final = 2_048
"""The maximum number of names in the first queue of `LookupTurns`: one for each asker (such as a server and a
principal) that is not slow."""

_SLOW_S: Final = 2.0
_REMEMBERED_S: Final = 60.0
_REMEMBERED: Final = 4_096


class LookupTurns:
    """Decide which name is looked up next. An *asker* (such as a server and a principal) has one name in the first
    queue, unless its last look-ups were slow. Further names of an asker, and all names of slow askers, wait in a second
    queue, because a name server that does not answer blocks a thread for many seconds.

    There are `threads` threads. `reserved` of them serve only the first queue.
    """

    def __init__(self, threads: int, reserved: int, clock: Callable[[], float] = monotonic) -> None:
        self._free = threads
        self._reserved = reserved
        self._clock = clock
        self._under_way = Counter[Hashable]()
        self._slow: TTLCache[Hashable, bool] = TTLCache(_REMEMBERED, _REMEMBERED_S, clock)
        self._first: dict[str, Hashable] = {}  # in the order in which they came
        self._rest: dict[str, Hashable] = {}
        self._began: dict[str, tuple[Hashable, float]] = {}

    def ask(self, name: str, asker: Hashable) -> bool:
        """Add a name to the queue in which the asker has to wait. The name must not be in a queue yet. Return False if
        that queue is full."""
        if self._is_idle(asker):
            line, most = self._first, MAX_FIRST
        else:
            line, most = self._rest, MAX_WAITING
        if len(line) >= most:
            return False
        line[name] = asker
        self._under_way[asker] += 1
        return True

    def join(self, name: str, asker: Hashable) -> None:
        """Record that another asker (such as a server and a principal) wants a name that is queued or being looked up.
        If that asker has no other look-ups under way, and its last ones were not slow, move the name to the first
        queue."""
        if name in self._rest and self._is_idle(asker) and len(self._first) < MAX_FIRST:
            self._leave(self._rest.pop(name))
            self._first[name] = asker
            self._under_way[asker] += 1

    def next(self) -> str | None:
        """Return the next name to look up, and assign a thread to it until `done` is called. Return None if no name
        waits, or if no thread is free for those that wait."""
        for line, kept in ((self._first, 0), (self._rest, self._reserved)):
            if line and self._free > kept:
                name = next(iter(line))
                self._began[name] = (line.pop(name), self._clock())
                self._free -= 1
                return name
        return None

    def done(self, name: str) -> None:
        """Free the thread of a name that was looked up. If the look-up took long, its asker counts as slow for a
        minute."""
        asker, began = self._began.pop(name)
        self._free += 1
        self._leave(asker)
        if self._clock() - began > _SLOW_S:
            self._slow[asker] = True
        elif asker not in self._slow and asker not in self._first.values():
            waiting = next((other for other, whose in self._rest.items() if whose == asker), None)
            if waiting is not None:
                self._first[waiting] = self._rest.pop(waiting)

    def give_up(self, name: str) -> bool:
        """Remove a name from its queue. Return False if it is in no queue."""
        for line in (self._first, self._rest):
            if name in line:
                self._leave(line.pop(name))
                return True
        return False

    def _is_idle(self, asker: Hashable) -> bool:
        return asker not in self._under_way and asker not in self._slow

    def _leave(self, asker: Hashable) -> None:
        self._under_way[asker] -= 1
        if not self._under_way[asker]:
            del self._under_way[asker]


logger = logging.getLogger(__name__)

MAX_THREADS: Final = 64
_RESERVED: Final = 16
MAX_ADDRESSES: Final = 32
_TIMEOUT_S: Final = 20.0
_KEPT_S: Final = 5.0
_KEPT: Final = 2_048
_UNKNOWN: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look-up. `unknown`: the name does not exist. `failed`: no name server has answered."""

    outcome: Literal["found", "unknown", "failed"]
    addresses: tuple[str, ...] = ()


class Lookups:
    """Look names up. Concurrent callers share the look-up of a name, and its result is cached for some seconds.

    `resolve` returns the addresses of a name, or raises `socket.gaierror`. It runs in a thread.
    """

    def __init__(
        self, resolve: Callable[[str], list[str]] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._resolve = resolve or addresses_of
        self._kept: TTLCache[str, Found] = TTLCache(_KEPT, _KEPT_S, clock)
        self._running: dict[str, asyncio.Future[Found]] = {}
        self._wanted = Counter[str]()
        self._turns = LookupTurns(MAX_THREADS, _RESERVED, clock)

    async def find(self, name: str, asker: Hashable = None) -> Found:
        """Look a name up, and return the result. Its outcome is `failed` also if too many names wait, or if the look-up
        takes longer than `_TIMEOUT_S` seconds. `asker` stands for whoever wants the name: askers share the threads
        fairly (`LookupTurns`)."""
        kept: Found | None = self._kept.get(name)
        if kept is not None:
            return kept
        running = self._running.get(name)
        if running is not None:
            self._turns.join(name, asker)
        elif self._turns.ask(name, asker):
            running = self._running[name] = asyncio.get_running_loop().create_future()
        else:
            return Found("failed")
        self._start()
        self._wanted[name] += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await asyncio.shield(running)
        except TimeoutError:
            return Found("failed")
        finally:
            self._leave(name)

    def _leave(self, name: str) -> None:
        """Record that one caller no longer waits for a name. If no caller is left, remove the name from its queue."""
        self._wanted[name] -= 1
        if not self._wanted[name]:
            del self._wanted[name]
            if self._turns.give_up(name):
                del self._running[name]

    def _start(self) -> None:
        while (name := self._turns.next()) is not None:
            self._look_up(name)

    def _look_up(self, name: str) -> None:
        loop = asyncio.get_running_loop()

        def finished(found: Found) -> None:  # not before the thread has ended, however long that takes
            self._turns.done(name)
            if found.outcome != "failed":
                self._kept[name] = found
            running = self._running.pop(name)
            if not running.done():
                running.set_result(found)
            self._start()

        def run() -> None:
            try:
                found = Found("found", tuple(dict.fromkeys(self._resolve(name)))[:MAX_ADDRESSES])
            except socket.gaierror as error:
                found = Found("unknown" if error.errno in _UNKNOWN else "failed")
            except Exception:
                logger.exception("a name could not be looked up")
                found = Found("failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finished, found)

        # A daemon: a name server that does not answer must not hold up the end of the gateway.
        try:
            threading.Thread(target=run, name="look-up", daemon=True).start()
        except RuntimeError:  # no more threads
            loop.call_soon(finished, Found("failed"))

    def close(self) -> None:
        """Cancel the callers that wait for a look-up."""
        for running in self._running.values():
            running.cancel()


def addresses_of(name: str) -> list[str]:
    """Return the addresses of a name, the preferred ones first. Blocks. Raises `socket.gaierror`.

    Leave out IPv6 addresses without a route if there are others. A sandboxed server cannot test the routes itself,
    because it has no datagram sockets.
    """
    # Questions of DNS are about whole names: nothing is appended to them.
    whole = f"{name}." if "." in name else name
    found = [str(info[4][0]) for info in socket.getaddrinfo(whole, None, type=socket.SOCK_STREAM)]
    usable = [address for address in found if ":" not in address or _has_route(address)]
    return usable or found


def _has_route(address: str) -> bool:
    if ipaddress.ip_address(address).is_loopback:
        return True
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError:
        return False
    return True
