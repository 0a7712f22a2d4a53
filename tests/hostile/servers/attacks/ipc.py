"""What siblings share with each other: sockets, memory and queues of the kernel."""

import contextlib
import ctypes
import json
import os
import socket
import struct

from .attempt import Facts, any_of
from .kernel import libc, syscall, text


def _asked(path: str, access: str, request: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(3)
        connection.connect(path)
        head = f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        if access:
            head += f"Authorization: Bearer {access}\r\n"
        connection.sendall(head.encode() + b"\r\n")
        got = b""
        while piece := connection.recv(4096):
            got += piece
        return text(got)


def state(facts: Facts) -> str:
    """The sibling's state, without its secret."""
    return _asked(facts["sibling"]["socket"], "", "GET /v1/state/secret")


def state_with_secret(facts: Facts) -> str:
    """With the secret, which was stolen elsewhere."""
    return _asked(facts["sibling"]["socket"], facts["sibling"]["access"], "GET /v1/state/secret")


def state_sockets(facts: Facts) -> str:
    """Every socket beside one's own."""
    own = os.environ.get("MCP_SESSION_SOCKET", "")
    folder = os.path.dirname(own)
    found = [name for name in os.listdir(folder) if os.path.join(folder, name) != own]
    return f"sockets: {' '.join(found)}"


def connected(facts: Facts) -> str:
    """A socket by path: of the machine's daemons, or of a sibling."""
    return _told(facts["path"], facts)


def _told(address: str, facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(3)
        connection.connect(address)
        connection.sendall(facts["token"].encode())
        return text(connection.recv(4096))


def datagram(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.sendto(facts["token"].encode(), facts["path"])
    return "sent"


def abstract(facts: Facts) -> str:
    return _told("\0" + facts["sibling"]["abstract"], facts)


def abstract_datagram(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.sendto(facts["token"].encode(), "\0" + facts["sibling"]["abstract"] + "-datagram")
    return "sent"


def passed_descriptor(facts: Facts) -> str:
    """A connection that a sibling made and passes on: by path, and by abstract name."""
    for address in (facts["sibling"]["path"], "\0" + facts["sibling"]["abstract"]):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(3)
            connection.connect(address)
            connection.sendall(b"pass")
            _, descriptors, _, _ = socket.recv_fds(connection, 100, 4)
            if descriptors:
                return text(os.pread(descriptors[0], 1000, 0))
    raise PermissionError("neither path nor name answers")


def shared_memory_file(facts: Facts) -> str:
    found = []
    for name in os.listdir("/dev/shm"):
        with contextlib.suppress(OSError), open(f"/dev/shm/{name}", "rb") as file:
            found.append(text(file.read(1000)))
    return "\n".join(found)


def shared_memory_key(facts: Facts) -> str:
    """shmget with the sibling's key, and by its number."""
    with contextlib.suppress(OSError):
        return _segment(syscall("shmget", facts["sibling"]["key"], 64, 0))
    return _segment(facts["sibling"]["segment"])


def _segment(number: int) -> str:
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(number, None, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat: " + os.strerror(ctypes.get_errno()))
    return text(ctypes.string_at(address, 64))


def message_queue(facts: Facts) -> str:
    """A System V queue of the sibling's: read what is in it."""
    number = syscall("msgget", facts["sibling"]["key"], 0)
    buffer = ctypes.create_string_buffer(200)
    got = syscall("msgrcv", number, buffer, 190, 0, 0o4000 | 0o40000)  # IPC_NOWAIT | MSG_COPY
    return text(buffer.raw[8 : 8 + got])


def posix_queue(facts: Facts) -> str:
    name = facts["sibling"]["queue"].encode()
    descriptor = syscall("mq_open", name, os.O_RDWR | os.O_NONBLOCK, 0, 0)
    syscall("mq_timedsend", descriptor, facts["token"].encode(), len(facts["token"]), 0, 0)
    return "sent"


def left_behind(facts: Facts) -> str:
    """Kernel objects that outlive the session, for its next one."""
    done = []
    with contextlib.suppress(OSError):
        done.append(f"segment {syscall('shmget', facts['key'], 4096, 0o1600)}")
    with contextlib.suppress(OSError):
        limits = (ctypes.c_long * 8)(0, 4, 64)
        done.append(f"queue {syscall('mq_open', b'left-behind', os.O_RDWR | os.O_CREAT, 0o600, limits)}")
    with contextlib.suppress(OSError):
        done.append(f"messages {syscall('msgget', facts['key'], 0o1600)}")
    with contextlib.suppress(OSError), open("/dev/shm/left-behind", "w", encoding="ascii") as file:
        file.write(facts["token"])
        done.append("file")
    return any_of(done, "none")


def netlink(facts: Facts) -> str:
    """Change the machine's network: a new address on the loopback interface."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as connection:
        connection.settimeout(2)
        address = struct.pack("BBBBi", 2, 32, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([127, 77, 77, 77]))
        connection.send(struct.pack("IHHII", 16 + len(address), 20, 0x605, 1, 0) + address)
        answer = connection.recv(4096)
        error = struct.unpack_from("i", answer, 16)[0]
        if error:
            raise OSError(-error, os.strerror(-error))
    return json.dumps("added")
