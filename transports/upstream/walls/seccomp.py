"""Decide which system calls a server may make: assemble a seccomp filter, and install it in the process.

All calls are allowed except those that servers never need, and those that would bypass the other walls. A filter sees
only the numbers in a call. If a decision needs more, the call goes to the gate, which the server's reaper runs
(seccomp's user notification).
"""

import ctypes
import errno
import struct
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

from transports.upstream.walls.raw_system_calls import AUDIT_ARCH, LAST, call, machine, numbers

_LOAD, _AND, _RETURN, _JUMP, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_LOW_HALF: Final = 0 if sys.byteorder == "little" else 4
_FAR: Final = 255  # a conditional jump goes no farther
_MOST: Final = 4_096  # instructions that the kernel takes

Code: TypeAlias = list[tuple[int, int, int, int]]
"""Instructions of a filter: (operation, jump if true, jump if false, constant). Jumps are relative, so that code can be
joined."""


@dataclass(frozen=True, slots=True)
class Return:
    """A final decision of a filter: the kernel's action for the system call."""

    action: int


@dataclass(frozen=True, slots=True)
class Match:
    """A decision by the value of one argument of the system call.

    Only the low 32 bits are compared, so the argument must be one that the kernel itself reads as 32 bits.
    """

    argument: int
    """The number of the argument, from 0."""
    cases: Mapping[int, "Decision"]
    """The decision for each of some values."""
    otherwise: "Decision"
    """The decision for all other values."""
    mask: int = 0xFFFF_FFFF
    """The bits of the argument that are compared."""


Decision: TypeAlias = Return | Match

ALLOW: Final = Return(0x7FFF_0000)
NOTIFY: Final = Return(0x7FC0_0000)
KILL_PROCESS: Final = Return(0x8000_0000)


def refuse(errno: int) -> Return:
    """Return the decision that makes a system call fail with this error."""
    return Return(0x0005_0000 | errno)


def assemble(arch: int, decisions: Mapping[int, Decision], *, last: int, beyond: Decision) -> bytes:
    """Return a filter for one machine architecture: an array of `struct sock_filter`. A call that is not in the table
    is allowed up to the number `last`; `beyond` decides later numbers. A call of another architecture (32 bits) kills
    the process. Raises `ValueError` if the filter is too long for the kernel."""
    # Divide the call numbers into ranges with one decision each: the first number and the decision.
    edges = sorted({0, last + 1, *decisions, *(number + 1 for number in decisions)})
    decided = [(edge, decisions.get(edge, ALLOW if edge <= last else beyond)) for edge in edges]
    by_number = _search([decided[0], *(each for before, each in pairwise(decided) if each[1] != before[1])])
    code: Code = [(_LOAD, 0, 0, _ARCH), (_IF_EQUAL, 1, 0, arch), _return(KILL_PROCESS), (_LOAD, 0, 0, _NUMBER)]
    code += by_number
    if len(code) > _MOST:
        raise ValueError(f"a filter of {len(code)} instructions is too long")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _search(ranges: list[tuple[int, Decision]]) -> Code:
    """Return code that decides by the call number in the accumulator. `ranges` are sorted: each begins at a number, and
    has one decision. The code finds the range by binary search."""
    if len(ranges) == 1:
        return _decide(ranges[0][1])
    middle = len(ranges) // 2
    return _branch(_IF_AT_LEAST, ranges[middle][0], _search(ranges[middle:]), _search(ranges[:middle]))


def _decide(decision: Decision) -> Code:
    if isinstance(decision, Return):
        return [_return(decision)]
    code = _decide(decision.otherwise)
    for value, then in reversed(list(decision.cases.items())):
        code = _branch(_IF_EQUAL, value, _decide(then), code)
    load: Code = [(_LOAD, 0, 0, _ARGUMENTS + 8 * decision.argument + _LOW_HALF)]
    return [*load, *([(_AND, 0, 0, decision.mask)] if decision.mask != 0xFFFF_FFFF else ()), *code]


def _branch(test: int, constant: int, then: Iterable[tuple[int, int, int, int]], otherwise: Code) -> Code:
    """Return code that runs `then` if the accumulator passes `test` (a jump instruction) with `constant`, and
    `otherwise` if not. Both end with a return."""
    if len(otherwise) <= _FAR:
        return [(test, len(otherwise), 0, constant), *otherwise, *then]
    return [(test, 0, 1, constant), (_JUMP, 0, 0, len(otherwise)), *otherwise, *then]


def _return(decision: Return) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, decision.action)


_EPERM: Final = refuse(errno.EPERM)
_ENOSYS: Final = refuse(errno.ENOSYS)

_NEVER: Final = (
    # other processes' memory and descriptors
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "move_pages",
    "migrate_pages",
    # what is mounted where, and other views of the system
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "statmount", "listmount", "unshare", "setns", "open_by_handle_at",
    # the kernel and the machine
    "bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "iopl", "ioperm",
    "modify_ldt", "vhangup", "settimeofday", "clock_settime", "clock_adjtime", "sethostname", "setdomainname",
    "fanotify_init", "fanotify_mark",
    # keys: a session's keyring is that of the gateway
    "keyctl", "add_key", "request_key",
    # io_uring makes system calls that no filter sees
    "io_uring_setup", "io_uring_enter", "io_uring_register",
)  # fmt: skip

_SHARED_MEMORY: Final = (
    "shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl",
    "mq_open", "mq_unlink",
)  # fmt: skip
"""Calls for System V and POSIX objects without a path. All processes of a user share these objects, unless they have an
IPC namespace."""

CONNECTIONS: Final = ("bind", "connect", "listen")
"""System calls that the gate answers, because their effect depends on memory that the process may change, or on the
state of a socket. Of bind(2), the gate only reports what the kernel is about to refuse."""

ATTRIBUTES: Final = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "futimesat", "utimensat", "inotify_add_watch",
    "inotify_init", "inotify_init1",
)  # fmt: skip
"""System calls that the gate answers: with them, the owner of a file can change or watch it without opening it, and
Landlock does not restrict that."""

FILES: Final = (
    "open", "openat", "creat", "execve", "execveat", "truncate", "mkdir", "mkdirat", "mknod", "mknodat",
    "symlink", "symlinkat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link", "linkat",
)  # fmt: skip
"""System calls on which Landlock decides. The gate sees them only if `Walls.watch` asks for it (`file_watch.py`)."""

_OWNERS: Final = ("chown", "lchown", "fchown", "fchownat")
_EXTENDED: Final = ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr")
_LABELS: Final = ("getxattr", "lgetxattr", "listxattr", "llistxattr")
"""System calls that read attributes of files which the server may not open. With a descriptor of an open file, reading
is allowed."""
_NEW: Final = ("setxattrat", "getxattrat", "listxattrat", "removexattrat", "file_setattr")
"""Newer variants of restricted system calls. Servers do not need them, and programs that copy files expect file systems
without them."""

_SCARCE: Final = ("io_setup",)
"""System calls for asynchronous I/O. The kernel has 65,536 places for them on the whole machine, and no limit for a
process. Programs work without them, because some kernels lack them."""

OTHERS: Final[Mapping[str, int]] = {
    "sched_setaffinity": 0, "sched_setattr": 0, "sched_setparam": 0, "sched_setscheduler": 0, "prlimit64": 0,
    "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip
"""System calls that change another process of the user, each with the index of the argument that has the process's id.
The id 0 is the caller."""

SIGNALS: Final[Mapping[str, int]] = {"kill": 0, "tkill": 0, "tgkill": 0, "rt_sigqueueinfo": 0, "rt_tgsigqueueinfo": 0}
"""System calls that send a signal, each with the index of the argument that names the target. 0 is the caller, or its
group."""

_ONE_PROCESS: Final = {"setpriority": 0, "ioprio_set": 1}  # the first argument that means one process, no group or user

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _SEQPACKET, _TYPE = 1, 2, 5, 0xF
_TCP, _UDP, _NETLINK_ROUTE = 6, 17, 0
_FAST_OPEN: Final = 0x2000_0000  # a flag that makes a connection out of sending
_NEW_NAMESPACES: Final = 0x7E02_0000


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterKind:
    """The properties on which a filter depends. There are few combinations, so each filter is assembled once."""

    connections: bool = False
    """True if the gate answers the calls in `CONNECTIONS`. Sockets that can send without connect(2) are then not
    available."""
    sockets: bool = False
    """True if the gate makes the sockets for the Internet and for reading routes, because the process has another
    network."""
    attributes: bool = False
    """True if the gate answers the calls in `ATTRIBUTES`. Otherwise they are allowed."""
    others: bool = False
    """True if the gate decides on the calls in `OTHERS`. Otherwise they are refused, unless they name the caller
    itself."""
    apart: bool = False
    """True if the process has its own namespaces. It then shares memory with no other process, and cannot name
    another."""
    files: bool = False
    """True if the calls in `FILES` are announced to the gate, which only looks at them."""
    signals: bool = False
    """True if the gate decides on the calls in `SIGNALS`, because the kernel does not keep signals within the server
    (Landlock before ABI 6)."""
    truncation: bool = False
    """True if the gate decides on truncate(2), because the kernel allows it for all files (Landlock before ABI 3)."""

    @property
    def asks(self) -> bool:
        """Return True if a filter of this kind sends any system call to the gate."""
        asked = (self.connections, self.attributes, self.others, self.files, self.signals, self.truncation)
        return any(asked)


def decisions(kind: FilterKind) -> dict[str, Decision]:
    """Return the decisions of a filter of this kind, by the name of the system call. All calls without a decision are
    allowed."""
    found: dict[str, Decision] = dict.fromkeys(_NEVER, _EPERM)
    if not kind.apart:
        found |= dict.fromkeys(_SHARED_MEMORY, _EPERM)
    if kind.attributes:
        found |= dict.fromkeys(ATTRIBUTES, NOTIFY)
    if kind.truncation:
        while_reading = {0o1000: _EPERM}  # O_TRUNC with O_RDONLY
        found["truncate"] = NOTIFY
        found["open"] = Match(1, while_reading, ALLOW, mask=0o1003)
        found["openat"] = Match(2, while_reading, ALLOW, mask=0o1003)
    if kind.files:
        found |= dict.fromkeys(FILES, NOTIFY)
    found |= _of_modes(found, but=ATTRIBUTES if kind.attributes else ())
    found["openat2"] = _ENOSYS  # its flags and mode are in memory. Callers fall back to openat
    found |= dict.fromkeys(_OWNERS, _EPERM) | dict.fromkeys((*_EXTENDED, *_LABELS), refuse(errno.EOPNOTSUPP))
    found |= dict.fromkeys((*_NEW, *_SCARCE), _ENOSYS)
    found |= _of_others(kind) | _of_sockets(kind)
    found["clone"] = Match(0, {0: ALLOW}, _EPERM, mask=_NEW_NAMESPACES)
    found["clone3"] = _ENOSYS  # its flags are in memory. Every caller falls back to clone
    fcntl = (*_FCNTL_LEASE, *(_FCNTL_OWNER if kind.signals and not kind.apart else ()))
    found["fcntl"] = Match(1, dict.fromkeys(fcntl, _EPERM), ALLOW)
    found["personality"] = Match(0, {0: ALLOW, 0xFFFF_FFFF: ALLOW}, _EPERM)
    forgery = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: input for a terminal
    others = (*_IOCTL_FILE, *(_IOCTL_OWNER if kind.signals else ()))
    found["ioctl"] = Match(1, dict.fromkeys((*forgery, *others), _EPERM), ALLOW)
    return found


_IOCTL_FILE: Final = (
    0x4008_6602, 0x401C_5820, 0x800C_6613,  # FS_IOC_SETFLAGS, _FSSETXATTR, _SET_ENCRYPTION_POLICY
    0x4080_6685,  # FS_IOC_ENABLE_VERITY: nobody can write the file any more
    0x4008_7602, 0x4008_6604,  # FS_IOC_SETVERSION, and that of ext4
    # BTRFS_IOC_SUBVOL_CREATE, _SNAP_CREATE, _SNAP_DESTROY and their second versions: Landlock knows nothing of them
    0x5000_940E, 0x5000_9418, 0x5000_9401, 0x5000_9417, 0x5000_940F, 0x5000_943F,
)  # fmt: skip
"""Requests of ioctl(2) by which a file's owner changes it through a read-only descriptor."""
_IOCTL_OWNER: Final = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: who gets a socket's signals
_FCNTL_OWNER: Final = (8, 15)  # F_SETOWN, F_SETOWN_EX
_FCNTL_LEASE: Final = (1024, 1026)  # F_SETLEASE, F_NOTIFY: others would wait to open the file


_SET_ID: Final = 0o6000
_MODES: Final = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mkdir": 1, "mkdirat": 2, "mknod": 1,
    "mknodat": 2,
}  # fmt: skip
_OPENS: Final = {"open": (1, 2), "openat": (2, 3)}  # the argument of flags, and that of the mode if a file is made
_MAKES: Final = 0o100 | 0o2000_0000  # O_CREAT, and the bit of O_TMPFILE that O_DIRECTORY has not


def _of_modes(found: Mapping[str, Decision], but: Collection[str]) -> dict[str, Decision]:
    """Return a decision for each system call that sets the mode of a file, by name; calls in `but` are left out. The
    decision refuses setuid and setgid modes: a file with such a mode runs as the gateway's user or group, whoever
    starts it. For other modes, the call's decision in `found` applies; without one, they are allowed."""
    plain = {name: Match(mode, {0: found.get(name, ALLOW)}, _EPERM, mask=_SET_ID) for name, mode in _MODES.items()}
    opens = {
        name: Match(
            flags,
            {0: found.get(name, ALLOW)},
            Match(mode, {0: found.get(name, ALLOW)}, _EPERM, mask=_SET_ID),
            mask=_MAKES,
        )
        for name, (flags, mode) in _OPENS.items()
    }
    return {name: decision for name, decision in (plain | opens).items() if name not in but}


def _of_others(kind: FilterKind) -> dict[str, Decision]:
    """Return the decisions on the system calls in `OTHERS` and `SIGNALS`, which name another process by its id."""
    if kind.apart:
        return {}
    beyond = NOTIFY if kind.others else _EPERM
    found: dict[str, Decision] = {name: Match(argument, {0: ALLOW}, beyond) for name, argument in OTHERS.items()}
    for name, process in _ONE_PROCESS.items():
        found[name] = Match(0, {process: found[name]}, _EPERM)
    if kind.signals:
        found |= {name: Match(argument, {0: ALLOW}, NOTIFY) for name, argument in SIGNALS.items()}
        found["pidfd_send_signal"] = _ENOSYS  # its target is in the state of a descriptor. Callers fall back to kill
    return found


def _of_sockets(kind: FilterKind) -> dict[str, Decision]:
    if not kind.connections:
        families = Match(0, dict.fromkeys((_UNIX, _INET, _INET6, _NETLINK), ALLOW), _EPERM)
        return {"socket": families, "socketpair": Match(0, {_UNIX: ALLOW}, _EPERM)}
    unix = Match(1, dict.fromkeys((_STREAM, _SEQPACKET), ALLOW), _EPERM, mask=_TYPE)
    made = NOTIFY if kind.sockets else ALLOW
    tcp = Match(2, dict.fromkeys((0, _TCP), made), _EPERM)
    udp = Match(2, dict.fromkeys((0, _UDP), NOTIFY), _EPERM)  # the gate gives a socket that reaches a resolver only
    inet = Match(1, {_STREAM: tcp, _DATAGRAM: udp}, _EPERM, mask=_TYPE)
    routes = Match(2, {_NETLINK_ROUTE: made}, _EPERM)  # getifaddrs() reads them
    slow = refuse(errno.EOPNOTSUPP)  # as a kernel that has fast open switched off
    # IP_OPTIONS, and IPV6_2292RTHDR, IPV6_2292PKTOPTIONS and IPV6_RTHDR: a route by way of other hosts
    by_way_of = {0: Match(2, {4: _EPERM}, ALLOW), 41: Match(2, dict.fromkeys((5, 6, 57), _EPERM), ALLOW)}
    # TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE: connect(2) would only note where data is sent later
    later = {6: Match(2, dict.fromkeys((23, 30, 34), slow), ALLOW)}
    return {
        **dict.fromkeys(CONNECTIONS, NOTIFY),
        "socket": Match(0, {_UNIX: unix, _INET: inet, _INET6: inet, _NETLINK: routes}, _EPERM),
        "socketpair": Match(0, {_UNIX: unix}, _EPERM),  # other families have pairs too (TIPC)
        "sendto": Match(3, {0: ALLOW}, slow, mask=_FAST_OPEN),
        "sendmsg": Match(2, {0: ALLOW}, slow, mask=_FAST_OPEN),
        "sendmmsg": Match(3, {0: ALLOW}, slow, mask=_FAST_OPEN),
        "setsockopt": Match(1, by_way_of | later, ALLOW),
    }


@lru_cache
def filter_for(kind: FilterKind) -> bytes:
    """Return the filter of this kind for this machine. System calls newer than Linux 6.17 fail with ENOSYS."""
    table = numbers()
    by_number = {table[name]: decision for name, decision in decisions(kind).items() if name in table}
    return assemble(AUDIT_ARCH[machine()], by_number, last=LAST, beyond=_ENOSYS)


# --- putting it on ----------------------------------------------------------------------------------------------------

_SET_MODE_FILTER: Final = 1
_SPEC_ALLOW, _NEW_LISTENER, _WAIT_KILLABLE = 1 << 2, 1 << 3, 1 << 5


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(program: bytes, *, listener: bool) -> int | None:
    """Install a filter in this process, for good. `no_new_privs` must be set. With `listener`, return the descriptor on
    which the filter announces calls; else None.

    Raises:
        OSError: the kernel has no seccomp filters, no user notification, or refuses this filter.
    """
    given = _Program(len(program) // 8, program)
    if not listener:
        call("seccomp", _SET_MODE_FILTER, _SPEC_ALLOW, ctypes.byref(given))
        return None
    flags = _SPEC_ALLOW | _NEW_LISTENER
    try:  # a call that the gate works on is not interrupted by signals: it would be made twice
        return call("seccomp", _SET_MODE_FILTER, flags | _WAIT_KILLABLE, ctypes.byref(given))
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 5.19
            raise
    return call("seccomp", _SET_MODE_FILTER, flags, ctypes.byref(given))
