"""The address of a client behind trusted proxies."""

import pytest

from tests.requirements import requirement
from transports.inbound.client_address import client_network


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
