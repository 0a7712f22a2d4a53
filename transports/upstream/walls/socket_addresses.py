"""Read socket addresses (`struct sockaddr`) from untrusted bytes. Ask the kernel if an address belongs to this machine,
and which sockets listen there."""

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Final

from transports.upstream.walls.network_rules import Address, unwrapped

INTERNET: Final = (socket.AF_INET, socket.AF_INET6)

MAX_BYTES: Final = 128
"""The size of `struct sockaddr_storage` in bytes; the kernel accepts no longer address."""

_MAX_UNIX_BYTES: Final = 110
_FAMILY: Final = struct.Struct("=H")
_IPV4: Final = struct.Struct("!2xH4s8x")
_IPV6: Final = struct.Struct("!2xHI16s")
_SCOPE: Final = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class Disconnect:
    """An address of the family AF_UNSPEC. Connecting a socket to it ends the socket's connection."""


@dataclass(frozen=True, slots=True)
class InternetAddress:
    """An address of IPv4 or IPv6 with a port. `raw` are its bytes for the kernel."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class AbstractName:
    """The name of a Unix socket that has no path, so that no rights of a folder protect it."""

    name: str


@dataclass(frozen=True, slots=True)
class UnixPath:
    """The path of a Unix socket, as the process wrote it."""

    path: str


def read_address(raw: bytes, domain: int) -> Disconnect | InternetAddress | AbstractName | UnixPath:
    """Read the encoded address `raw` for a socket of the address family `domain`.

    Raises:
        OSError: the address is invalid. It has the errno that the kernel itself would give.
    """
    if not _FAMILY.size <= len(raw) <= MAX_BYTES:
        raise _error(errno.EINVAL)
    family: int = _FAMILY.unpack_from(raw)[0]
    if family == socket.AF_UNSPEC and domain in INTERNET:
        return Disconnect()
    if family != domain:
        raise _error(errno.EINVAL if domain == socket.AF_UNIX else errno.EAFNOSUPPORT)
    if family == socket.AF_UNIX:
        return _unix(raw)
    if family == socket.AF_INET:
        if len(raw) < _IPV4.size:
            raise _error(errno.EINVAL)
        port, packed = _IPV4.unpack_from(raw)
        return InternetAddress(ipaddress.IPv4Address(packed), port, raw[: _IPV4.size])
    if family == socket.AF_INET6:
        if len(raw) < _IPV6.size:
            raise _error(errno.EINVAL)
        port, _, packed = _IPV6.unpack_from(raw)
        scope = raw[_IPV6.size : _IPV6.size + _SCOPE.size].ljust(_SCOPE.size, b"\0")
        return InternetAddress(ipaddress.IPv6Address(packed), port, raw[: _IPV6.size] + scope)
    raise _error(errno.EACCES)


def _unix(raw: bytes) -> AbstractName | UnixPath:
    if len(raw) > _MAX_UNIX_BYTES or len(raw) == _FAMILY.size:
        raise _error(errno.EINVAL)
    path, _, _ = raw[_FAMILY.size :].partition(b"\0")
    if not path:
        return AbstractName(os.fsdecode(raw[_FAMILY.size + 1 :]))
    return UnixPath(os.fsdecode(path))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


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
"""Errors that mean that there is no route. The last two are of prohibiting routes and of black holes."""
_LISTEN: Final = b"0A"


def is_local(address: Address) -> bool:
    """Return True if packets to the address stay on this machine or go to many receivers. Also return True if the
    kernel does not answer."""
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
    """Read an address as /proc/net shows it: `0100007F:1F90` or its long form, in words of 32 bits in the machine's
    byte order."""
    packed = bytes.fromhex(field.partition(b":")[0].decode("ascii"))
    if sys.byteorder == "little":
        packed = b"".join(packed[i : i + 4][::-1] for i in range(0, len(packed), 4))
    return ipaddress.ip_address(packed)
