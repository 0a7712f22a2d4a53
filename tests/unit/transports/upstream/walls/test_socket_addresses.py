"""Socket addresses are read from any bytes, and what the kernel says of a route."""

import errno
import ipaddress
import socket
import struct
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirements import requirement
from transports.upstream.walls import socket_addresses
from transports.upstream.walls.socket_addresses import AbstractName, Disconnect, InternetAddress, UnixPath, read_address

pytestmark = requirement("box.network")

FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_UNSPEC)


@given(st.sampled_from(FAMILIES), st.sampled_from(FAMILIES), st.binary(max_size=130), st.booleans())
def test_any_bytes_are_an_address_or_an_errno(family: int, domain: int, rest: bytes, is_headed: bool) -> None:
    raw = (struct.pack("=H", family) if is_headed else b"") + rest
    try:
        found = read_address(raw, domain)
    except OSError as error:
        assert error.errno
    else:
        assert isinstance(found, AbstractName | Disconnect | InternetAddress | UnixPath)
        if isinstance(found, InternetAddress):
            assert found.raw[:8] == raw[:8] and found.address.packed in found.raw


def test_what_is_given_to_the_kernel_is_what_was_decided_on() -> None:
    packed = ipaddress.IPv6Address("fe80::1").packed
    raw = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 443, 7) + packed + struct.pack("=I", 3) + b"more"
    found = read_address(raw, socket.AF_INET6)
    assert isinstance(found, InternetAddress) and found.port == 443 and found.raw == raw[:28]
    assert found.address == ipaddress.IPv6Address("fe80::1")
    short = read_address(raw[:24], socket.AF_INET6)
    assert isinstance(short, InternetAddress) and short.raw == raw[:24] + bytes(4)


@requirement("box.sockets")
@pytest.mark.parametrize(
    ("tail", "path"), [(b"/a\0b", "/a"), (b"/a", "/a"), (b"a/../b\0", "a/../b"), (b"/\xff", "/\udcff")]
)
def test_a_path_ends_with_the_first_zero_byte(tail: bytes, path: str) -> None:
    assert read_address(struct.pack("=H", socket.AF_UNIX) + tail, socket.AF_UNIX) == UnixPath(path)


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
        assert socket_addresses.is_local(ipaddress.ip_address("192.0.2.1")) is is_local, errno.errorcode[error]
