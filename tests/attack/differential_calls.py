"""What clients do, from a seed, for `tests.attack.fast_path_differential`: mostly calls that are like the last one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.support.mcp_clients import VERSION

SLOTS: Final = 6
"""Sessions at a time: even ones are legacy, odd ones modern. The last two have one server, all others two."""
CONNS: Final = 2 * SLOTS

_RESERVED: Final = "io.github.mcp-session-gateway"
_ARGUMENTS: Final[Sequence[str]] = (
    *("{}", "[]", "null", "1", '"x"', '{"a":1,"a":2}', '{"n":1e400}', '{"n":' + "9" * 400 + "}", '{"n":-0}', "", " "),
    *('{"n":1.0}', '{"n":"5"}', '{"n":01}', '{"n":1,}', '{"n":1', '{"n":1}}', '{"n":NaN}', '{"n":1}//', '{"n":1e5}'),
    *('{"n":1},"name":"twin"', '{},"arguments":{"n":2}', '{} ,"_meta":{"x":1}', '{}},"id":5,"x":{"y":{}', '{"a":"}"}'),
    *('{"id":7}', '{"arguments":{"n":3}}', '{"progressToken":9}', '{"\\u0061":1}', '{"a":"\\ud800"}', '{"a":"\udcff"}'),
    *('{"a":' + "[" * depth + "]" * depth + "}" for depth in (300, 3_000)),
    *('{"p":"' + "p" * size + '"}' for size in (7_900, 9_000, 70_000)),
    *('{"a":"€"}', '{"a":"\x01"}', ' {"n" : 1 } ', '{"n":1}\t\r\n', '{"n":0.1e-400}', "\ufeff{}", '{"\udcff":1}'),
    *('{"a":"%b %(n)d"}', '{"a":"7770777"}', '{"a":"{\\"the\\":\\"arguments\\"}"}', '{"n":1,"a":"badword"}'),
    *(f'{{"a":"{_RESERVED}/x"}}', f'{{"_meta":{{"{_RESERVED}/x":1}}}}', '{"n":1, "workspace":"w"}', '{"a":\n[1]}'),
)
_IDS: Final = (
    *('"abc"', '"a-b_c.d"', '"with \\" quote"', '"€"', "1.5", "-1", "0", "007", "1e3", "null", "true", "[]", '""', ""),
    *("9" * 15, "9" * 16, "9" * 30, f'"{"x" * 36}"', f'"{"x" * 60}"', f'"{"x" * 300}"', '"\\u0031"', " 5 ", '1,"id":2'),
    *('"1"', '"a\\nb"', '7,"method":"tools/list"', '"\udcff"', "-0", "1.0", "7770777", '"Proof-7_7.0"', "{}"),
)
_META: Final = (
    *('"x":1', '"x":1,"x":2', f'"{_RESERVED}/session":"s"', f'"{_RESERVED}":1', '"progressToken":1,"progressToken":2'),
    *('"traceparent":"00-0000000000000000000000000000000a-000000000000000b-01"', '"IO.github.mcp-session-gateway/x":1'),
)
_RESULTS: Final = (
    *('{"content":[],"isError":false}', '\r{"content" : [ ]\t}', '{"content":[],"isError" :\r true}', "null", "[]"),
    *('{"content":[],"\\u0069sError":true}', '{"content":[{"type":"text","text":"\\"isError\\":true"}]}', '"x"', "5"),
    *('{"content":[],"content":[1]}', '{"n":1e400}', '{"n":NaN}', '{"a":"\u2028\\n\\r\\u0000"}', '{"isError":1}'),
    *(f'{{"_meta":{{"{_RESERVED}/session":"x"}},"content":[]}}', f'{{"a":{{"_meta":{{"{_RESERVED}":1}}}}}}'),
    *(f'{{"_meta":{{"\\u0069{_RESERVED[1:]}/session":"x"}}}}', '{"resultType":"task","content":[]}'),
    *('{"resultType":"input_required"}', '{"resultType":"complete","content":[],"x":"input_required"}'),
    *('{"a":' + "[" * 5_000 + "]" * 5_000 + "}", '{"p":"' + "p" * 80_000 + '"}'),
)
_LINES: Final = (  # with which a server answers, `@ID` being the number of the call
    *(f'{{"jsonrpc":"2.0","id":@ID,"result":{result}}}' for result in _RESULTS),
    *('{"result":{"content":[]},"id":@ID,"jsonrpc":"2.0"}', '{"id":@ID,"result":{"content":[]}}', "no JSON", "\r"),
    *('{"jsonrpc":"2.0","id":@ID,"result":{},"error":{"code":1,"message":"x"}}', '{"jsonrpc":"2.0","id":@ID}'),
    *('{"jsonrpc":"2.0","id":@ID,"error":{"code":-32001,"message":"x"}}', '{"jsonrpc":"2.0","id":null,"result":{}}'),
    *('{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}', '{"jsonrpc":"2.0","id":"@ID","result":{}}'),
    *('{"jsonrpc":"2.0","id":999999,"result":{}}', '{"jsonrpc":"2.0","id":@ID,"method":"ping"}'),
    '{"jsonrpc":"2.0","id":@ID,"method":"notifications/message","params":{"level":"info","data":"x"}}',
    '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}',
    '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID,"progress":1}}',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One step on a connection: each session has two, `conn ^ 1` is the other one. `calls` are bodies, and the tools
    that they name. `number` is the id of the first of them, if that is an integer."""

    kind: str
    conn: int
    calls: Sequence[tuple[bytes, str]] = ()
    cuts: Sequence[int] = ()
    trace: str = ""
    number: int = 0


class _Client:
    """Makes the calls of one connection, of one form."""

    def __init__(self, random: Random, conn: int) -> None:
        self._random, slot = random, conn // 2 % SLOTS
        self._is_modern, self._prefix = slot % 2 == 1, "" if slot >= SLOTS - 2 else "a__"
        self._comma, self._colon = random.choice(((",", ":"), (", ", ": "), (" ,\n ", " : ")))
        self._order, self._inside = random.sample(range(4), 4), random.sample(range(3), 3)
        self._has_token, self._tool, self.number = random.random() < 0.5, "echo", 0
        self._is_bare = False

    def does(self, what: str, **more: Any) -> tuple[bytes, str]:
        """A call that has the server do something."""
        return self.call(json.dumps({"n": self.number + 1, "does": what, **more}), odd=False)

    def call(self, arguments: str = "", *, odd: bool = True) -> tuple[bytes, str]:
        """A call, and the name of its tool. `odd`: something of it may be unusual."""
        random = self._random
        self.number += 1
        if odd and random.random() < 0.03:
            self._tool = random.choice(("echo", "echo", "twin", "number"))
            self._is_bare = random.random() < 0.2
        arguments = arguments or ("" if odd and self._is_bare else self._usual())
        name, number, token, more, order = self._tool, str(self.number), f'"t-{self.number}"', "", self._order
        match random.randrange(80 if odd else 1):
            case 1 | 2:
                arguments = random.choice(_ARGUMENTS)
            case 3:
                number = random.choice((*_IDS, str(random.randrange(1 << random.randrange(1, 70)))))
            case 4:
                token = random.choice((number, *_IDS))
            case 5:
                more = random.choice(_META)
            case 6:
                name = random.choice(("missing", "extra", "number"))
            case 7:
                order = random.sample(range(4), 4)
            case 8 | 9 | 10:
                does = random.choices(("fail", "error", "say", "tick", "change", "exit"), (4, 4, 16, 4, 2, 0.3))[0]
                lines = {"lines": [random.choice(_LINES)]} if does == "say" else {}
                arguments = json.dumps({"n": self.number, "does": does, **lines})
        name = name if odd and random.random() < 0.003 else self._prefix + name
        data = self._text(number, name, arguments, token, more, order).encode("utf-8", "surrogateescape")
        if odd and random.random() < 0.01:
            place = random.randrange(len(data))
            data = data[:place] + random.choice((b"", b" ", b"}", b'"', b",", b"\xff", b"\\")) + data[place + 1 :]
        return data, name

    def _usual(self) -> str:
        random = self._random
        beside = random.choice(({}, {}, {}, {}, {"text": "ä" * random.randrange(40)}, {"workspace": "w"}))
        return json.dumps({"n": self.number, **beside})

    def _text(self, number: str, name: str, arguments: str, token: str, more: str, order: Sequence[int]) -> str:
        meta = [f'"progressToken"{self._colon}{token}'] if self._has_token else []
        if self._is_modern:
            own = {"protocolVersion": VERSION, "clientInfo": {"name": "d", "version": "1"}, "clientCapabilities": {}}
            meta += [json.dumps({f"io.modelcontextprotocol/{key}": value})[1:-1] for key, value in own.items()]
        meta += [more] if more else []
        inside = [f'"name"{self._colon}{json.dumps(name)}']
        inside += [f'"arguments"{self._colon}{arguments}'] if arguments else []
        inside += [f'"_meta"{self._colon}{self._object(meta)}'] if meta else []
        params = self._object([inside[at] for at in self._inside if at < len(inside)])
        parts = ('"jsonrpc":"2.0"', f'"id"{self._colon}{number}', '"method": "tools/call"', f'"params":{params}')
        return self._object([parts[at] for at in order])

    def _object(self, members: Sequence[str]) -> str:
        return "{" + self._comma.join(members) + "}"


def operations(random: Random) -> Iterator[Op]:
    """Steps without an end: calls that repeat, then something of another kind."""
    clients = [_Client(random, conn) for conn in range(CONNS)]
    while True:
        conn = random.randrange(CONNS)
        for _ in range(random.choice((1, 5, 20, 50))):
            cuts = sorted(random.randrange(1, 900) for _ in range(random.choice((*(0,) * 20, 1, 2))))
            trace = f"00-{random.randrange(1, 1 << 30):032x}-{1:016x}-01" if random.random() < 0.02 else ""
            yield Op(kind="call", conn=conn, calls=[clients[conn].call()], cuts=cuts, trace=trace)
        yield _other(random, clients[conn], clients[conn ^ 1], conn)


def _other(random: Random, mine: _Client, other: _Client, conn: int) -> Op:
    kinds = ("rest", "reconnect", "pipeline", "release", "cancel", "leave", "list", "watch", "end", "slow")
    kind, number = random.choices(kinds, (20, 20, 30, 30, 20, 20, 10, 8, 4, 0.5))[0], mine.number + 1
    calls: list[tuple[bytes, str]] = []
    match kind:
        case "pipeline":
            calls = [mine.call(odd=random.random() < 0.5) for _ in range(2)]
        case "release" | "cancel" | "leave":
            calls = [mine.does("hold"), other.call(odd=False), other.does("release")]
        case "slow":
            calls = [mine.does("slow", seconds=random.choice((0.7, 1.5)))]
        case "end" | "watch":
            calls = [mine.call(odd=False) for _ in range(3)]
    return Op(kind=kind, conn=conn, calls=calls, number=number)


def together(random: Random, connections: int, calls: int) -> Iterator[Op]:
    """As many calls, on connections of their own that all have one in flight."""
    clients = [_Client(random, conn) for conn in range(connections)]
    for conn in range(CONNS):  # which of several calls at once would report an earlier restart is not decided
        yield Op(kind="call", conn=conn, calls=[_Client(random, conn).call(odd=False)])
    for _ in range(calls // connections):
        yield Op(kind="together", conn=CONNS, calls=[client.call(odd=False) for client in clients])
