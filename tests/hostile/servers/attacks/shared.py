"""What the kernel or the gateway counts for all together: for a user, or for the machine."""

import contextlib
import ctypes
import errno
import os
import socket
import struct
import time

from .attempt import Facts, any_of, in_threads
from .kernel import libc, syscall
from .network import address_of


def poll_watches(facts: Facts) -> str:
    """Watches of epoll, which the kernel counts for a user: every instance watches every descriptor."""
    children = []
    for _ in range(facts["children"]):
        reads, writes = os.pipe()
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                os.close(reads)
                os.write(writes, struct.pack("=q", _watch_all()))
                time.sleep(facts["hold_s"])
                os._exit(0)
            children.append(reads)
        os.close(writes)
    total = 0
    for reads in children:
        answer = os.read(reads, 8)
        total += struct.unpack("=q", answer)[0] if len(answer) == 8 else 0
    time.sleep(facts["hold_s"])
    return f"watches: {total}"


def _watch_all() -> int:
    pollers: list[int] = []
    files: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            pollers.append(libc.epoll_create1(0))
            files.append(os.eventfd(0))
            if pollers[-1] < 0:
                break
    event = ctypes.create_string_buffer(16)
    count = 0
    for poller in pollers:
        for file in files:
            if libc.epoll_ctl(poller, 1, file, event) == 0:
                count += 1
            elif ctypes.get_errno() == errno.ENOSPC:
                return count
    return count


def asynchronous_requests(facts: Facts) -> str:
    """Room for asynchronous input and output (io_setup), which the kernel counts for the machine."""
    most = 0
    with contextlib.suppress(BlockingIOError):  # there is no more
        for _ in range(200):
            syscall("io_setup", 1_000, ctypes.byref(ctypes.c_ulong(0)))
            most += 1_000
    return f"requests: {most}"


def ports_by_resolver(facts: Facts) -> str:
    """Streams to the resolver that say nothing and are ended by the other side, which then keeps their ports."""
    address = address_of(facts["hosts"][0], 53)
    until = time.monotonic() + facts["seconds"]
    opened = [0]

    def run() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.socket() as stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))
                if libc.connect(stream.fileno(), address, 16) == 0:
                    opened[0] += 1
                    stream.recv(1)

    in_threads(8, run)
    return f"streams: {opened[0]}"


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
