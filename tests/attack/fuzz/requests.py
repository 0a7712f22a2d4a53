"""Bytes that look like HTTP/1.1 requests, more or less, and the pieces in which they arrive.

Made from a seed, so that a finding can be made again. A request is plain but for a few oddities: one that is odd
everywhere is refused at its first one, and says nothing about the others. Hypothesis, which makes the messages of
`envelope`, would spend nine tenths of the time here on choosing.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Final

_METHODS: Final = (
    "GET", "DELETE", "OPTIONS", "HEAD", "PUT", "CONNECT", "PRI", "post", "M-SEARCH", "G ET", "", "GET\t", "BREW",
)  # fmt: skip
_TARGETS: Final = (
    "/servers/x/mcp?a=b", "/", "*", "http://localhost/mcp", "http://evil.example/mcp?x", "HTTP://localhost/mcp",
    "http://localhost", "//evil.example/mcp", "localhost:80", "/a b", "/%00", "/#x", "http://a:b@c/", "/\x7f",
    "/\xe9", "",
    "mcp", "/" + "a" * 300, "/\x00", "/a\tb", "http://[::1]/x", "http://[/x", "http:///x", "?x", "https://h/p",
)  # fmt: skip
_VERSIONS: Final = (
    "HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "http/1.1", "HTTP/1.1 ", "HTTP/11", "",
    "HTTP/1.1\t", "HTTP/01.1",
)  # fmt: skip
_LENGTHS: Final = (
    "+{n}", "-{n}", "0{n}", "{n}, {n}", "{n},0", "0x{n:x}", "{n}.0", "{m}", "", " ", "{n} x", "{n} ", "\t{n}",
    "{n}\x0b",
    "99999999999999999999", "\xb9", "{n}_0", "000000000000000000000{n}",
)  # fmt: skip
_CODINGS: Final = (
    "Chunked", "xchunked", "gzip, chunked", "chunked, chunked", "chunked, identity", "identity", "", "chunked;q=1",
    '"chunked"', "\tchunked", "chunked\x0b", "chunked\x00", "chunked ,", ",chunked", "chunked\xa0",
)  # fmt: skip
_HEADERS: Final = (
    "Host: ", "Host: a b", "Host: evil.example/x", "host: localhost", "Host: a\tb", "Host: a,b", "Connection: close",
    "Connection: keep-alive", "Connection: Upgrade", "Connection: close, Upgrade", "Connection: Transfer-Encoding",
    "Connection: upgrade\r\nUpgrade: h2c", "Connection: Upgrade\r\nUpgrade: websocket", "Upgrade: x",
    "Connection: cLoSe",
    "Connection: keep-alive, close", "Connection: close\r\nConnection: keep-alive",
    "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA", "Expect: 100-continue", "Expect: 100-Continue", "Expect: x",
    "Trailer: X-T",
    "X-A:", "X-A:  b\t", "X-A: \xe9", "X-A: b\x00c", "X-A: b\rc", "X-A: b\nc", "X-A: b\r\n c", "X-A: b\r\n\tc",
    "X A: b",
    "X-A : b", " X-A: b", ": b", "X-A\x00: b", "X(A): b", "X-A", "X\xe9: b", "X-A: \x01", "X-A: \x7f", "X-A: b\r\n",
    "Transfer-Encoding: chunked", "Transfer_Encoding: chunked", "Content_Length: 3", "Keep-Alive: x",
    "Content-Length: 3",
    "Transfer-Encoding : chunked", "Transfer-Encoding: identity", "Proxy-Connection: close", "Content-Length : 3",
    "TE: trailers", "Content-Length: 0", "X-Long: " + "l" * 5_000, "Transfer-Encoding:\r\n chunked",
    "X: " + "\r\nX: " * 40,
)  # fmt: skip
_ENDS: Final = ("\n", "\r", "\r\r\n", "\n\r", "\r\n ", " \r\n", "\x0b\r\n")
_SIZES: Final = (
    "{n:X};a=b", "0{n:x}", "+{n:x}", "0x{n:x}", "{n:x} ", " {n:x}", "{m:x}", "-1", "FFFFFFFFFFFFFFFFF",
    '{n:x};a="b\n"', "",
    "{n:x}\t", "{n:x};", "{n:x} ;a", "{n:x};a\rb", "{n:x}\x00", "00000000000000000000000{n:x}",
    "{n:x};" + "e" * 3_000,
)  # fmt: skip
_BODIES: Final = (
    "", "{}", "hello", '{"jsonrpc":"2.0","id":1,"method":"ping"}', "0\r\n\r\n", "x" * 700, "\r\n", "\x00\xff",
)  # fmt: skip
_SMUGGLED: Final = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
_TRAILERS: Final = (
    "X-T: u\r\n", "Content-Length: 5\r\n", "Host: a\r\n", "bad\r\n", "Transfer-Encoding: chunked\r\n", "X: a\nb\r\n",
)  # fmt: skip
_LAST: Final = ("00", "0;x", "", "0 ", "0\n", "000000000000000000000000")
_BETWEEN: Final = ("\r\n", "\n", "\r\n\r\n", " ", "\x00", "GARBAGE\r\n\r\n", "\r")
_INSERTED: Final = (b"\r\n", b"\n", b"\r", b" ", b"\x00", b"0\r\n\r\n", b":", b"\r\n\r\n", _SMUGGLED.encode())


class _Maker:
    """Makes requests of which so many parts, on average, are odd."""

    def __init__(self, random: Random, oddity: float) -> None:
        self._random = random
        self._oddity = oddity

    def part(self, plain: str, odd: Sequence[str]) -> str:
        return self._random.choice(odd) if self._random.random() < self._oddity else plain

    def request(self) -> str:
        random = self._random
        line = f"{self.part('POST', _METHODS)} {self.part('/mcp', _TARGETS)} {self.part('HTTP/1.1', _VERSIONS)}"
        headers = [] if random.random() < self._oddity else ["Host: localhost"]
        body = random.choice(_BODIES) if random.random() < 0.8 else _SMUGGLED
        framing = random.choice(("length", "length", "chunks", "chunks", "none"))
        if framing == "length" or random.random() < self._oddity:
            form = self.part("{n}", _LENGTHS)
            headers.append(f"Content-Length: {form.format(n=len(body), m=random.randrange(12))}")
        if framing == "chunks":
            headers.append(f"Transfer-Encoding: {self.part('chunked', _CODINGS)}")
            body = self.chunks()
        elif framing == "none":
            body = _SMUGGLED if random.random() < 0.3 else ""
        while random.random() < self._oddity * 2:
            headers.append(random.choice(_HEADERS))
        random.shuffle(headers)
        return "".join(part + self.part("\r\n", _ENDS) for part in (line, *headers, "")) + body

    def chunks(self) -> str:
        parts = []
        for _ in range(self._random.randrange(3)):
            body = self._random.choice(_BODIES[1:])
            size = self.part("{n:x}", _SIZES).format(n=len(body), m=len(body) + self._random.choice((-1, 1)))
            parts.append(size + self.part("\r\n", _ENDS) + body + self.part("\r\n", _ENDS))
        trailers = self.part("", _TRAILERS)
        return "".join(parts) + self.part("0", _LAST) + self.part("\r\n", _ENDS) + trailers + self.part("\r\n", _ENDS)


def stream(random: Random) -> bytes:
    """What a client sends on one connection: requests one after the other."""
    maker = _Maker(random, random.choice((0.02, 0.05, 0.1, 0.2)))
    text = "".join(maker.request() + maker.part("", _BETWEEN) for _ in range(random.choice((1, 1, 2, 2, 3, 5, 20))))
    data = text.encode("latin-1", "replace")
    return mutated(random, data) if random.random() < 0.2 else data


def repeated(random: Random) -> list[bytes]:
    """What a client sends that repeats one head, in pieces: each request by itself, whole or in two."""
    lines = ["POST /mcp HTTP/1.1", "Host: localhost", *random.sample(("X-A: b", "Accept: */*", "User-Agent: c"), 2)]
    lines.insert(random.randrange(1, len(lines) + 1), "Content-Length: @")
    head, segments = "\r\n".join((*lines, "", "")), list[bytes]()
    for number in range(random.choice((4, 6, 10))):
        body = random.choice((*_BODIES[1:], _SMUGGLED, head.replace("@", "0") * 2))
        length, plain = str(len(body)), head
        if number > 1 and random.random() < 0.3:
            length = random.choice(_LENGTHS).format(n=len(body), m=random.randrange(12))
        if number > 1 and random.random() < 0.1:
            plain = head.replace("\r\n", random.choice((*_ENDS, f"\r\n{random.choice(_HEADERS)}\r\n")), 1)
        data = (plain.replace("@", length) + body).encode("latin-1", "replace")
        if random.random() < 0.1:
            data = mutated(random, data)
        cut = random.choice((len(data), data.find(b"\r\n\r\n") + 4, random.randrange(len(data) + 1)))
        segments += [data[:cut], data[cut:]]
    if random.random() < 0.2:
        place = random.randrange(len(segments))
        segments[place : place + 3] = [b"".join(segments[place : place + 3])]
    return [segment for segment in segments if segment]


def mutated(random: Random, data: bytes) -> bytes:
    """The same with a little damage."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(found) + 1)
        match random.randrange(4):
            case 0:
                found[place : place + 1] = bytes([random.randrange(256)])
            case 1:
                del found[place : place + random.randrange(9)]
            case 2:
                found[place:place] = random.choice(_INSERTED)
            case _:
                found[place:place] = found[place : place + random.randrange(50)]
    return bytes(found)


def pieces(random: Random, data: bytes) -> list[bytes]:
    """The pieces in which it arrives."""
    if random.random() < 0.05:
        return [data[place : place + 1] for place in range(len(data))]
    cuts = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 2, 5))))})
    return [data[begin:end] for begin, end in pairwise(cuts)]


def smaller(
    segments: Sequence[bytes], is_found: Callable[[Sequence[bytes]], bool], most_tries: int = 2_000
) -> list[bytes]:
    """As little of it as still shows the same: in one piece if that will do, then bytes left out, many at once."""
    best, tries = list(segments), 0
    joined = [b"".join(segments)]
    if is_found(joined):
        best = joined
    for size in (4_096, 1_024, 256, 64, 16, 4, 1):
        for number in range(len(best)):
            place = 0
            while place < len(best[number]) and tries < most_tries:
                tries += 1
                left = best[number][:place] + best[number][place + size :]
                attempt = [*best[:number], left, *best[number + 1 :]]
                if is_found(attempt):
                    best = attempt
                else:
                    place += size
    return [segment for segment in best if segment]
