"""A reaper's part in miniature: `announcing.py CHANNEL REACH UID COMMAND...` a command behind a gate, as that user.

The filter is the smallest with which a gate can be tested without the other walls: connect(2), listen(2)
and socket(2) for datagrams are announced. Exits as the command does.
"""

import json
import os
import socket
import sys
from typing import Any

from transports.upstream.walls import resource_limits, seccomp
from transports.upstream.walls.raw_system_calls import AUDIT_ARCH, LAST, call, machine, numbers
from transports.upstream.walls.system_call_gate import Gate
from transports.upstream.walls.wall_specification import Reach, Walls

DUMPABLE = 4


def announce() -> int:
    """Install the filter in this process. The listener's descriptor."""
    calls, notify = numbers(), seccomp.NOTIFY
    of_datagrams = seccomp.Match(1, {socket.SOCK_DGRAM: notify}, seccomp.ALLOW, mask=0xF)
    made = seccomp.Match(0, dict.fromkeys((socket.AF_INET, socket.AF_INET6), of_datagrams), seccomp.ALLOW)
    told: dict[int, seccomp.Decision] = {calls["connect"]: notify, calls["listen"]: notify, calls["socket"]: made}
    resource_limits.forbid_new_privileges()
    listener = seccomp.install(
        seccomp.assemble(AUDIT_ARCH[machine()], told, last=LAST, beyond=seccomp.ALLOW), listener=True
    )
    assert listener is not None
    return listener


def main(channel: int, reach: str, uid: int, command: list[str]) -> int:
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        call("prctl", DUMPABLE, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        listener = announce()
        resource_limits.drop_capabilities()  # the gate has none either, and looks into no process that has more
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
