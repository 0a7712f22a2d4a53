"""Socket addresses as the kernel takes them (`struct sockaddr`), read from the bytes of a stranger. Pure."""

import errno
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

__all__ = ["INTERNET", "MAX_BYTES", "AbstractName", "Disconnect", "InternetAddress", "UnixPath", "read_address"]

INTERNET: Final = (socket.AF_INET, socket.AF_INET6)

MAX_BYTES: Final = 128
"""`sizeof(struct sockaddr_storage)`; the kernel takes no longer address."""

_MAX_UNIX_BYTES: Final = 110
_FAMILY: Final = struct.Struct("=H")
_IPV4: Final = struct.Struct("!2xH4s8x")
_IPV6: Final = struct.Struct("!2xHI16s")
_SCOPE: Final = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class Disconnect:
    """AF_UNSPEC: ends the connection of a socket."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class InternetAddress:
    """An address of IPv4 or IPv6 with a port. `raw` is what the kernel is to be given."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class AbstractName:
    """The name of a Unix socket that has no path. It belongs to nobody's folder."""

    name: str


@dataclass(frozen=True, slots=True)
class UnixPath:
    """The path of a Unix socket, as the process wrote it."""

    path: str


def read_address(raw: bytes, domain: int) -> Disconnect | InternetAddress | AbstractName | UnixPath:
    """Read an address that is meant for a socket of this domain.

    Raises:
        OSError: with the errno that the kernel itself would give.
    """
    if not _FAMILY.size <= len(raw) <= MAX_BYTES:
        raise _error(errno.EINVAL)
    family: int = _FAMILY.unpack_from(raw)[0]
    if family == socket.AF_UNSPEC and domain in INTERNET:
        return Disconnect(raw)
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
