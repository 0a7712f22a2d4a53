"""What a client may cost before it has authenticated, and the address that it is counted by."""

import resource

import pytest

from tests.requirements import requirement
from transports.inbound.unauthenticated_limits import client_network, room_for_connections


@pytest.mark.parametrize(
    ("files", "connections"), [(0, 14), (128, 14), (1_024, 448), (1 << 20, 65_536), (resource.RLIM_INFINITY, 65_536)]
)
def test_half_of_the_files_are_for_connections(files: int, connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert room_for_connections() == connections


@requirement("wall.bystander")
@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "203.0.113.5", "192.0.2.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("127.0.0.1", "198.51.100.1, 203.0.113.5, 10.0.0.9", "203.0.113.5"),
        ("127.0.0.1", "203.0.113.5:8080", "203.0.113.5"),
        ("127.0.0.1", "[2001:db8::1]:443", "2001:db8::/64"),
        ("127.0.0.1", "203.0.113.5, unknown", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.5, " + "x" * 60_000, "127.0.0.1"),
        ("127.0.0.1", ", ".join(["10.0.0.1"] * 5_000), "10.0.0.1"),
        ("::ffff:192.0.2.1", "", "192.0.2.1"),
        ("", "", ""),
    ],
)
def test_an_address_counts_that_somebody_trusted_vouches_for(peer: str, forwarded: str, client: str) -> None:
    proxies = {"127.0.0.1", "10.0.0.1", "10.0.0.9"}
    assert client_network(peer, {"x-forwarded-for": forwarded}, proxies) == client
