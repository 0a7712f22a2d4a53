"""What operators see and rely on: the console, the audit trail, the terminal, readiness; and the wire of 2024-11-05."""

import contextlib
import math
import subprocess
import sys
import time
import urllib.parse
from collections import Counter

from tests.attack.live.doors import Door
from tests.attack.live.exhaustion import opened
from tests.attack.live.rows import Outcome, attack, judged
from tests.attack.live.world import OPERATOR, World, key_of
from tests.support.credentials import bearer
from tests.support.gateway_process import ROOT
from tests.support.wire import Answer, Wire, ask, head, hello, legacy, post

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@attack(16, "/sse and its address for messages without a credential, with doubled headers, with another Host")
def the_old_wire(world: World, door: Door) -> Outcome:
    host, accept = ("Host", "localhost"), ("Accept", "text/event-stream")
    path = "/servers/tool/sse"
    messages = f"{path}/messages?connection={'x' * 24}"
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    length = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    doubled = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]
    requests = {
        "stream": (head("GET", path, [host, accept]), ("401",)),
        "message": (head("POST", messages, [host, *length]) + body, ("401",)),
        "doubled": (head("GET", path, [host, accept, *doubled]), ("400", "401")),
        "host": (head("GET", path, [("Host", "evil.example"), accept]), ("421",)),
    }
    came = {}
    for name, (request, _) in requests.items():
        with Wire(door.port) as wire:
            wire.send(request)
            wire.socket.settimeout(3)
            with contextlib.suppress(OSError):
                came[name] = wire.socket.recv(200).split(b" ")[1].decode()
    wrong = [name for name, (_, good) in requests.items() if came.get(name) not in good]
    told = ", ".join(f"{name} {status}" for name, status in came.items())
    return judged(told, not wrong)


@attack(16, "the old wire with a credential works, where allowed_hosts is set too", doors=("direct",))
def the_old_wire_serves_who_may(world: World, door: Door) -> Outcome:
    with Wire(door.port) as stream:
        stream.send(
            head(
                "GET",
                "/servers/tool/sse",
                [("Host", "localhost"), ("Accept", "text/event-stream"), *bearer(key_of("victim")).items()],
            )
        )
        stream.socket.settimeout(3)
        text = b""
        while b"\n\n" not in text.partition(b"\r\n\r\n")[2]:
            text += stream.socket.recv(4_096)
        where = (
            next(line.removeprefix(b"data: ") for line in text.split(b"\n") if line.startswith(b"data: "))
            .strip()
            .decode()
        )
        stranger = ask(door.port, post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', bearer(key_of("mallory")), where))
        own = ask(door.port, post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', bearer(key_of("victim")), where))
    return judged(
        f"own message {own.status}, somebody else's {stranger.status}", own.status == 202 and stranger.status >= 400
    )


@attack(18, "the store refuses every write (out of memory): does /readyz say so?", stalls_s=math.inf)
def ready_means_served(world: World, door: Door) -> Outcome:
    client = world.redis.client()
    client.config_set("maxmemory", "1mb")
    try:
        said, begin = b"", time.monotonic()
        while b"unavailable" not in said and time.monotonic() < begin + 6:
            said = ask(door.port, head("GET", "/readyz", [("Host", "localhost")])).body
            time.sleep(0.1)
        took = time.monotonic() - begin
    finally:
        client.config_set("maxmemory", "0")
    again, begin = said, time.monotonic()
    while b"unavailable" in again and time.monotonic() < begin + 15:
        again = ask(door.port, head("GET", "/readyz", [("Host", "localhost")])).body
        time.sleep(0.1)
    good = b"unavailable" in said and b"unavailable" not in again
    return judged(f"/readyz says {said!r} after {took:.1f} s, {again!r} when it writes again", good)


def signed_in(door: Door, key: str) -> Answer:
    form = urllib.parse.urlencode({"key": key}).encode()
    origin = {
        "Origin": f"http://localhost:{door.port}",
        "Host": f"localhost:{door.port}",
        "Sec-Fetch-Site": "same-origin",
    }
    return ask(door.port, post(form, {**FORM, **origin}, "/admin/sign-in"), within_s=20)


@attack(26, "the console's cookie after its owner has signed out; a row of wrong keys")
def signed_out_is_out(world: World, door: Door) -> Outcome:
    answer, until = signed_in(door, OPERATOR), time.monotonic() + 10
    while answer.status == 429 and time.monotonic() < until:  # of the wrong keys at the door before
        time.sleep(0.2)
        answer = signed_in(door, OPERATOR)
    cookie = answer.headers.get("set-cookie", "").partition(";")[0]
    page = {
        "Host": f"localhost:{door.port}",
        "Cookie": cookie,
        "Sec-Fetch-Site": "same-origin",
        "Origin": f"http://localhost:{door.port}",
    }
    before = ask(door.port, head("GET", "/admin", list(page.items()))).status
    ask(door.port, post(b"", {**FORM, **page}, "/admin/sign-out"))
    after = ask(door.port, head("GET", "/admin", list(page.items()))).status
    begin = time.monotonic()
    came = Counter(signed_in(door, f"wrong-{number}").status for number in range(20))
    took = time.monotonic() - begin
    told = f"before {before}, after {after}; 20 wrong keys: {dict(came)} in {took:.1f} s"
    return judged(told, before == 200 and after != 200 and (came[429] > 0 or took > 5))


@attack(27, "11,500 bad keys as fast as they are answered: the audit trail keeps what was there", stalls_s=2.0)
def the_audit_trail_is_not_flushed(world: World, door: Door) -> Outcome:
    before = set(world.audit())
    opened(door, key_of("victim"))
    marks: set[bytes] = set()
    until = time.monotonic() + 5
    while not marks and time.monotonic() < until:
        marks = set(world.audit()) - before
    came = Counter[int]()
    for _ in range(23):  # fresh connections: proxies end one after so many requests
        _bad_keys(door, 500, came)
    kept = marks & set(world.audit())
    told = ", ".join(f"{count}x {status}" for status, count in came.items())
    return judged(f"{told}; {len(kept)} of {len(marks)} events from before are there", bool(marks) and kept == marks)


def _bad_keys(door: Door, count: int, came: Counter[int]) -> None:
    """That many on ten connections, ten at a time."""
    request = post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', bearer("not-a-key"))
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(door.port)) for _ in range(10)]
        for _ in range(count // 100):
            for wire in wires:
                wire.send(request * 10)
            for wire in wires:
                for answer in wire.answers(most=10):
                    came[answer.status] += 1


@attack(28, "escape sequences in names of tools and clients on the operator's terminal", doors=("direct",))
def escape_sequences(world: World, door: Door) -> Outcome:
    place, escapes = world.open_doors[door.name].port, "\x1b]0;owned\x07\x1b[2J"
    path = "/servers/odd/mcp"
    opening = ask(place, legacy("initialize", hello(name=escapes), path=path))
    headers = {"Mcp-Session-Id": opening.headers.get("mcp-session-id", ""), "MCP-Protocol-Version": "2025-11-25"}
    for tool in (f"plain{escapes}", f"none{escapes}"):
        ask(place, legacy("tools/call", {"name": tool, "arguments": {}}, headers, path))
    shown = world.open.stderr().encode()
    store = world.redis.url.replace("/0", "/1")
    for arguments in (("list",), ("events",), ("events", "--json")):
        command = [sys.executable, "-m", "gateway", "sessions", *arguments, "--store", store]
        ran = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=30, check=False)
        shown += ran.stdout + ran.stderr
    raw = [name for name, mark in (("title", b"\x1b]0;"), ("clear", b"\x1b[2J")) if mark in shown]
    told = f"{len(shown)} bytes shown, {raw or 'no escape sequence'} among them"
    return judged(told, not raw and b"owned" in shown)
