"""What one client, or a stranger, can take from the others: time, memory, connections, rates."""

import contextlib
import json
import time
from collections import Counter
from typing import Any, Final

from tests.attack.live.doors import Door
from tests.attack.live.rows import Outcome, attack, judged
from tests.attack.live.world import World, key_of
from tests.support.credentials import bearer
from tests.support.wire import Wire, ask, call_body, head, hello, legacy, legacy_body, post, rpc, statuses
from transports.peer_server import PROVED_WITHIN_S

HEADERS: Final = {"MCP-Protocol-Version": "2025-03-26"}
DEADLINE_S: Final = 4.0
"""Twice what the gateway that is attacked allows for."""

PEER_DEADLINE_S: Final = PROVED_WITHIN_S + 2.0
STRANGER: Final = "127.0.6.1"
"""Where attacks on connections come from, so that what is kept for one address is not kept for all."""


def opened(door: Door, key: str, version: str = "2025-03-26") -> str:
    """A session of the handshake era: its token."""
    answer = ask(door.port, legacy("initialize", hello(version), bearer(key)))
    if answer.status != 200:
        raise ConnectionError(f"no session: {answer.status} {answer.error()}")
    return answer.headers["mcp-session-id"]


@attack(5, "one header that never ends, from a stranger: 8 MB in small pieces")
def an_endless_header(world: World, door: Door) -> Outcome:
    begin, sent, piece = time.monotonic(), 0, b"x" * 1_000
    before = world.rss_mb()
    with Wire(door.port, source=STRANGER) as wire:
        wire.send(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX-Endless: ")
        while sent < 8 << 20 and time.monotonic() < begin + 3 and wire.send(piece):
            sent += len(piece)
        answers = wire.answers(first_s=0.5, most=1)
    grown = world.rss_mb() - before
    # A proxy that has refused it may go on reading for a while: that is its affair.
    is_cut = sent < 8 << 20 or not door.is_direct
    told = f"{statuses(answers)}, cut after {sent >> 10} KiB, {grown:+.0f} MB"
    return judged(told, is_cut and all(400 <= answer.status < 500 for answer in answers) and grown < 30)


@attack(5, "400 heads that are never finished, and 400 connections that say nothing")
def half_sent_heads_and_silence(world: World, door: Door) -> Outcome:
    count = 400
    with contextlib.ExitStack() as stack:
        wires = []
        for number in range(2 * count):
            with contextlib.suppress(OSError):
                wire = stack.enter_context(Wire(door.port, source=f"127.0.6.{number % 200 + 1}"))
                if number % 2:
                    wire.send(b"POST /mcp HTTP/1.1\r\nHost: local")
                wires.append(wire)
        time.sleep(1.0)
        served = ask(door.port, rpc(call_body("count"), bearer(key_of("victim"))))
        begin = time.monotonic()
        # Through a proxy these never reach the gateway; direct, its deadline ends them.
        closed = (
            sum(wire.is_closed(max(0.0, begin + DEADLINE_S - time.monotonic()) or 0.001) for wire in wires)
            if door.is_direct
            else 0
        )
    told = f"{closed} of {len(wires)} cut in {DEADLINE_S:.0f} s" if door.is_direct else "kept by the proxy"
    return judged(
        f"{told}; a call meanwhile: {served.status}",
        served.status == 200 and (closed == len(wires) or not door.is_direct),
    )


@attack(5, "a body that is promised and never sent, 100 times")
def bodies_that_never_come(world: World, door: Door) -> Outcome:
    request = post(b"", {**bearer(key_of("mallory")), "Content-Length": "100000"})
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(door.port, source=STRANGER)) for _ in range(100)]
        for wire in wires:
            wire.send(request + b"{")
        begin = time.monotonic()
        if not door.is_direct:
            time.sleep(0.5)
            return judged("kept by the proxy", True)
        closed = sum(wire.is_closed(max(0.001, begin + DEADLINE_S - time.monotonic())) for wire in wires)
    return judged(f"{closed} of 100 cut in {DEADLINE_S:.0f} s", closed == 100)


@attack(6, "40 calls of tools whose names are 3 MB long, 40 reads of such URIs, 20 handshakes with 3 MB")
def long_names(world: World, door: Door) -> Outcome:
    before, came = world.rss_mb(), Counter[str]()
    for number in range(40):
        name = f"{number}" + "n" * (3 << 20)
        session: dict[str, Any] = {"name": name, "arguments": {}}
        for method, params in (("tools/call", session), ("resources/read", {"uri": f"x://{name}"})):
            headers = {**bearer(key_of("mallory")), "Mcp-Session-Id": _session(world, door)}
            answer = ask(door.port, legacy(method, params, headers))
            came[f"{method} {'refused' if answer.error() else 'ANSWERED'}"] += 1
    for number in range(20):
        info = hello(name=f"{number}" + "c" * (3 << 20))
        answer = ask(door.port, legacy("initialize", info, bearer(key_of("mallory"))))
        came[f"initialize {'refused' if answer.error() else 'ANSWERED'}"] += 1
    grown = world.rss_mb() - before
    told = f"{', '.join(came)}; {grown:+.0f} MB"
    return judged(told, grown < 40 and not any(what.endswith("ANSWERED") for what in came))


_sessions: dict[str, str] = {}


def _session(world: World, door: Door) -> str:
    if door.name not in _sessions:
        _sessions[door.name] = opened(door, key_of("mallory"))
    return _sessions[door.name]


@attack(11, "30 clients that ask for 8 MB each, as JSON, and do not read")
def answers_that_nobody_reads(world: World, door: Door) -> Outcome:
    before, size = world.rss_mb(), 8 << 20
    request = rpc(call_body("big", {"size": size}), bearer(key_of("mallory")))
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(door.port, source=STRANGER)) for _ in range(30)]
        for wire in wires:
            wire.send(request)
        most, begin = 0.0, time.monotonic()
        while time.monotonic() < begin + DEADLINE_S + 1:
            time.sleep(0.2)
            most = max(most, world.rss_mb() - before)
        at_end = world.rss_mb() - before
    return judged(f"at most {most:+.0f} MB, {at_end:+.0f} MB after {DEADLINE_S + 1:.0f} s", at_end < 100)


@attack(12, "a batch of 85,000 pings")
def a_giant_batch(world: World, door: Door) -> Outcome:
    session = opened(door, key_of("mallory"))
    body = b"[" + b",".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % n for n in range(85_000)) + b"]"
    begin = time.monotonic()
    answer = ask(door.port, post(body, {**bearer(key_of("mallory")), **HEADERS, "Mcp-Session-Id": session}))
    took = time.monotonic() - begin
    return judged(f"{answer.status} after {took * 1000:.0f} ms: {answer.error()}"[:70], 400 <= answer.status < 500)


@attack(12, "a batch of 65 calls: refused whole, and nothing of it happens")
def a_batch_that_is_refused_does_nothing(world: World, door: Door) -> Outcome:
    session = opened(door, key_of("mallory"))
    before = world.seen().get("tools/call count", 0)
    calls = [legacy_body("tools/call", {"name": "count", "arguments": {}}, number) for number in range(65)]
    answer = ask(
        door.port, post(json.dumps(calls).encode(), {**bearer(key_of("mallory")), **HEADERS, "Mcp-Session-Id": session})
    )
    time.sleep(0.3)
    ran = world.seen().get("tools/call count", 0) - before
    return judged(f"{answer.status}, {ran} ran", 400 <= answer.status < 500 and ran == 0)


@attack(14, "250 sessions opened by one principal as fast as it can")
def sessions_without_end(world: World, door: Door) -> Outcome:
    request = legacy("initialize", hello(), bearer(key_of("flooder")))
    came, begin = Counter[int](), time.monotonic()
    with Wire(door.port) as wire:
        for _ in range(250):
            wire.send(request)
            answer = wire.answer()
            if answer is None:
                break
            came[answer.status] += 1
    other = ask(door.port, rpc(call_body("count"), bearer(key_of("victim"))))
    told, is_slow = _slowed(came, time.monotonic() - begin, per_s=10, burst=200)
    return judged(f"{told}; another principal: {other.status}", is_slow and other.status == 200)


def _slowed(came: Counter[int], took_s: float, *, per_s: float, burst: int) -> tuple[str, bool]:
    """What came, and whether no more was served than a rate allows. A client that waits for answers is not refused."""
    told = ", ".join(f"{count}x {status}" for status, count in came.items())
    ahead = 1.5 * per_s * 0.1  # what a replica spends before it asks the store
    return f"{told} in {took_s:.1f} s", came[200] <= burst + ahead + per_s * took_s


@attack(14, "2,000 pings and lists of one principal as fast as it can: they count as well")
def what_is_cheap_is_counted(world: World, door: Door) -> Outcome:
    session = opened(door, key_of("pinger"))
    headers = {**bearer(key_of("pinger")), "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    came, begin = Counter[int](), time.monotonic()
    for first in range(0, 2_000, 500):  # fresh connections: nginx ends one after 1,000 requests
        with Wire(door.port) as wire:
            for number in range(first, first + 500):
                method = ("ping", "tools/list", "prompts/list")[number % 3]
                wire.send(legacy(method, None, headers, request_id=number))
                answer = wire.answer()
                came[answer.status if answer else 0] += 1
    return judged(*_slowed(came, time.monotonic() - begin, per_s=100, burst=1_000))


@attack(19, "64 MB from a stranger at the listener between replicas", doors=("direct",))
def the_internal_listener(world: World, door: Door) -> Outcome:
    told, worst = [], 0.0
    for port in world.listening():
        before, sent = world.rss_mb(), 0
        with Wire(port, source=STRANGER) as wire:
            wire.send(head("POST", "/forward", [("Host", "x"), ("Content-Length", str(64 << 20))]))
            while sent < 64 << 20 and wire.send(b"z" * (1 << 18)):
                sent += 1 << 18
            answers = wire.answers(first_s=1.0, most=1)
            worst = max(worst, world.rss_mb() - before)
        told.append(f"{statuses(answers)} after {sent >> 20} MB")
    return judged(f"{', '.join(told)}; {worst:+.0f} MB", bool(told) and worst < 20)


@attack(19, "100 connections to it that say nothing", doors=("direct",))
def the_internal_listener_and_silence(world: World, door: Door) -> Outcome:
    ports = world.listening()
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(port, source=STRANGER)) for port in ports for _ in range(100)]
        begin = time.monotonic()
        until = begin + PEER_DEADLINE_S
        closed = sum(wire.is_closed(max(0.001, until - time.monotonic())) for wire in wires)
    return judged(f"{closed} of {len(wires)} cut in {PEER_DEADLINE_S:.0f} s", bool(wires) and closed == len(wires))
