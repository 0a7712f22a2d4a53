"""Answer system calls of a walled process that its seccomp filter alone cannot decide: the gate.

Runs as a thread of the process's own reaper. So a server that floods its gate slows down no other gate, and the main
thread of the reaper can still end the server. Answers come from `network_calls.py` (connections),
`file_calls_beyond_landlock.py` (attributes of files, inotify) and `ProcessCalls` (other processes).

The *channel* leads to the gateway: a Unix socket of packets (SOCK_SEQPACKET), each a JSON object. The gate sends
`{"resolve": true}` with the descriptor of a stream or of a socket of packets on which a program asks a resolver,
`{"refused": [{"kind", "what", "why", "count"}]}`, and `{"touched": [[kind, what]]}` if the walls watch everything. The
gateway sends `{"reachable": [[address, ports or null, seconds]]}`.
"""

import _thread
import errno
import json
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from transports.upstream.process_tree import below, is_below, parent
from transports.upstream.walls import landlock, resource_limits
from transports.upstream.walls.file_calls_beyond_landlock import FileCalls, InotifyCalls
from transports.upstream.walls.file_watch import FileWatch, watches
from transports.upstream.walls.gate_reports import RefusalQueue, Refused, Touched
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener
from transports.upstream.walls.network_calls import NetworkCalls
from transports.upstream.walls.network_rules import ReachRules
from transports.upstream.walls.pending_connections import PendingConnections
from transports.upstream.walls.raw_system_calls import numbers
from transports.upstream.walls.seccomp import OTHERS, SIGNALS
from transports.upstream.walls.socket_addresses import is_local
from transports.upstream.walls.wall_specification import Reach, Walls

_ANNOUNCED: Final = ("bind", "connect", "listen", "socket")
"""The system calls that the filter announces if the walls have a `Reach`. socket(2) is announced for Internet
datagrams; for TCP and netlink only if the process has left the machine's network."""

_MAX_PACKET_BYTES: Final = 65_536
_MAX_PACKETS: Final = 64
_REFUSALS_IN_PACKET: Final = 16
"""The most refusals in one packet, so that it never exceeds the limit of a packet."""
_LAST_S: Final = 0.5


class Gate:
    """Answer system calls of one server that its filter cannot decide. `fd` is the filter's notification descriptor,
    and `channel` leads to the gateway; the gate owns both. `last` is called at the end. It returns a refusal (kind,
    what, why) that is known only then, or None."""

    def __init__(
        self,
        fd: int,
        walls: Walls,
        channel: socket.socket,
        last: Callable[[], tuple[str, str, str] | None] | None = None,
    ) -> None:
        self._last = last
        reach = walls.reach or Reach()
        self._listener = Listener(fd)
        self._channel = channel
        channel.setblocking(False)
        self._rules = ReachRules(reach, is_local=is_local, clock=time.monotonic)
        self._poller = select.poll()
        self._poller.register(fd, select.POLLIN)
        self._poller.register(channel, select.POLLIN)
        self._refusal_added = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # set by the main thread
        self._poller.register(self._refusal_added, select.POLLIN)
        self._is_heard = True  # the gateway has not closed its end of the channel
        self._refusals = RefusalQueue()
        self._connections = PendingConnections(self._listener, self._poller)
        self._touched = Touched()
        touched = self._touched.add if walls.watch == "everything" else None
        network = NetworkCalls(
            reach,
            listener=self._listener,
            connections=self._connections,
            rules=self._rules,
            refused=self._refusals.add,
            resolve=self._send_client,
            touched=touched,
            kernel_binds=landlock.abi() >= 4,
        )
        inotify = InotifyCalls(self._listener, self._refusals.add)
        files = FileCalls(walls.grants, self._listener, self._refusals.add, inotify)
        watch = FileWatch(walls.grants, self._listener, self._refusals.add, touched)
        processes = ProcessCalls(self._listener, self._refusals.add)
        self._deciders: dict[int, Callable[[InterceptedCall], None]] = {
            **dict.fromkeys(files.numbers, files.decide),
            **dict.fromkeys(watch.numbers if watches(walls, landlock.abi()) else (), watch.decide),
            **dict.fromkeys(processes.numbers, processes.decide),
            **dict.fromkeys(inotify.numbers, inotify.decide),
            **{numbers()[name]: network.decide for name in _ANNOUNCED},
        }
        self._ended = _thread.allocate_lock()
        self.failed = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that becomes readable once the gate has failed and answers no more. The server must then be
        ended."""

    def start(self) -> None:
        """Start the gate's thread, which serves until no process with the filter exists."""
        self._ended.acquire()
        _thread.start_new_thread(self._run, ())

    def finish(self, timeout_s: float) -> None:
        """Wait until the last reports have been sent. Called once every process with the filter has ended."""
        self._ended.acquire(timeout=timeout_s)

    def refuse(self, kind: str, what: str, why: str) -> None:
        """Report to the gateway what the reaper itself has refused: the kind, the thing that was refused, and why.
        Called in the reaper's main thread."""
        self._refusals.add(kind, what, why)
        os.eventfd_write(self._refusal_added, 1)

    def _run(self) -> None:
        try:
            resource_limits.drop_capabilities()  # of this thread: what the process may not do is not done for it either
            while self._turn():
                pass
        except BaseException:
            self._refusals.add("other", "gate", "it failed, and the server was ended")
            self._hold()
            raise
        finally:
            # Calls that wait, and later ones, now fail with ENOSYS: without a gate nothing is reached.
            self._connections.close()
            self._listener.close()
            if self._last is not None and (refused := self._last()) is not None:
                self._refusals.add(*refused)
            self._send_refusals(everything=True)
            self._send_touched(everything=True)
            self._channel.close()
            self._ended.release()

    def _hold(self) -> None:
        """Tell the reaper to end the server, and wait until it has ended. Keep the notification descriptor open
        meanwhile: without it, a process could install a filter with a descriptor of its own, and let its calls pass."""
        os.eventfd_write(self.failed, 1)
        ended = select.poll()
        ended.register(self._listener.fd, 0)
        ended.poll()

    def _turn(self) -> bool:
        now = time.monotonic()
        times = (self._connections.sweep(), self._refusals.due_in(now), self._touched.due_in(now))
        ready = dict(self._poller.poll(min((1_000 * each + 1 for each in times if each is not None), default=None)))
        announced = ready.pop(self._listener.fd, 0)
        if ready.pop(self._refusal_added, 0):
            os.eventfd_read(self._refusal_added)
        self._learn()  # before the calls: an address is announced here before the program learns it
        for fd in ready:
            self._connections.ready(fd)
        if announced & select.POLLIN:
            made = self._listener.receive()
            if made is not None:
                self._deciders[made.number](made)
        elif announced:  # every process with the filter has ended
            return False
        self._send_refusals(everything=False)
        self._send_touched(everything=False)
        return True

    def _learn(self) -> None:
        """Read from the channel which addresses the gateway has made reachable."""
        for _ in range(_MAX_PACKETS if self._is_heard else 0):
            try:
                packet = self._channel.recv(_MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._is_heard = False
                self._poller.unregister(self._channel)
                return
            for address, ports, seconds in json.loads(packet)["reachable"]:
                self._rules.learn(address, ports, seconds)

    def _send_client(self, client: socket.socket) -> int:
        """Send the gateway the socket of a program that asks a resolver. Return an errno, or 0."""
        try:
            with resource_limits.raised_files():
                socket.send_fds(self._channel, [b'{"resolve": true}'], [client.fileno()])
        except BlockingIOError:  # the gateway has enough of them
            return errno.ECONNREFUSED
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _send_refusals(self, *, everything: bool) -> None:
        refused = self._refusals.take(time.monotonic(), everything=everything)
        for start in range(0, len(refused), _REFUSALS_IN_PACKET):
            try:
                self._channel.send(json.dumps({"refused": refused[start : start + _REFUSALS_IN_PACKET]}).encode())
            except BlockingIOError:
                for each in refused[start:]:
                    self._refusals.add(each["kind"], each["what"], each["why"], each["count"])
                return
            except OSError:
                return  # the gateway is gone

    def _send_touched(self, *, everything: bool) -> None:
        while touched := self._touched.peek(time.monotonic(), everything=everything):
            if everything:
                self._channel.settimeout(_LAST_S)
            try:
                self._channel.send(json.dumps({"touched": touched}).encode())
            except BlockingIOError:  # the gateway has enough for now
                return
            except OSError:  # it is gone
                self._touched.sent(len(touched))
                return
            self._touched.sent(len(touched))


class ProcessCalls:
    """Decide on system calls by which a sandboxed process changes or signals other processes. These calls have numbers
    as arguments only, so the kernel executes them itself once they are allowed. `numbers` are the system calls that are
    decided here."""

    def __init__(self, listener: Listener, refused: Refused) -> None:
        self._listener = listener
        self._refused = refused
        table = numbers()
        self._named = {
            table[name]: (name, argument) for name, argument in {**OTHERS, **SIGNALS}.items() if name in table
        }
        self.numbers = self._named.keys()

    def decide(self, made: InterceptedCall) -> None:
        """Let the kernel execute a system call, or refuse it."""
        error = self._name(made)
        if error:
            self._listener.answer(made, error)
        else:
            self._listener.proceed(made)

    def _name(self, made: InterceptedCall) -> int:
        name, argument = self._named[made.number]
        pid = made.integer(argument)
        if pid > 0 and parent(pid) is None:
            return errno.ESRCH
        if is_below(pid, os.getpid()) if pid > 0 else _is_group_below(-pid):
            return 0
        self._refused("process", name, "a process that the server did not start")
        return errno.EPERM


def _is_group_below(group: int) -> bool:
    """Return True if a descendant of this process is in the group. Then all processes in the group are descendants:
    groups do not cross process sessions."""
    for pid in below([os.getpid()])[1:] if group > 1 else ():
        try:
            if os.getpgid(pid) == group:
                return True
        except OSError:  # it has just ended
            continue
    return False
