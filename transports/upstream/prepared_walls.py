"""Prepare walls (sandbox restrictions) while the fork server is idle: the part that all sessions of a server have in
common.

This common part is a *prototype*. The gateway sends it to the fork server once. Adding its rules to Landlock takes most
of the time in which walls are built. So the fork server keeps Landlock rulesets ready, which do not restrict any
process yet. Rules cannot be removed from a ruleset. So each ruleset is for one process only, which adds the rules of
its own session. A ruleset refers to the files that existed when it was made, so it is used for some seconds at most.

Requests to the fork server begin with `REQUEST`: the kind (`fork_server.py`) and the number of a prototype, 0 for none.
A request of the kind `ANNOUNCES` has the walls for a new number, as JSON in a file in memory. A number always means the
same walls. A request with a number that the fork server no longer knows fails."""

import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from transports.upstream.walls.build_walls import ruleset_for
from transports.upstream.walls.raw_system_calls import closing_fd
from transports.upstream.walls.wall_specification import Grant, Walls

REQUEST: Final = struct.Struct("=cI")
ANNOUNCES: Final = b"p"

MOST: Final = 64
"""Maximum number of prototypes (common parts of walls) that are kept: the most recently used ones."""
READY: Final = 2
"""The number of rulesets that are kept ready for each prototype."""
IDLE_S: Final = 0.05
"""Seconds without a start after which rulesets are prepared. While servers are being started, that would delay them."""
FRESH_S: Final = 10.0
"""The greatest age of a ruleset in seconds. The gateway caches paths that it has resolved for the same time."""
_RENEWED_S: Final = 8.0
KEPT_S: Final = 300.0
"""Seconds after a prototype's last use, after which no more rulesets are prepared for it."""
NUMBERS: Final = range(300, 300 + MOST * READY)
"""The descriptor numbers of the rulesets. A forked process closes the whole range at once: to look at each would copy
pages of memory."""


class Prepared(NamedTuple):
    """The walls for one start of a server, as far as they are prepared."""

    walls: Walls
    """The prototype; without a `ruleset`, this may also be the complete walls."""
    ruleset: int | None = None
    """The descriptor of a Landlock ruleset with the rules of `walls`, owned by whoever holds this object; None: it has
    to be made."""
    own: tuple[Grant, ...] = ()
    """The grants that have to be added to the ruleset."""
    folders: tuple[Grant, ...] = ()
    """More of them: those for the server's own /tmp and /dev/shm."""


def close_all_but(ruleset: int | None) -> None:
    """Close all prepared rulesets except `ruleset`, in a forked process: each ruleset is for one start."""
    if ruleset is None:
        os.closerange(NUMBERS.start, NUMBERS.stop)
    else:
        os.closerange(NUMBERS.start, ruleset)
        os.closerange(ruleset + 1, NUMBERS.stop)


class Announced:
    """The prototypes (common walls) that the gateway has sent to one fork server."""

    def __init__(self) -> None:
        self._numbers: dict[Walls, int] = {}  # the one used last at the end
        self._last = 0

    def number(self, requests: socket.socket, prototype: Walls | None) -> int:
        """Send a prototype to the fork server, unless the fork server has it already. Return the number by which a
        request on this socket names the prototype; 0 for None.

        Raises:
            OSError: the socket cannot send, or descriptors are exhausted.
        """
        if prototype is None:
            return 0
        number = self._numbers.pop(prototype, 0) or self._announce(requests, prototype)
        self._numbers[prototype] = number
        if len(self._numbers) > MOST:
            del self._numbers[next(iter(self._numbers))]
        return number

    def forget(self, prototype: Walls | None) -> None:
        """Forget a prototype, so that it is sent again with the next start."""
        if prototype is not None:
            self._numbers.pop(prototype, None)

    def _announce(self, requests: socket.socket, prototype: Walls) -> int:
        with closing_fd(os.memfd_create("walls")) as file:
            os.write(file, json.dumps(prototype.to_json()).encode())
            socket.send_fds(requests, [REQUEST.pack(ANNOUNCES, self._last + 1)], [file])
        self._last += 1
        return self._last


class _Prototype:
    """A prototype (common walls) with its prepared Landlock rulesets."""

    __slots__ = ("due", "rulesets", "used_at", "walls")

    def __init__(self, walls: Walls) -> None:
        self.walls = walls
        self.rulesets: list[tuple[float, int]] = []
        """For each ruleset, the oldest first: when it was made, and its descriptor."""
        self.used_at = 0.0
        """The time of the last start with this prototype that needed a ruleset; 0.0 before the first."""
        self.due: float | None = None
        """When `Prototypes.renew` has to handle this prototype; None: not before the next start."""

    def drop(self, made_before: float) -> None:
        """Close the rulesets that were made before the time `made_before`."""
        while self.rulesets and self.rulesets[0][0] < made_before:
            os.close(self.rulesets.pop(0)[1])


class Prototypes:
    """The prototypes (common walls) that this fork server knows. `prepare` makes a Landlock ruleset; it returns None
    without Landlock."""

    def __init__(
        self, prepare: Callable[[Walls], int | None] = ruleset_for, clock: Callable[[], float] = monotonic
    ) -> None:
        self._prepare = prepare
        self._clock = clock
        self._known: dict[int, _Prototype] = {}  # the one used last at the end

    def learn(self, number: int, file: int) -> None:
        """Read the walls for a new number from a file in memory."""
        walls = Walls.from_json(json.loads(os.pread(file, os.fstat(file).st_size, 0)))
        for other in [other for other, each in self._known.items() if each.walls == walls]:
            self._known.pop(other).drop(float("inf"))  # a start with the old number has failed
        self._known[number] = _Prototype(walls)
        if len(self._known) > MOST:
            self._known.pop(next(iter(self._known))).drop(float("inf"))

    def take(self, number: int, *, ruleset: bool) -> Prepared | None:
        """Return the prototype for a start; with `ruleset`, also a prepared ruleset if there is one. Return None if the
        number is unknown."""
        prototype = self._known.pop(number, None)
        if prototype is None:
            return None
        self._known[number] = prototype
        if not ruleset:
            return Prepared(prototype.walls)
        prototype.used_at = self._clock()
        prototype.due = prototype.used_at + IDLE_S
        prototype.drop(prototype.used_at - FRESH_S)
        ready = prototype.rulesets
        return Prepared(prototype.walls, ready.pop(0)[1] if ready else None)

    def due_ms(self) -> int | None:
        """Return the milliseconds after which an idle fork server has to call `renew`; None: there is nothing to
        prepare."""
        due = min((each.due for each in self._known.values() if each.due is not None), default=None)
        return None if due is None else max(0, int(1_000 * (due - self._clock())) + 1)

    def renew(self) -> None:
        """Make one missing ruleset, for one prototype that is due. A start that finds no prepared ruleset makes its
        own."""
        now = self._clock()
        for each in self._known.values():
            if each.due is None or each.due > now:
                continue
            is_kept = now - each.used_at < KEPT_S
            each.drop(now - _RENEWED_S if is_kept else float("inf"))
            each.due = None
            if is_kept:
                self._add(each)
            return

    def _add(self, prototype: _Prototype) -> None:
        """Make one ruleset for a prototype. Making more at once would delay a start that is requested meanwhile."""
        try:
            made = self._prepare(prototype.walls)
            if made is None:
                return
            try:  # `closing_fd` would copy more memory
                placed = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, NUMBERS.start)
            finally:
                os.close(made)
        except OSError:  # a start reports the error
            prototype.drop(float("inf"))
            return
        now = self._clock()
        prototype.rulesets.append((now, placed))
        prototype.due = now if len(prototype.rulesets) < READY else prototype.rulesets[0][0] + _RENEWED_S

    def close(self) -> None:
        """Close all prepared rulesets, and prepare no more."""
        for each in self._known.values():
            each.drop(float("inf"))
            each.due = None
