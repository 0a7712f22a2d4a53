"""Which addresses belong to this machine, and who listens on them: as the kernel says at this moment."""

import contextlib
import errno
import ipaddress
import socket
import struct
import sys
from typing import Final

from transports.upstream.walls.reach import Address, unwrapped

__all__ = ["is_local", "listeners"]

_GET_ROUTE: Final = 26  # linux/rtnetlink.h
_REQUEST: Final = 1
_ERROR: Final = 2
_DESTINATION: Final = 1
_UNICAST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_ROUTE: Final = struct.Struct("=8BI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERRNO: Final = struct.Struct("=i")
_NO_ROUTE: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)
"""The last two are those of routes that prohibit, and of black holes."""
_LISTEN: Final = b"0A"


def is_local(address: Address) -> bool:
    """Return True if packets to the address stay on this machine (or go to many). Also true if the kernel does not
    answer."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    packed = address.packed
    body = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _DESTINATION) + packed
    header = _HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(1)
            kernel.sendto(header + body, (0, 0))
            reply = kernel.recv(8_192)
    except OSError:
        return True
    if len(reply) < _HEADER.size + _ROUTE.size:
        return True
    if _HEADER.unpack_from(reply)[1] == _ERROR:  # if there is no route at all, nothing is reached
        return -_ERRNO.unpack_from(reply, _HEADER.size)[0] not in _NO_ROUTE
    kind: int = _ROUTE.unpack_from(reply, _HEADER.size)[7]
    return kind != _UNICAST


def listeners(address: Address, port: int) -> set[int]:
    """Return the inodes of the TCP sockets that listen on exactly this address and port."""
    found: set[int] = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            wanted = b":%04X" % port
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTEN and fields[1].endswith(wanted):
                    if unwrapped(_address(fields[1])) == address:
                        found.add(int(fields[9]))
    return found


def _address(field: bytes) -> Address:
    """`0100007F:1F90` and its long form: words of 32 bits in the machine's byte order."""
    packed = bytes.fromhex(field.partition(b":")[0].decode("ascii"))
    if sys.byteorder == "little":
        packed = b"".join(packed[i : i + 4][::-1] for i in range(0, len(packed), 4))
    return ipaddress.ip_address(packed)
