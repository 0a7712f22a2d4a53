"""What the kernel's answer about a route says of an address."""

import errno
import ipaddress
import socket
import struct

import pytest

from tests.requirements import requirement
from transports.upstream.walls import routes


class Kernel:
    """Answers with one error."""

    def __init__(self, error: int) -> None:
        self._error = error

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, _: float) -> None: ...

    def sendto(self, *_: object) -> None: ...

    def recv(self, _: int) -> bytes:
        return struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -self._error) + bytes(16)


@requirement("box.network")
@pytest.mark.parametrize(
    ("error", "is_local"),
    [
        (errno.ENETUNREACH, False),
        (errno.EHOSTUNREACH, False),
        (errno.EACCES, False),
        (errno.ENOMEM, True),
        (errno.EPERM, True),
    ],
)
def test_an_address_whose_route_the_kernel_does_not_tell_counts_as_local(
    monkeypatch: pytest.MonkeyPatch, error: int, is_local: bool
) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: Kernel(error))
    assert routes.is_local(ipaddress.ip_address("192.0.2.1")) is is_local
