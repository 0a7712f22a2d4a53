"""Where one request ends and the next begins: requests that two readers could read differently."""

import json
import time
from collections.abc import Iterable
from typing import Final

from tests.attack.live.doors import Door
from tests.attack.live.rows import Outcome, attack, judged
from tests.attack.live.world import World, key_of
from tests.support.credentials import bearer
from tests.support.mcp_clients import modern_headers
from tests.support.wire import ACCEPT, Answer, Wire, ask, call_body, head, post, rpc, statuses

EVERY_DOOR: Final = ("direct", "nginx", "nginx+ws", "haproxy")
ROUNDS: Final = 12
SMUGGLED: Final = "smuggled"

Headers = list[tuple[str, str]]


def honest_call(name: str) -> bytes:
    return rpc(call_body("count", request_id=name), bearer(key_of("victim")))


def hidden() -> bytes:
    """A whole request, to be sent as the body of another. It takes a moment, so that its answer comes in the next
    one's place, and is large, so that a proxy which has buffered it sends it after the head."""
    arguments = {"from": SMUGGLED, "padding": "p" * 40_000}
    return rpc(call_body("slow", arguments, request_id=SMUGGLED), bearer(key_of("mallory")))


def outer(body: bytes) -> Headers:
    """The headers of a request of the attacker's with that body."""
    given = {"Host": "localhost", "Content-Type": "application/json", "Accept": ACCEPT, **bearer(key_of("mallory"))}
    return [*given.items(), ("Content-Length", str(len(body)))]


def is_smuggled(answers: Iterable[Answer]) -> bool:
    return any(SMUGGLED.encode() in answer.body for answer in answers)


def others_get_their_own(door: Door, rounds: int, send: bytes, *rest: bytes) -> tuple[int, int, list[Answer]]:
    """In how many rounds was somebody else's next call answered with its own answer, in how many did a second answer
    come to the attacker; and the answers of the last round."""
    own = doubled = 0
    answers: list[Answer] = []
    for number in range(rounds):
        name = f"victim-{number}"
        with Wire(door.port) as wire, Wire(door.port) as theirs:
            wire.send(send, *rest)
            answers = wire.answers(most=1, first_s=1.0)
            theirs.send(honest_call(name))
            answer = theirs.answer()
            answers += wire.answers(first_s=0.25)
        doubled += len(answers) > 1 or is_smuggled(answers)
        own += answer is not None and answer.message().get("id") == name and SMUGGLED.encode() not in answer.body
    return own, doubled, answers


def upgraded(world: World, door: Door, token: str, more: Headers) -> Outcome:
    body = hidden()
    rounds = ROUNDS if door.name == "nginx+ws" else 4
    headers = [*outer(body), ("Connection", "Upgrade"), ("Upgrade", token), *more]
    own, doubled, answers = others_get_their_own(door, rounds, head(headers=headers), body)
    came = f"{statuses(answers)}; {own}/{rounds} others got their own"
    return judged(came, own == rounds and not doubled)


@attack(1, "Upgrade: websocket, Content-Length, a pause, a second request as the body", doors=EVERY_DOOR)
def upgrade_with_a_request_as_its_body(world: World, door: Door) -> Outcome:
    key = [("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")]
    return upgraded(world, door, "websocket", key)


@attack(1, "Upgrade: anything, Content-Length, a pause, a second request as the body", doors=EVERY_DOOR)
def upgrade_to_anything_with_a_request_as_its_body(world: World, door: Door) -> Outcome:
    return upgraded(world, door, "x", [])


@attack(1, "two principals in turn: whose answer is it, after a call hidden behind Upgrade", doors=EVERY_DOOR)
def two_principals_on_shared_connections(world: World, door: Door) -> Outcome:
    rounds = ROUNDS if door.name == "nginx+ws" else 4
    wrong = 0
    body = rpc(call_body("whoami", {"padding": "p" * 40_000}, request_id="m"), bearer(key_of("mallory")))
    request = head(headers=[*outer(body), ("Connection", "Upgrade"), ("Upgrade", "h2c")]) + body
    for number in range(rounds):
        with Wire(door.port) as wire, Wire(door.port) as theirs:
            wire.send(request)
            wire.answers(most=1, first_s=1.0)
            for who, place in (("victim", theirs), ("guest", theirs), ("victim", theirs)):
                place.send(rpc(call_body("whoami", request_id=f"{who}{number}"), bearer(key_of(who))))
                answer = place.answer()
                mine = answer is not None and answer.message().get("id") == f"{who}{number}"
                wrong += not mine or answer is None or f"api-key:{who}" not in answer.text()
    return judged(f"{wrong} of {3 * rounds} answers were somebody else's", wrong == 0)


@attack(1, "an honest offer of h2c with a body", doors=EVERY_DOOR)
def an_offer_of_h2c_keeps_its_body(world: World, door: Door) -> Outcome:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    body = call_body("echo", {"text": "kept"})
    request = rpc(body, {**bearer(key_of("mallory")), **offer})
    place = request.index(b"\r\n\r\n") + 4
    with Wire(door.port) as wire:
        wire.send(request[:place], request[place:])
        answer = wire.answer(3.0)
    if answer is None:
        return judged("no answer", False)
    refused = 400 <= answer.status < 500
    return judged(
        f"{answer.status}{' ' + answer.error() if refused else ', body read'}"[:60], refused or "kept" in answer.text()
    )


CHUNKED: Final = ("Transfer-Encoding", "chunked")
AMBIGUOUS: Final[dict[str, Headers]] = {
    "TE and CL": [CHUNKED],
    "TE after CL": [("Content-Length", "6"), CHUNKED],
    "TE twice": [CHUNKED, CHUNKED],
    "TE: xchunked": [("Transfer-Encoding", "xchunked")],
    "TE: chunked, identity": [("Transfer-Encoding", "chunked, identity")],
    "TE: identity": [("Transfer-Encoding", "identity")],
    "TE with a space before the colon": [("Transfer-Encoding ", "chunked")],
    "TE with a tab": [("Transfer-Encoding", "\tchunked")],
    "TE with a vertical tab": [("Transfer-Encoding", "\x0bchunked")],
    "folded TE": [("Transfer-Encoding", "\r\n chunked")],
    "TE in quotes": [("Transfer-Encoding", '"chunked"')],
    "two CL": [("Content-Length", "0")],
    "CL list": [("Content-Length", "0, 0")],
    "a second header after a bare line feed": [("X-A", "b\nTransfer-Encoding: chunked")],
    "a second header after a bare return": [("X-A", "b\rTransfer-Encoding: chunked")],
    "NUL in a header": [("X-A", "b\x00c")],
}
LENGTHS: Final = ("+5", "-5", "0x5", "5,6", "5;5", "5 5", "5.0", "5e0", "", "99999999999999999999", "\xb2")


def ambiguous(corpus: dict[str, bytes], door: Door) -> Outcome:
    """Each request holds another one: at most one answer, never that of the other."""
    through: list[str] = []
    came: list[str] = []
    for name, request in corpus.items():
        with Wire(door.port) as wire:
            wire.send(request)
            answers = wire.answers(within_s=0.1, first_s=1.0)
        if is_smuggled(answers) or sum(answer.status < 400 for answer in answers) > 1:
            through.append(name)
        came.append(statuses(answers).split()[0])
    counts = ", ".join(f"{came.count(status)}x {status}" for status in sorted(set(came)))
    return judged(f"THROUGH: {', '.join(through)}" if through else counts, not through)


@attack(
    1, f"{len(AMBIGUOUS)} mixtures of Transfer-Encoding and Content-Length around a second request", doors=EVERY_DOOR
)
def lengths_that_two_readers_read_differently(world: World, door: Door) -> Outcome:
    corpus = {}
    for name, odd in AMBIGUOUS.items():
        for inner in (b"0\r\n\r\n" + hidden(), hidden()):
            first = [(n, v) for n, v in outer(inner) if n != "Content-Length"]
            corpus[f"{name} {len(inner)}"] = head(headers=[*first, ("Content-Length", str(len(inner))), *odd]) + inner
    return ambiguous(corpus, door)


@attack(1, "odd lengths and chunk sizes (+5, 0x5, lists, signs, huge, bare line feeds) around a second request")
def odd_numbers(world: World, door: Door) -> Outcome:
    corpus = {}
    for form in LENGTHS:
        first = [(n, v) for n, v in outer(b"") if n != "Content-Length"]
        corpus[f"CL {form}"] = head(headers=[*first, ("Content-Length", form)]) + b"12345" + hidden()
    for size in (b"5;x=y", b"+5", b"0x5", b"5 ", b" 5", b"05", b"5\n", b"5\r", b"FFFFFFFFFFFFFFFFF", b"-1", b"5;\nx"):
        first = [(n, v) for n, v in outer(b"") if n != "Content-Length"]
        chunks = size + b"\r\n12345\r\n0\r\n"
        corpus[f"chunk {size!r}"] = head(headers=[*first, CHUNKED]) + chunks + b"X: " + hidden()
    return ambiguous(corpus, door)


def refused(request: bytes, door: Door) -> str:
    with Wire(door.port) as wire:
        wire.send(request)
        answers = wire.answers(within_s=0.1, first_s=2.0)
    return statuses(answers)


@attack(1, "two Hosts, none, an absolute URL of another host, HTTP/1.0, 0.9 and 2.0, Expect", doors=EVERY_DOOR)
def request_lines_and_hosts(world: World, door: Door) -> Outcome:
    body = json.dumps(call_body("count")).encode()
    given = [(n, v) for n, v in outer(body) if n != "Host"] + [
        (n, v) for n, v in modern_headers(call_body("count")).items() if n != "Accept"
    ]
    host = ("Host", "localhost")
    path = "/servers/tool/mcp"
    cases: dict[str, tuple[bytes, tuple[str, ...]]] = {
        "two Hosts": (head(headers=[host, ("Host", "evil.example"), *given]) + body, ("400", "closed")),
        "no Host": (head(headers=given) + body, ("400", "421", "closed")),
        "Host with a path": (head(headers=[("Host", "localhost/x"), *given]) + body, ("400", "421", "closed")),
        "absolute, same host": (head(path=f"http://localhost{path}", headers=[host, *given]) + body, ("200", "400")),
        "absolute, other host": (
            head(path=f"http://evil.example{path}", headers=[host, *given]) + body,
            ("400", "421"),
        ),
        "HTTP/1.0": (head(headers=[host, *given], version="1.0") + body, ("200", "400", "505")),
        "HTTP/0.9": (b"GET /healthz\r\n\r\n", ("400", "closed", "505")),
        "HTTP/2.0": (head(headers=[host, *given], version="2.0") + body, ("400", "505", "closed")),
        "HTTP/1.9": (head(headers=[host, *given], version="1.9") + body, ("200", "400", "505", "closed")),
        # For a reader of HTTP/1 these are two requests, and each is refused.
        "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ("400", "400 400", "405", "505", "closed")),
        "Expect: 100-continue": (head(headers=[host, ("Expect", "100-continue"), *given]) + body, ("200",)),
        "Expect: x": (head(headers=[host, ("Expect", "x"), *given]) + body, ("200", "400", "417")),
        "CONNECT": (
            head("CONNECT", "evil.example:443", [("Host", "evil.example:443")]),
            ("400", "404", "405", "421", "501", "closed"),
        ),
    }
    came = {name: refused(request, door) for name, (request, _) in cases.items()}
    # What a proxy makes a plain request of is a plain request: its own version, and the Host that it passes on.
    proxied = () if door.is_direct else ("HTTP/2.0", "absolute, other host")
    bad = [
        f"{name}: {came[name]}"
        for name, (_, good) in cases.items()
        if came[name] not in good and not (name in proxied and came[name] == "200")
    ]
    shown = ", ".join(
        f"{name} {status}" for name, status in came.items() if name in ("two Hosts", "no Host", "HTTP/0.9")
    )
    return judged("; ".join(bad) or shown, not bad)


@attack(
    1,
    "Upgrade with a second request as the body, two Hosts, HTTP/0.9 at the operators' and the internal listener",
    doors=("direct",),
)
def the_other_listeners(world: World, door: Door) -> Outcome:
    wrong: list[str] = []
    inner = head("GET", "/metrics", [("Host", "localhost")])
    upgrade = [("Host", "localhost"), ("Connection", "Upgrade"), ("Upgrade", "x"), ("Content-Length", str(len(inner)))]
    places: dict[str, int | str] = {"operators": world.admin_port}
    places |= {f"internal {port}": port for port in world.listening()}
    for name, place in places.items():
        with Wire(place) as wire:
            wire.send(head("GET", "/metrics", upgrade), inner)
            answers = wire.answers(within_s=0.3)
        if len(answers) > 1:
            wrong.append(f"{name}: {len(answers)} answers to one request")
        for request in (head("GET", "/metrics", [("Host", "a"), ("Host", "b")]), b"GET /metrics\r\n\r\n"):
            with Wire(place) as wire:
                wire.send(request)
                answers = wire.answers(within_s=0.1, first_s=1.0)
            if any(answer.status < 400 for answer in answers):
                wrong.append(f"{name}: {request.split(bytes([13]))[0].decode()} {statuses(answers)}")
    return judged("; ".join(wrong) or f"one answer or none at {len(places)} listeners", not wrong)


@attack(1, "the same at the socket of a session's state", doors=("direct",))
def the_socket_of_a_sessions_state(world: World, door: Door) -> Outcome:
    told = json.loads(ask(door.port, rpc(call_body("env"), bearer(key_of("mallory")), "/servers/own/mcp")).text())
    path, access = told["MCP_SESSION_SOCKET"], told["MCP_SESSION_ACCESS"]
    inner = head("GET", "/v1/state/secret", [("Host", "session"), ("Authorization", f"Bearer {access}")])
    headers = [("Host", "session"), ("Connection", "Upgrade"), ("Upgrade", "x"), ("Content-Length", str(len(inner)))]
    with Wire(path) as wire:
        wire.send(head("GET", "/v1/state/x", [*headers, ("Authorization", f"Bearer {access}")]), inner)
        answers = wire.answers(within_s=0.3)
    return judged(statuses(answers), len(answers) <= 1)


@attack(2, "a good JWT, then an API key, then nobody, pipelined on one connection")
def authority_is_not_inherited_when_pipelined(world: World, door: Door) -> Outcome:
    return inherits(world, door, pause_s=0.0)


@attack(2, "the same one after the other on a connection that is kept")
def authority_is_not_inherited_on_a_kept_connection(world: World, door: Door) -> Outcome:
    return inherits(world, door, pause_s=0.1)


def inherits(world: World, door: Door, pause_s: float) -> Outcome:
    """Somebody new after somebody with everything: notes may not be written, and nobody is nobody."""
    token = world.issuer.token("chief", may=["notes.write"], mcp={"trust": "direct"})
    wrong = 0
    came: list[Answer] = []
    for _ in range(4):
        key = bearer(key_of(world.fresh()))
        requests = {
            "chief": rpc(call_body("notes", request_id="chief"), bearer(token)),
            "guest": rpc(call_body("notes", request_id="guest"), key),
            "who": rpc(call_body("whoami", request_id="who"), key),
            "nobody": rpc(call_body("notes", request_id="nobody")),
        }
        came = one_connection(door, list(requests.values()), pause_s)
        named = dict(zip(requests, came, strict=False))
        wrong += "guest" in named and "ran" in named["guest"].text()
        wrong += "who" in named and '"direct"' in named["who"].text()
        wrong += "nobody" in named and named["nobody"].status == 200
        wrong += "ran" not in named["chief"].text()
    return judged(f"{statuses(came)}; {wrong} inherited", wrong == 0)


def one_connection(door: Door, requests: list[bytes], pause_s: float) -> list[Answer]:
    """All at once, or each after the answer to the one before it."""
    came: list[Answer] = []
    with Wire(door.port) as wire:
        if not pause_s:
            wire.send(b"".join(requests))
            return wire.answers(within_s=1.0, most=len(requests))
        for request in requests:
            wire.send(request)
            answer = wire.answer()
            if answer is None:
                break
            came.append(answer)
    return came


@attack(1, "40 requests at once on one connection, answers not read for a moment")
def many_pipelined(world: World, door: Door) -> Outcome:
    with Wire(door.port) as wire:
        wire.send(b"".join(rpc(call_body("count", request_id=n), bearer(key_of("mallory"))) for n in range(40)))
        time.sleep(0.2)
        answers = wire.answers(within_s=1.0, most=60)
    ids = [answer.message().get("id") for answer in answers if answer.status == 200]
    return judged(f"{len(ids)} answered, in order", ids == list(range(len(ids))))


@attack(13, "DNS rebinding: Host and Origin of a page elsewhere, at a gateway that asks nobody who they are")
def dns_rebinding(world: World, door: Door) -> Outcome:
    place = world.open_doors[door.name].port
    body = json.dumps(call_body("count")).encode()
    shape = modern_headers(call_body("count"))
    foreign = ask(place, post(body, {**shape, "Host": "evil.example", "Origin": "http://evil.example"}))
    origin = ask(place, post(body, {**shape, "Host": "localhost", "Origin": "http://evil.example"}))
    return judged(f"{foreign.status}, {origin.status}", foreign.status in (403, 421) and origin.status == 403)
