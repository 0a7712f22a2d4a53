"""Estimate the memory of server processes, and refuse to start more of them before memory runs out.

The memory of a few processes is read at a time. A process counts at least as much as the server's other processes,
until it was read once after it has grown to its usual size. Otherwise, too many processes could start at once, while
all are still small."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import mean
from time import monotonic
from typing import Final, NamedTuple

from gateway.errors import OutOfMemory
from gateway.observability.process_memory import MachineMemory, machine_memory, resident_bytes, tree_bytes
from transports.inbound.unauthenticated_limits import Limited, Refusals

logger = logging.getLogger(__name__)

ASSUMED_BYTES: Final = 64 << 20
"""Bytes that are assumed for a process if no process of its server was read yet: the size of a Node.js or Python
process with an MCP SDK."""

GROWN_S: Final = 3.0
"""The age in seconds from which a process counts as fully grown: by then, most servers have loaded their code and have
answered."""

READ_AT_ONCE: Final = 32
"""Maximum number of server processes whose memory one sample reads: those whose last reading is oldest."""

_REST: Final = 20
"""The pause after a sample is this many times as long as the sample took, so that sampling uses at most 5 % of a
processor."""

_SHARE: Final = 0.8
_MOST_RESERVED: Final = 512 << 20
_SHORT: Final = 0.1
_MOST_SPARE: Final = 1 / 3
"""The largest share of the servers' memory that must stay free before memory counts as short. A shortage ends when
twice that is free, so that it can end even with very large servers."""

_MOST_BODIES: Final = 512 << 20

_MIB: Final = 1 << 20


class ServerProcess:
    """The memory of one server process that runs or is about to start. `session` is its session's id; empty if it
    belongs to none or many. `top` is the pid of its reaper, the parent of the whole process tree; 0 if unknown."""

    __slots__ = ("_clock", "_ledger", "began_at", "pid", "read_at", "read_bytes", "server", "session", "top")

    def __init__(self, ledger: "ServerMemory", server: str, session: str, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self.server = server
        self.session = session
        self._clock = clock
        self.began_at = math.inf  # until it runs: before, its package may be fetched
        self.pid = self.top = 0
        self.read_at = 0.0
        self.read_bytes: int | None = None

    def started(self, pid: int, top: int) -> None:
        """Record the pid of the process that has started, and the pid of its reaper (`top`)."""
        self.pid, self.top, self.began_at = pid, top, self._clock()

    def ended(self) -> None:
        """Stop counting the process: it has ended."""
        self._ledger.forget(self)

    @property
    def is_grown(self) -> bool:
        """Return True if the memory of the process was read after the process had grown to its usual size."""
        return self.read_bytes is not None and self.read_at - self.began_at >= GROWN_S


class MemoryState(NamedTuple):
    """Memory in bytes: `used` by the gateway and its server processes, and `own` by the gateway alone. `most` is the
    limit of `used`; 0 if there is none."""

    used: int
    most: int
    own: int

    @property
    def left(self) -> int:
        """Return the bytes that may still be used; 0 if `used` exceeds `most`."""
        return max(0, self.most - self.used)


class ServerMemory:
    """The memory of this gateway and of all its server processes.

    `limit_mb` is the setting `limits.total_memory_mb`, which `workers` gateway processes share. `read` returns the
    memory of the process tree below each of the given pids. `machine` returns the memory of the machine, and `own` that
    of the gateway itself."""

    def __init__(
        self,
        limit_mb: int | None,
        refusals: Refusals,
        *,
        workers: int = 1,
        read: Callable[[Collection[int]], Mapping[int, int]] = tree_bytes,
        machine: Callable[[], MachineMemory | None] = machine_memory,
        own: Callable[[], int | None] = resident_bytes,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.replace(limit_mb)
        self._refusals = refusals
        self._workers = workers
        self._read, self._machine, self._own, self._clock = read, machine, own, clock
        self._processes: dict[str, tuple[ServerProcess, ...]] = {}  # by session
        self._of_server: Counter[str] = Counter()  # how many processes
        self._typical: dict[str, int] = {}  # by server, the mean of its grown processes, while one of it is counted
        self._counted = self._growing = 0  # what all processes count, and how much of it was not read
        self._next_at = 0.0
        self.is_short = False
        self._refused_bytes = 0  # what the largest process needs that was refused since it is short

    def replace(self, limit_mb: int | None) -> None:
        """Refuse new processes by this limit from now on. Running processes stay."""
        self._limit_mb = limit_mb

    def __iter__(self) -> Iterator[ServerProcess]:
        return iter([process for some in self._processes.values() for process in some])

    # -- what there is

    def bytes_of(self, process: ServerProcess) -> int:
        """Return the bytes that are counted for a process: those that were last read. As long as it was not read after
        it had grown, it counts at least as much as a new process of its server (`expected`)."""
        if process.is_grown:
            return process.read_bytes or 0
        return max(process.read_bytes or 0, self.expected(process.server))

    def expected(self, server: str) -> int:
        """Return the bytes that a new process of a server will use: the mean of the server's other processes, else
        `ASSUMED_BYTES`."""
        return self._typical.get(server, ASSUMED_BYTES)

    def of_session(self, session_id: str, pid: int | None = None) -> int:
        """Return the memory of a session's processes in bytes; with `pid`, the memory of this process only."""
        own = self._processes.get(session_id, ())
        return sum(self.bytes_of(process) for process in own if pid in (None, process.pid))

    def by_server(self) -> Counter[str]:
        """Return the memory of all processes of each server, in bytes."""
        found: Counter[str] = Counter()
        for process in self:
            found[process.server] += self.bytes_of(process)
        return found

    @property
    def bodies(self) -> int:
        """Return the maximum bytes for the bodies of all unanswered requests together: an eighth of the memory limit of
        this process and its servers (of the machine, if there is no limit), at most 512 MiB. Bodies take about twice
        their size."""
        machine = self._machine()
        share = self._share(machine) or self._share_of(machine)
        return _MOST_BODIES if not share else min(share // 8, _MOST_BODIES)

    def _share(self, machine: MachineMemory | None) -> int:
        """Return the memory limit of this process and its servers in bytes; 0 if there is none."""
        if self._limit_mb is not None:
            return self._limit_mb * _MIB // self._workers
        return self._share_of(machine)

    def _share_of(self, machine: MachineMemory | None) -> int:
        return 0 if machine is None else round(machine.total * _SHARE) // self._workers

    def state(self) -> MemoryState:
        """Return the memory that the gateway and its servers use now, and their limit."""
        own, machine = self._own() or 0, self._machine()
        used = own + self._counted
        if machine is not None:  # a server can make its processes seem larger than they are, not the machine fuller
            used = min(used, max(own, machine.total - machine.available) + self._growing)
        share = self._share(machine)
        if self._limit_mb is not None or machine is None:
            return MemoryState(used, share, own)
        reserved = min(machine.total // 20, _MOST_RESERVED)
        available = used + machine.available - reserved - self._growing
        return MemoryState(used, max(1, min(share, available)), own)

    # -- processes come and go

    def begin(self, server: str, session_id: str) -> ServerProcess:
        """Count a process that is about to start, and return the object that stands for it. The caller reports the
        start (`started`) and the end (`ended`) of the process to that object.

        Raises:
            Refused: 503, too little memory is free for the process.
        """
        state, needs = self.state(), self.expected(server)
        self._judge(state)
        if state.most and needs > state.left:
            self._refuse(server, state, needs)
        process = ServerProcess(self, server, session_id, self._clock)
        self._processes[session_id] = (*self._processes.get(session_id, ()), process)
        self._of_server[server] += 1
        self._count(process, 1)
        return process

    def _count(self, process: ServerProcess, sign: int) -> None:
        size = self.bytes_of(process)
        self._counted += sign * size
        if not process.is_grown:
            self._growing += sign * (size - (process.read_bytes or 0))

    def _refuse(self, server: str, state: MemoryState, needs: int) -> None:
        self._refusals[Limited.MEMORY] += 1
        is_first, self._refused_bytes = not self._refused_bytes, max(needs, self._refused_bytes)
        self._judge(state)
        if is_first:
            logger.warning(
                "no process of server %s is started: %s; this line comes once until memory is free again",
                *(server, self._as_text(state)),
                extra={"server": server},
            )
        raise OutOfMemory(server)

    def forget(self, process: ServerProcess) -> None:
        """Stop counting a process. Idempotent."""
        own = self._processes.get(process.session, ())
        if process not in own:
            return
        self._count(process, -1)
        if others := tuple(each for each in own if each is not process):
            self._processes[process.session] = others
        else:
            del self._processes[process.session]
        self._of_server[process.server] -= 1
        if not self._of_server[process.server]:
            # Else one process that grew beyond what is left would shut the server off: no other one could be read.
            del self._of_server[process.server]
            self._typical.pop(process.server, None)

    # -- reading

    async def sample(self) -> None:
        """Read the memory of the processes with the oldest readings, in a thread. Do nothing if the last sample was too
        recent (`_REST`)."""
        began = self._clock()
        if began < self._next_at:
            return
        young = {each for each in self if began - each.began_at < GROWN_S}
        in_turn = sorted(
            (each for each in self if each.top), key=lambda each: (each in young, max(each.read_at, each.began_at))
        )
        # Half are for what has grown unread, or a new server counts as assumed for a whole turn. Only half, or what
        # grows later is not read again while others start faster than they are read.
        first = [each for each in in_turn if not each.is_grown and each not in young][: READ_AT_ONCE // 2]
        due = [*dict.fromkeys(first + in_turn)][:READ_AT_ONCE]
        if due:
            found = await asyncio.to_thread(self._read, [process.top for process in due])
            for process in due:
                process.read_at, process.read_bytes = began, found.get(process.top)
            for server in {process.server for process in due}:
                if grown := [each.read_bytes or 0 for each in self if each.server == server and each.is_grown]:
                    self._typical[server] = round(mean(grown))
            self._counted = self._growing = 0
            for each in self:
                self._count(each, 1)
            self._next_at = began + (self._clock() - began) * _REST
        self._judge(self.state())

    def _judge(self, state: MemoryState) -> None:
        """Set `is_short` by the present memory `state`. Memory is short if less than a tenth is free, if two processes
        of the largest running server have no room, or if a process was refused. Log each change of `is_short`."""
        largest = max(self._typical.values(), default=0)
        spare = (state.most - state.own) * _MOST_SPARE
        enough = max(state.most * _SHORT, min(2 * largest, spare))
        if state.most and not self.is_short and (state.left < enough or self._refused_bytes):
            self.is_short = True
            logger.warning("memory is short: %s; processes that nobody uses are ended sooner", self._as_text(state))
        elif self.is_short and (
            not state.most or state.left > max(enough, min(max(2 * enough, self._refused_bytes), 2 * spare))
        ):
            self.is_short, self._refused_bytes = False, 0
            logger.info("memory is no longer short: %s", self._as_text(state))

    def _as_text(self, state: MemoryState) -> str:
        which = "limits.total_memory_mb" if self._limit_mb is not None else "what this machine or its cgroup allows"
        return (
            f"the gateway and its {self._of_server.total()} server processes have {state.used // _MIB} of "
            f"{state.most // _MIB} MiB ({which}; docs/memory.md)"
        )
