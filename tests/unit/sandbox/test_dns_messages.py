"""Questions of programs that resolve names, whatever bytes they are."""

import dns.flags
import dns.message
import dns.name
import dns.opcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sandbox.dns_messages import Query, read_query
from tests.requirements import requirement

pytestmark = requirement("box.names")


def known(message: dns.message.Message) -> Query:
    query = read_query(message.to_wire())
    assert query is not None
    return query


def asked(name: str, kind: str = "A") -> Query:
    return known(dns.message.make_query(name, kind))


def read(reply: bytes) -> dns.message.Message:
    assert int.from_bytes(reply[:2], "big") == len(reply) - 2
    return dns.message.from_wire(reply[2:])


def test_addresses_of_the_kind_that_is_asked_for_are_answered() -> None:
    addresses = ("93.184.216.34", "2606:2800::1", "93.184.216.35")
    for kind, wanted in (("A", ["93.184.216.34", "93.184.216.35"]), ("AAAA", ["2606:2800::1"]), ("TXT", [])):
        query = asked("API.Example.com", kind)
        reply = read(query.reply("found", addresses))
        assert query.name == "api.example.com" and reply.id == query.message.id and reply.rcode() == 0
        assert sorted(str(record) for answer in reply.answer for record in answer) == wanted
        assert reply.flags & dns.flags.QR and reply.flags & dns.flags.RA
        assert str(reply.question[0].name) == "API.Example.com."
    assert read(asked("x.test").reply("unknown")).rcode() == 3 and read(asked("x.test").reply("failed")).rcode() == 2
    many = tuple(f"2600::{n:x}" for n in range(32))
    assert len(read(asked("a.test", "AAAA").reply("found", many)).answer[0]) == 32, "all of them fit"


@pytest.mark.parametrize(
    "name", ["a b.test", "a\\000b.test", "*.test", ".", "x.-a.test", "a\\.b.test", "%s.test", "a/b.test"]
)
def test_names_that_no_host_has_are_unknown(name: str) -> None:
    assert asked(name).problem == "unknown"


def test_other_questions_are_answered_without_records() -> None:
    two = dns.message.make_query("a.test", "A")
    two.question.append(dns.message.make_query("b.test", "A").question[0])
    query = known(two)
    assert query.problem == "malformed" and read(query.reply("malformed")).rcode() == 1
    status = dns.message.make_query("a.test", "A")
    status.set_opcode(dns.opcode.STATUS)
    assert known(status).problem == "unsupported"
    assert known(dns.message.make_query("version.bind", "TXT", "CH")).kind == "other"


def test_names_of_other_scripts_and_long_names_are_names() -> None:
    international = known(dns.message.make_query(dns.name.from_unicode("é.test"), "A"))
    assert (international.name, international.problem) == ("xn--9ca.test", None)
    longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    assert asked(longest).name == longest and asked(longest).problem is None


def test_what_is_no_question_is_not_answered() -> None:
    header = b"\0\1\1\0\0\1\0\0\0\0\0\0"
    loop = header + b"\xc0\x0c\0\1\0\1"  # a name that points to itself
    response = dns.message.make_response(dns.message.make_query("a.test", "A")).to_wire()
    for wire in (b"", b"x", header, loop, header + b"\x3f" + b"a" * 10, response, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert read_query(wire) is None


@given(st.binary(max_size=600), st.booleans())
def test_no_bytes_raise(wire: bytes, is_headed: bool) -> None:
    query = read_query((b"\0\1\1\0\0\1\0\0\0\0\0\0" if is_headed else b"") + wire)
    assert query is None or read(query.reply(query.problem or "found", ("10.0.0.1",)))
