"""What siblings share with each other: sockets, memory and queues of the kernel."""

import contextlib
import ctypes
import os
import socket

from .attempt import Facts
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


def abstract(facts: Facts) -> str:
    return _told("\0" + facts["sibling"]["abstract"], facts)


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
