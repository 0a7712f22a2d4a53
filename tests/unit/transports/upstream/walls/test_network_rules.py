"""What a walled process may connect to."""

import ipaddress

import pytest

from tests.requirements import requirement
from transports.upstream.walls.network_rules import (
    MAX_LEARNT,
    NameRules,
    ReachRules,
    destination,
    kind_of,
    shown,
    unwrapped,
)
from transports.upstream.walls.wall_specification import Reach

pytestmark = requirement("box.network")


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def rules(reach: Reach, local: str = "198.51.101.7", clock: Clock | None = None) -> ReachRules:
    own = ipaddress.ip_address(local)
    return ReachRules(reach, is_local=lambda address: address == own, clock=clock or Clock())


def refusal(reach: Reach, address: str, port: int = 443) -> str | None:
    return rules(reach).refusal(ipaddress.ip_address(address), port)


PUBLIC = Reach(public=True, names=True)
CLOSED = {
    "loopback": "127.0.0.1 127.9.9.9 ::1 0.0.0.0 :: ::ffff:127.0.0.1 ::ffff:0.0.0.0 64:ff9b::7f00:1",
    "link-local": "169.254.1.1 fe80::1 fe80::1%3 2002:a9fe:101::",
    "metadata": "169.254.169.254 ::ffff:169.254.169.254 fd00:ec2::254 168.63.129.16 100.100.100.200 64:ff9b::a9fe:a9fe",
    "multicast": "224.0.0.1 239.255.255.250 ff02::1",
    "private": "10.0.0.5 172.31.0.1 192.168.1.1 100.64.0.1 fd12::1 fec0::1 2002:a00:5:: ::ffff:10.0.0.5",
    "reserved": "0.1.2.3 192.0.2.1 198.19.0.1 255.255.255.255 240.0.0.1 192.88.99.1 "
    "2001::1 2001:db8::1 ::10.0.0.5 64:ff9b:1::1 ::2 4000::1",
}


@pytest.mark.parametrize(("kind", "address"), [(kind, a) for kind, found in CLOSED.items() for a in found.split()])
def test_addresses_that_are_not_public_are_closed_in_every_form(kind: str, address: str) -> None:
    assert refusal(PUBLIC, address) == f"a {kind} address"


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "2002:101:101::", "64:ff9b::101:101", "172.32.0.1"]
)
def test_public_addresses_are_open_if_public_is(address: str) -> None:
    assert refusal(PUBLIC, address) is None
    assert refusal(Reach(), address) == "not listed"


def test_grants_open_their_addresses_and_ports_only() -> None:
    reach = Reach(hosts=("10.1.0.0/16:5432", "[fd00::7]:80", "192.168.1.1", "fd01::/16", "localhost:8123", "*:993"))
    granted = [("10.1.2.3", 5432), ("::ffff:10.1.2.3", 5432), ("fd00::7", 80), ("192.168.1.1", 9), ("fd01::9", 1)]
    granted += [("127.0.0.1", 8123), ("::1", 8123), ("0.0.0.0", 8123), ("1.1.1.1", 993)]
    others = [("10.1.2.3", 5433), ("10.2.0.1", 5432), ("fd00::8", 80), ("127.0.0.1", 8124), ("10.0.0.5", 993)]
    others += [("1.1.1.1", 994)]
    assert [each for each in granted + others if refusal(reach, *each) is None] == granted
    assert refusal(PUBLIC, "198.51.101.7") == "an address of this machine"
    own = Reach(public=True, hosts=("198.51.101.7:443",))
    assert refusal(own, "198.51.101.7") is None and refusal(own, "198.51.101.7", 80) is not None


def test_a_wide_network_does_not_open_metadata_and_loopback() -> None:
    wide = Reach(hosts=("0.0.0.0/0", "::/0"))
    open_ones = ["1.1.1.1", "10.0.0.5"]
    closed = ["169.254.169.254", "127.0.0.1", "169.254.1.1", "fe80::1", "::1", "224.0.0.1"]
    assert [each for each in open_ones + closed if refusal(wide, each) is None] == open_ones
    assert refusal(Reach(hosts=("169.254.0.0/16",)), "169.254.169.254")
    assert refusal(Reach(hosts=("169.254.0.0/16",)), "169.254.1.1") is None
    assert refusal(Reach(hosts=("169.254.169.254:80",)), "169.254.169.254", 80) is None


def test_where_the_gateway_listens_stays_closed_whatever_is_granted() -> None:
    reach = Reach(
        public=True,
        hosts=("localhost", "127.0.0.1:8080", "198.51.101.7:9000"),
        refused=("0.0.0.0:9000", "127.0.0.1:8080"),
    )
    why = "the gateway listens there"
    assert refusal(reach, "127.0.0.1", 8080) == why and refusal(reach, "0.0.0.0", 8080) == why
    assert refusal(reach, "198.51.101.7", 9000) == why and refusal(reach, "::1", 9000) == why
    assert refusal(reach, "127.0.0.1", 8081) is None and refusal(reach, "198.51.101.8", 9000) is None
    named = Reach(public=True, hosts=("localhost", "198.51.101.7", "10.0.0.5"), refused=("gw.internal:8080",))
    assert refusal(named, "127.0.0.1", 8080) == why == refusal(named, "198.51.101.7", 8080), "of whatever address it is"
    assert refusal(named, "127.0.0.1", 8081) is None and refusal(named, "10.0.0.5", 8080) is None


@requirement("box.names")
def test_what_an_allowed_name_answered_is_reachable_for_a_time_on_its_ports() -> None:
    clock = Clock()
    decide = rules(Reach(hosts=("api.example.com:443",)), clock=clock)
    address = ipaddress.ip_address("93.184.216.34")
    assert decide.refusal(address, 443) == "not listed"
    decide.learn("93.184.216.34", [443], 60)
    assert decide.refusal(address, 443) is None and decide.refusal(address, 80) == "not listed"
    assert decide.refusal(ipaddress.ip_address("::ffff:93.184.216.34"), 443) is None
    clock.now += 50
    decide.learn("93.184.216.34", [80], 60)  # a second name with the same address
    assert decide.refusal(address, 443) is None and decide.refusal(address, 80) is None
    clock.now += 20
    assert decide.refusal(address, 443) == "not listed" and decide.refusal(address, 80) is None


@requirement("box.names")
def test_a_name_opens_no_private_address() -> None:
    decide = rules(Reach(hosts=("rebinding.example.com",)))
    for address in ("10.0.0.5", "127.0.0.1", "169.254.169.254", "::ffff:10.0.0.5", "fd00::1", "198.51.101.7"):
        decide.learn(address, None, 60)
        assert decide.refusal(ipaddress.ip_address(address), 443)


@requirement("box.names")
def test_a_server_that_resolves_without_end_holds_a_bounded_number_of_addresses() -> None:
    decide = rules(Reach())
    first = ipaddress.ip_address("2600::")
    for n in range(MAX_LEARNT + 10):
        decide.learn(str(first + n), None, 60)
    assert decide.refusal(first, 443) == "not listed" and decide.refusal(first + MAX_LEARNT, 443) is None


@requirement("box.names")
def test_names_and_wildcards_match_nothing_that_only_looks_like_them() -> None:
    names = NameRules(Reach(hosts=("api.example.com:443", "*.example.org", "*.xn--bcher-kva.example", "10.0.0.1")))
    granted = ["api.example.com", "API.Example.COM.", "a.example.org", "a.b.example.org.", "x.xn--bcher-kva.example"]
    others = ["example.com", "api.example.com.evil.net", "xapi.example.com", "example.org", ".example.org", ""]
    others += ["aexample.org", "api.example.com..", "a.bücher.example", "10.0.0.1", "."]
    assert [name for name in granted + others if names.is_resolved(name)] == granted
    assert names.ports("api.example.com") == frozenset({443}) and names.ports("a.example.org") is None
    assert NameRules(PUBLIC).is_resolved("anything.test") and NameRules(PUBLIC).ports("anything.test") == frozenset()
    assert NameRules(Reach(hosts=("*:443",))).ports("anything.test") == frozenset({443})


MEANINGLESS = (
    *("", "*.", "*.com", "a*b.com", "a b", "a..b", "a" * 64 + ".com", "x/y", "bücher.example", "http://example.com"),
    *("example.com:", "example.com:0", "example.com:65536", "example.com:-1", "example.com:x"),
    *("10.0.0.1/8", "10.0.0", "10.0.0.256", "[fd00::1", "[fd00::1]x", "fd00::1/8"),
)


@pytest.mark.parametrize("text", MEANINGLESS)
def test_an_entry_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        destination(text)


@requirement("box.refusals-seen")
def test_a_refused_address_is_shown_as_it_would_be_granted() -> None:
    for text in ("10.0.0.5:443", "fd00::7", "169.254.169.254:80", "127.0.0.1:9"):
        address = unwrapped(ipaddress.ip_address(text.partition(":")[0] if "." in text else text))
        grant = shown(address, 443)
        assert kind_of(address)[0] != "public" and refusal(Reach(hosts=(grant,)), str(address)) is None
