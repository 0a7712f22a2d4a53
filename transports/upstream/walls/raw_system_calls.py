"""Make Linux system calls for which Python has no function, by name. Tables have their numbers on each machine."""

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

_BOTH: Final = {
    "clone3": 435, "fchmodat2": 452, "file_setattr": 469, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433,
    "getxattrat": 464, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "landlock_add_rule": 445,
    "landlock_create_ruleset": 444, "landlock_restrict_self": 446, "listmount": 458, "listxattrat": 465,
    "mount_setattr": 442, "move_mount": 429, "open_tree": 428, "open_tree_attr": 467, "openat2": 437,
    "pidfd_getfd": 438, "pidfd_send_signal": 424, "process_madvise": 440, "quotactl_fd": 443, "removexattrat": 466,
    "setxattrat": 463, "statmount": 457,
}  # fmt: skip
_X86_64: Final = {
    "acct": 163, "add_key": 248, "bind": 49, "bpf": 321, "capget": 125, "capset": 126, "chmod": 90, "chown": 92,
    "chroot": 161, "clock_adjtime": 305, "clock_settime": 227, "clone": 56, "connect": 42, "creat": 85,
    "delete_module": 176, "execve": 59, "execveat": 322, "fanotify_init": 300, "fanotify_mark": 301, "fchmod": 91,
    "fchmodat": 268, "fchown": 93, "fchownat": 260, "fcntl": 72, "finit_module": 313, "fremovexattr": 199,
    "fsetxattr": 190, "futimesat": 261, "getxattr": 191, "init_module": 175, "inotify_add_watch": 254,
    "inotify_init": 253, "inotify_init1": 294, "io_setup": 206, "ioctl": 16, "ioperm": 173, "iopl": 172,
    "ioprio_set": 251, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "kill": 62, "lchown": 94,
    "lgetxattr": 192, "link": 86, "linkat": 265, "listen": 50, "listxattr": 194, "llistxattr": 195, "lremovexattr": 198,
    "lsetxattr": 189, "migrate_pages": 256, "mkdir": 83, "mkdirat": 258, "mknod": 133, "mknodat": 259,
    "modify_ldt": 154, "mount": 165, "move_pages": 279, "mq_open": 240, "mq_unlink": 241, "msgctl": 71, "msgget": 68,
    "msgrcv": 70, "msgsnd": 69, "open": 2, "open_by_handle_at": 304, "openat": 257, "perf_event_open": 298,
    "personality": 135, "pivot_root": 155, "prctl": 157, "prlimit64": 302, "process_vm_readv": 310,
    "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "reboot": 169, "removexattr": 197, "rename": 82,
    "renameat": 264, "renameat2": 316, "request_key": 249, "rmdir": 84, "rt_sigqueueinfo": 129,
    "rt_tgsigqueueinfo": 297, "sched_setaffinity": 203, "sched_setattr": 314, "sched_setparam": 142,
    "sched_setscheduler": 144, "seccomp": 317, "semctl": 66, "semget": 64, "semop": 65, "semtimedop": 220,
    "sendmmsg": 307, "sendmsg": 46, "sendto": 44, "setdomainname": 171, "sethostname": 170, "setns": 308,
    "setpriority": 141, "setsockopt": 54, "settimeofday": 164, "setxattr": 188, "shmat": 30, "shmctl": 31, "shmget": 29,
    "socket": 41, "socketpair": 53, "swapoff": 168, "swapon": 167, "symlink": 88, "symlinkat": 266, "syslog": 103,
    "tgkill": 234, "tkill": 200, "truncate": 76, "umount2": 166, "unlink": 87, "unlinkat": 263, "unshare": 272,
    "userfaultfd": 323, "utime": 132, "utimensat": 280, "utimes": 235, "vhangup": 153,
}  # fmt: skip
_AARCH64: Final = {
    "acct": 89, "add_key": 217, "bind": 200, "bpf": 280, "capget": 90, "capset": 91, "chroot": 51, "clock_adjtime": 266,
    "clock_settime": 112, "clone": 220, "connect": 203, "delete_module": 106, "execve": 221, "execveat": 281,
    "fanotify_init": 262, "fanotify_mark": 263, "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54, "fcntl": 25,
    "finit_module": 273, "fremovexattr": 16, "fsetxattr": 7, "getxattr": 8, "init_module": 105, "inotify_add_watch": 27,
    "inotify_init1": 26, "io_setup": 0, "ioctl": 29, "ioprio_set": 30, "kcmp": 272, "kexec_file_load": 294,
    "kexec_load": 104, "keyctl": 219, "kill": 129, "lgetxattr": 9, "linkat": 37, "listen": 201, "listxattr": 11,
    "llistxattr": 12, "lremovexattr": 15, "lsetxattr": 6, "migrate_pages": 238, "mkdirat": 34, "mknodat": 33,
    "mount": 40, "move_pages": 239, "mq_open": 180, "mq_unlink": 181, "msgctl": 187, "msgget": 186, "msgrcv": 188,
    "msgsnd": 189, "open_by_handle_at": 265, "openat": 56, "perf_event_open": 241, "personality": 92, "pivot_root": 41,
    "prctl": 167, "prlimit64": 261, "process_vm_readv": 270, "process_vm_writev": 271, "ptrace": 117, "quotactl": 60,
    "reboot": 142, "removexattr": 14, "renameat": 38, "renameat2": 276, "request_key": 218, "rt_sigqueueinfo": 138,
    "rt_tgsigqueueinfo": 240, "sched_setaffinity": 122, "sched_setattr": 274, "sched_setparam": 118,
    "sched_setscheduler": 119, "seccomp": 277, "semctl": 191, "semget": 190, "semop": 193, "semtimedop": 192,
    "sendmmsg": 269, "sendmsg": 211, "sendto": 206, "setdomainname": 162, "sethostname": 161, "setns": 268,
    "setpriority": 140, "setsockopt": 208, "settimeofday": 170, "setxattr": 5, "shmat": 196, "shmctl": 195,
    "shmget": 194, "socket": 198, "socketpair": 199, "swapoff": 225, "swapon": 224, "symlinkat": 36, "syslog": 116,
    "tgkill": 131, "tkill": 130, "truncate": 45, "umount2": 39, "unlinkat": 35, "unshare": 97, "userfaultfd": 282,
    "utimensat": 88, "vhangup": 58,
}  # fmt: skip

NUMBERS: Final = {"x86_64": _X86_64 | _BOTH, "aarch64": _AARCH64 | _BOTH}
"""The numbers of the system calls that these modules use, by machine architecture as in `uname`. From asm/unistd.h."""

LAST: Final = _BOTH["file_setattr"]
"""The highest system call number when these tables were made (Linux 6.17), the same on every machine architecture."""

AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
"""The number by which a seccomp filter recognizes each machine architecture. From linux/audit.h."""


def _with_arguments(count: int) -> Any:
    """Return syscall(2) for `count` arguments, with declared types: a call then takes half the time. All are void
    pointers, which are as wide as any argument. ctypes converts integers, None and pointers to them."""
    kind = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, *(count * [ctypes.c_void_p]), use_errno=True)
    return kind(("syscall", _libc))


_libc: Final = ctypes.CDLL(None)
_CALLS: Final = tuple(map(_with_arguments, range(7)))


@cache
def machine() -> str:
    """Return the name of this machine architecture, as in `uname`. Raises `OSError` (ENOSYS) if there is no table for
    it."""
    name = os.uname().machine
    if sys.platform != "linux" or name not in NUMBERS or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(errno.ENOSYS, f"no table of system calls for {name}")
    return name


@cache
def numbers() -> dict[str, int]:
    """Return the system call numbers of this machine, by name. Raises `OSError` (ENOSYS) if there is no table for
    it."""
    return NUMBERS[machine()]


def call(name: str, *arguments: Any) -> int:
    """Make a system call. Arguments are integers, None for a null pointer, or values that ctypes can convert to a
    pointer.

    Raises:
        OSError: with the errno of the call, or ENOSYS on a machine without a table.
    """
    result: int = _CALLS[len(arguments)](numbers()[name], *arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# PyDLL keeps the interpreter's lock: a child is born in the middle of a call.
_libc_with_lock: Any = ctypes.PyDLL(None, use_errno=True)


def fork_by(name: str, *arguments: int | bytes) -> int:
    """Fork like `os.fork`, with the named system call (clone, clone3). Raises `OSError`, as `call` does."""
    given = [each if isinstance(each, bytes) else ctypes.c_long(each) for each in (numbers()[name], *arguments)]
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _libc_with_lock.syscall(*given)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid == -1:
        raise OSError(number, os.strerror(number))
    return pid


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Yield the descriptor `fd`, and close it at the end of the `with` block."""
    try:
        yield fd
    finally:
        os.close(fd)


_PR_SET_DUMPABLE: Final = 4


@contextmanager
def dumpable() -> Iterator[None]:
    """Make this process dumpable within a `with` block: other processes of the user, and itself, can then open its
    files in /proc. Otherwise these files belong to root. Raises `OSError`."""
    call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
