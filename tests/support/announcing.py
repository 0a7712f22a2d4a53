"""A reaper's part in miniature: `announcing.py CHANNEL REACH UID COMMAND...` a command behind a gate, as that user.

The filter is the smallest with which a gate can be tested without the other walls: connect(2), listen(2)
and socket(2) for datagrams are announced. Exits as the command does.
"""

import ctypes
import json
import os
import socket
import struct
import sys
from typing import Any

from transports.upstream.walls import limits
from transports.upstream.walls.gate import Gate
from transports.upstream.walls.spec import Reach, Walls
from transports.upstream.walls.system_calls import call, numbers

LOAD, AND, EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NOTIFY, ALLOW = 0x7FC0_0000, 0x7FFF_0000
SET_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 8, 32
DUMPABLE, NO_NEW_PRIVS = 4, 38

libc = ctypes.CDLL(None)


def announce() -> int:
    """Install the filter in this process. The listener's descriptor."""
    calls = numbers()
    code = [
        (LOAD, 0, 0, 0),
        (EQUAL, 8, 0, calls["connect"]),
        (EQUAL, 7, 0, calls["listen"]),
        (EQUAL, 0, 7, calls["socket"]),
        (LOAD, 0, 0, 24),
        (AND, 0, 0, 0xF),
        (EQUAL, 0, 4, socket.SOCK_DGRAM),
        (LOAD, 0, 0, 16),
        (EQUAL, 1, 0, socket.AF_INET),
        (EQUAL, 0, 1, socket.AF_INET6),
        (RETURN, 0, 0, NOTIFY),
        (RETURN, 0, 0, ALLOW),
    ]
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    return call("seccomp", SET_FILTER, NEW_LISTENER | WAIT_KILLABLE, program)


def main(channel: int, reach: str, uid: int, command: list[str]) -> int:
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        libc.prctl(DUMPABLE, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        listener = announce()
        limits.drop_capabilities()  # the gate has none either, and looks into no process that has more
        socket.send_fds(theirs, [b"l"], [listener])
        os.closerange(3, 1_024)
        os.execvp(command[0], command)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(reach).items()
    }
    gate = Gate(fds[0], Walls(profile="", grants=(), reach=Reach(**given)), socket.socket(fileno=channel))
    gate.start()
    code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    gate.finish(5)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
