"""Ways around what a session may do: other spellings, names that are not listed, methods nobody knows."""

import json
import time
from typing import Final

from tests.attack.live.doors import Door
from tests.attack.live.rows import Outcome, attack, judged
from tests.attack.live.world import World, key_of
from tests.support.credentials import bearer
from tests.support.mcp_clients import modern_body
from tests.support.wire import ask, call_body, legacy, post, rpc

SPELLINGS: Final = (
    '"drop table"',
    r'"\u0064rop table"',
    r'"drop\ntable"',
    r'"drop\ttable"',
    r'"drop\u0020table"',
    '"DROP   TABLE"',
    r'"\uff44\uff52\uff4f\uff50 table"',
    r'"say \"quoted\" now"',
    r'["a", {"b": "drop\u0009table"}]',
    r'{"drop table": 1}',
)


@attack(8, f"{len(SPELLINGS)} spellings of what a pattern blocks: escapes, line breaks, tabs, wide letters, keys")
def blocked_whatever_the_spelling(world: World, door: Door) -> Outcome:
    through = []
    for spelling in SPELLINGS:
        request = rpc(call_body("query", {"q": "HERE"}), bearer(key_of("mallory")))
        place, _, body = request.partition(b"\r\n\r\n")
        body = body.replace(b'"HERE"', spelling.encode())
        lines = [line for line in place.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        lines.append(b"Content-Length: %d" % len(body))
        answer = ask(door.port, b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if "ran" in answer.text():
            through.append(spelling)
    return judged(f"{len(through)} through {' '.join(through)}"[:80], not through)


@attack(8, "40,000 letters against the pattern (a+)+$")
def a_pattern_that_takes_for_ever(world: World, door: Door) -> Outcome:
    begin = time.monotonic()
    answer = ask(door.port, rpc(call_body("query", {"q": "a" * 40 + "!"}), bearer(key_of("mallory"))), within_s=30)
    long = ask(door.port, rpc(call_body("query", {"q": "a" * 40_000 + "!"}), bearer(key_of("mallory"))), within_s=30)
    took = time.monotonic() - begin
    return judged(f"{answer.status}, {long.status} after {took * 1000:.0f} ms", took < 2)


@attack(15, "Mcp-Param headers for tools that exist and that do not, without a credential: all alike")
def hidden_tools_before_authentication(world: World, door: Door) -> Outcome:
    came = set()
    for tool in ("notes", "inner", "count", "nothing-of-that-name"):
        for header in ({}, {"Mcp-Param-Region": "x"}):
            answer = ask(door.port, rpc(call_body(tool), header))
            came.add((answer.status, answer.error()))
    return judged(
        ", ".join(f"{status} {error}" for status, error in came)[:80], {s for s, _ in came} == {401} and len(came) == 1
    )


@attack(17, "a call whose server answers with arrays 5,000 deep")
def an_answer_that_cannot_be_read(world: World, door: Door) -> Outcome:
    begin = time.monotonic()
    answer = ask(door.port, rpc(call_body("deep"), bearer(key_of("mallory"))), within_s=8)
    took = time.monotonic() - begin
    return judged(f"{answer.status} after {took * 1000:.0f} ms: {answer.error()[:40]}", took < 5)


@attack(21, "tools that are not listed, methods nobody knows, prompts and resources of a server that is restricted")
def what_is_not_listed(world: World, door: Door) -> Outcome:
    before = world.seen()
    key = bearer(key_of("mallory"))
    for tool in ("unlisted", "notes\x00", "NOTES", "notes ", "\u200bnotes", "notes/../notes", "tool__notes"):
        body = json.dumps(call_body(tool)).encode()
        shape = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": _encoded(tool)}
        ask(door.port, post(body, {**key, **shape}))
    for method in ("admin/reset", "tools/delete", "internal/dump", "Tools/Call", "tools/call ", "notes"):
        ask(door.port, rpc(modern_body(method, {"name": "notes", "arguments": {}}), key))
        ask(door.port, legacy(method, {"name": "notes"}, key))
    after = world.seen()
    new = [
        name
        for name in after
        if after[name] > before.get(name, 0)
        and name not in ("tools/call seen", "tools/list", "server/discover", "initialize")
    ]
    return judged(f"reached the server: {new or 'nothing'}", not new)


def _encoded(name: str) -> str:
    """As SEP-2243 says it is sent where a header cannot hold it."""
    import base64

    if name.isascii() and name.isprintable() and name == name.strip():
        return name
    return f"=?base64?{base64.b64encode(name.encode()).decode()}?="
