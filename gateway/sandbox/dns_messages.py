"""Read the DNS queries of programs, and write the responses (RFC 1035). No I/O.

Only queries for addresses (A, AAAA) get records. All others get a response without any.
"""

import functools
import ipaddress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

import re2 as re

MAX_QUERY_BYTES: Final = 4_096
"""The maximum size of a query. A name has at most 255 bytes, and programs add options."""

TTL_S: Final = 30
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_ANSWERS: Final = {"found": 0, "failed": 2, "unknown": 3, "unsupported": 4, "refused": 5, "malformed": 1}
"""DNS response codes by outcome."""

_TRUNCATED: Final = 0x02  # in the third byte of a message

LookupOutcome = Literal["found", "failed", "unknown", "unsupported", "refused", "malformed"]


@functools.cache
def load() -> ModuleType:
    """Import dnspython and return it. This takes some 40 ms, so it is done only when a name is to be resolved."""
    import dns.message
    import dns.rrset

    return dns


@dataclass(frozen=True, slots=True)
class Query:
    """A DNS query of a program."""

    message: Any
    """The query as dnspython has parsed it (`dns.message.Message`)."""
    name: str
    """The name that is asked for, in lower case and without the final dot."""
    kind: str
    """The type of the wanted records: "A", "AAAA" or "other"."""
    problem: LookupOutcome | None = None
    """The outcome of an invalid or unsupported query, whose name is not looked up; None for others."""

    def reply(self, outcome: LookupOutcome, addresses: tuple[str, ...] = ()) -> bytes:
        """Return the encoded response to this query, with `outcome` and those `addresses` that have the wanted type.
        It is in the form for TCP: two bytes with its length, then the message."""
        wire = self._written(outcome, addresses, 65_535)
        return len(wire).to_bytes(2, "big") + wire

    def datagram(self, outcome: LookupOutcome, addresses: tuple[str, ...]) -> bytes:
        """Return the same response as `reply`, as a datagram that is no larger than the program accepts. If the records
        do not fit, return a truncated response, so that the program asks again over TCP."""
        size = max(512, min(self.message.payload, MAX_QUERY_BYTES))
        try:
            return self._written(outcome, addresses, size)
        except load().exception.TooBig:
            cut = bytearray(self._written(outcome, (), size))
            cut[2] |= _TRUNCATED
            return bytes(cut)

    def _written(self, outcome: LookupOutcome, addresses: tuple[str, ...], size: int) -> bytes:
        dns = load()
        response = dns.message.make_response(self.message, recursion_available=True)
        response.set_rcode(_ANSWERS[outcome])
        if wanted := [text for text in addresses if _kind(text) == self.kind]:
            name = self.message.question[0].name
            response.answer.append(dns.rrset.from_text(name, TTL_S, "IN", self.kind, *wanted))
        wire: bytes = response.to_wire(max_size=size)
        return wire


def _kind(address: str) -> str:
    return "A" if ipaddress.ip_address(address).version == 4 else "AAAA"


def read_query(wire: bytes) -> Query | None:
    """Parse a DNS message into a query. Return None if the bytes are no DNS message, or if they are a response."""
    dns = load()
    try:
        message = dns.message.from_wire(wire)
    except dns.exception.DNSException:
        return None
    if message.flags & 0x8000:  # a response
        return None
    if message.opcode() != 0:
        return Query(message, "", "other", "unsupported")
    if len(message.question) != 1:
        return Query(message, "", "other", "malformed")
    question = message.question[0]
    kind = {1: "A", 28: "AAAA"}.get(question.rdtype, "other") if question.rdclass == 1 else "other"
    # Bytes that no host name has are written as escapes here.
    name = question.name.to_text(omit_final_dot=True).lower()
    is_host = len(name) <= 253 and all(map(_LABEL.fullmatch, name.split(".")))
    return Query(message, name, kind, None if is_host else "unknown")
