"""What the kernel's answer about a route says of an address."""

import errno
import ipaddress
import socket
import struct
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.requirements import requirement
from transports.upstream.walls import routes


@requirement("box.network")
@pytest.mark.parametrize(
    ("errors", "is_local"),
    [((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL), False), ((errno.ENOMEM, errno.EPERM), True)],
)
def test_an_address_whose_route_the_kernel_does_not_tell_counts_as_local(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[int, ...], is_local: bool
) -> None:
    kernel = SimpleNamespace(settimeout=lambda _: None, sendto=lambda *_: None)
    monkeypatch.setattr(socket, "socket", lambda *_: nullcontext(kernel))
    for error in errors:
        answer = struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -error) + bytes(16)
        kernel.recv = lambda _, answer=answer: answer
        assert routes.is_local(ipaddress.ip_address("192.0.2.1")) is is_local, errno.errorcode[error]
