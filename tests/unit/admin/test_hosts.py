"""By which names operators reach the gateway."""

import pytest

from gateway.admin.hosts import HostNotAllowed, OperatorHosts
from tests.requirements import requirement

ALWAYS = ("127.0.0.1:8080", "localhost:9092", "LOCALHOST", "[::1]:8080", "10.1.2.3", "192.0.2.7:9090", "[fe80::1]")
NAMED = ("admin.example:9090", "ADMIN.example", "a.b.example")
OTHERS = (
    "",
    "attacker.example",
    "admin.example.attacker.test",
    "b.example",
    "localhost.attacker.test",
    "[::1",
    "a@b:x",
    "attacker.example@localhost",
    "localhost/attacker.example",
    "127.0.0.1?x",
    "127.0.0.1#x",
    "x" * 10_000 + ".b.example",
)


@requirement("ops.console-host")
def test_addresses_pass_and_names_that_are_allowed() -> None:
    for hosts, passing, refused in (
        (OperatorHosts(["admin.example", "*.b.example"]), (*ALWAYS, *NAMED), OTHERS),
        (OperatorHosts(["*"]), (*ALWAYS, *NAMED, *OTHERS), ()),
        (OperatorHosts(), ALWAYS, NAMED),
    ):
        for host in passing:
            hosts.check(host)
        for host in refused:
            with pytest.raises(HostNotAllowed, match=r"gateway\.admin\.allowed_hosts"):
                hosts.check(host)
