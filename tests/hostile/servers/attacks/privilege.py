"""More rights than it was given."""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
from functools import partial

from .attempt import Facts, any_of, which_of
from .kernel import libc, syscall

_NEW_USER, _NEW_NET, _NEW_MOUNT, _NEW_PID = 0x1000_0000, 0x4000_0000, 0x0002_0000, 0x2000_0000


def setuid_program(facts: Facts) -> str:
    """Run one: whose user is it then?"""
    ran = subprocess.run([facts["path"], "-u"], capture_output=True, text=True, check=False)
    return f"user {ran.stdout.strip()}{ran.stderr.strip()}"


def new_namespaces(facts: Facts) -> str:
    """unshare, clone and clone3 with namespaces: in a user namespace everybody is root."""
    done = []
    for name, act in (
        ("unshare", lambda: syscall("unshare", _NEW_USER)),
        ("clone", lambda: _cloned(_NEW_USER)),
        ("clone net", lambda: _cloned(_NEW_NET)),
        ("clone3", _cloned3),
    ):
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            with contextlib.suppress(OSError):
                act()
                os.write(writes, b"1")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writes)
        if os.read(reads, 1):
            done.append(name)
    return any_of(done, "none of four ways")


def _cloned(flags: int) -> None:
    if syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def _cloned3() -> None:
    arguments = ctypes.create_string_buffer(struct.pack("8Q", _NEW_USER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)
    if syscall("clone3", arguments, 64) == 0:
        os._exit(0)


def calls_nobody_needs(facts: Facts) -> str:
    """System calls with a history: those that the kernel looked at, instead of refusing them at once."""
    looked_at = []
    for name in facts["calls"]:
        try:
            syscall(name, -1, -1, -1, -1, -1)
            looked_at.append(name)
        except OSError as error:
            if error.errno not in (1, 38):  # EPERM, ENOSYS
                looked_at.append(name)
    return any_of(looked_at, f"none of {len(facts['calls'])}")


def fixed_addresses(facts: Facts) -> str:
    """personality: no random addresses, readable means executable."""
    syscall("personality", 0x0040000 | 0x0400000)
    return f"personality {syscall('personality', 0xFFFFFFFF):#x}"


def typed_for_others(facts: Facts) -> str:
    """TIOCSTI on a terminal of its own making that it controls: what a shell reads after it."""
    import fcntl
    import pty
    import termios

    child, master = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSTI, b"x")
            os._exit(7)
        except OSError:
            os._exit(8)
    del master
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 7:
        raise PermissionError("refused")
    return "typed"


def devices(facts: Facts) -> str:
    """Devices of the machine: memory, disks, kernel messages, virtual machines, file systems in user space."""
    names = ("mem", "kmsg", "kvm", "fuse", "net/tun", "vda", "sda", "port")
    flags = os.O_RDONLY | os.O_NONBLOCK
    return which_of(((name, partial(os.open, f"/dev/{name}", flags)) for name in names), "none")


def asynchronous_requests(facts: Facts) -> str:
    """Room for asynchronous input and output (io_setup), which the kernel counts for the machine."""
    most = 0
    with contextlib.suppress(BlockingIOError):  # there is no more
        for _ in range(200):
            syscall("io_setup", 1_000, ctypes.byref(ctypes.c_ulong(0)))
            most += 1_000
    return f"requests: {most}"


def owners_ioctls(facts: Facts) -> str:
    """What the owner of a program may do with a descriptor that only reads: seal it, make a subvolume beside it."""
    done = []
    file, folder = (os.open(path, os.O_RDONLY) for path in (facts["path"], os.path.dirname(facts["path"])))
    room = ctypes.create_string_buffer(4_096)
    libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
    for name, target, request in (
        ("verity", file, 0x4080_6685),
        ("version", file, 0x4008_7602),
        ("subvolume", folder, 0x5000_940E),
        ("snapshot", folder, 0x5000_9401),
        ("removal", folder, 0x5000_940F),
    ):
        if libc.ioctl(target, request, room) == 0 or ctypes.get_errno() != errno.EPERM:
            done.append(name)  # it has come to the file system, whatever that said
    return any_of(done, "none of five")
