"""Whose authority a request has: tokens, headers of proxies, what clients say of themselves, sessions of others."""

import json
import string
import time
from typing import Any, Final

import jwt

from tests.attack.live.doors import Door
from tests.attack.live.exhaustion import opened
from tests.attack.live.rows import Outcome, attack, judged
from tests.attack.live.world import PROXY, World, key_of
from tests.support.credentials import bearer
from tests.support.mcp_clients import SESSION_KEY
from tests.support.wire import Answer, ask, call_body, head, hello, legacy, rpc

ALPHABET: Final = string.ascii_letters + string.digits + "-_"


@attack(4, "a guest announces the workspace `team-boss`, to which a rule gives trust and permissions")
def an_announced_workspace_grants_nothing(world: World, door: Door) -> Outcome:
    meta = {"orbit": {"workspace": "team-boss"}}
    ran = []
    for tool in ("notes", "inner"):
        answer = ask(door.port, rpc(call_body(tool, meta=meta), bearer(key_of("guest"))))
        ran += [tool] if "ran" in answer.text() else []
    who = json.loads(ask(door.port, rpc(call_body("whoami", meta=meta), bearer(key_of("guest")))).text() or "{}")
    told = f"trust {who.get('trust')}, permissions {who.get('permissions') or 'none'}, ran {ran or 'nothing'}"
    return judged(told, not ran and who.get("trust") != "direct")


@attack(20, "all other last characters of a session token")
def last_characters(world: World, door: Door) -> Outcome:
    token = opened(door, key_of("victim"))
    headers = {**bearer(key_of("victim")), "MCP-Protocol-Version": "2025-11-25"}
    came: dict[str, int] = {}
    for last in ALPHABET:
        answer = ask(door.port, legacy("tools/list", None, {**headers, "Mcp-Session-Id": token[:-1] + last}))
        came[last] = answer.status
    good = [last for last, status in came.items() if status == 200]
    return judged(f"{len(good)} of {len(ALPHABET)} verify", good == [token[-1]])


@attack(22, "a handle that is misspelt: the call may not run in the session around it")
def a_misspelt_handle(world: World, door: Door) -> Outcome:
    path, key = "/servers/own/mcp", bearer(key_of("mallory"))
    handle = ask(door.port, rpc(call_body("open_session"), key, path)).text()
    came = []
    for wrong in (
        handle[:-1] + ("A" if handle[-1] != "A" else "B"),
        handle[:-2],
        handle + "x",
        handle.swapcase(),
        "default",
    ):
        answer = ask(door.port, rpc(call_body("count", {"session": wrong}), key, path))
        ran = "result" in answer.message() and not answer.message()["result"].get("isError")
        came.append("ran" if ran else "refused")
    return judged(", ".join(sorted(set(came))), "ran" not in came)


@attack(23, "a requestState of one endpoint brought to another")
def a_state_of_another_endpoint(world: World, door: Door) -> Outcome:
    def asked(path: str, more: Any = None) -> Answer:
        body = call_body("ask")
        body["params"] |= more or {}
        return ask(door.port, rpc(body, bearer(key_of("mallory")), path))

    first = asked("/servers/tool/mcp").message().get("result", {})
    state = first.get("requestState")
    if state is None:
        return judged(f"no question came: {first}"[:80], False)
    answered = {"requestState": state, "inputResponses": {"q": {"action": "accept", "content": {"name": "x"}}}}
    other = asked("/servers/other/mcp", answered)
    own = asked("/servers/tool/mcp", answered)
    told = f"elsewhere {other.status} {other.error()[:40] or other.text()[:40]}; at home: {own.text()[:20]}"
    return judged(told, "accepted" not in other.text() and "accepted" in own.text())


def status_of(world: World, door: Door, token: str, **headers: str) -> Answer:
    return ask(door.port, rpc(call_body("whoami"), {**bearer(token), **headers}))


@attack(24, "an ID token, a token without a subject, of an empty one, of one with line breaks")
def tokens_that_are_no_access_tokens(world: World, door: Door) -> Outcome:
    issuer = world.issuer
    tokens = {
        "nonce": issuer.token("ada", nonce="n", at_hash="h"),
        "typ": typed(world, "id_token+jwt"),
        "logout": typed(world, "logout+jwt"),
        "empty sub": issuer.token(""),
        "no sub": issuer.token("ada", sub=None),
        "blank sub": issuer.token("  "),
        "CR LF": issuer.token("ada\r\nX-Trust: direct"),
        "NUL": issuer.token("ada\x00"),
        "number": issuer.token("ada", sub=7),
        "not yet": issuer.token("ada", nbf=4_000_000_000),
    }
    came = {name: status_of(world, door, token).status for name, token in tokens.items()}
    good = status_of(world, door, issuer.token("ada")).status
    let_in = [name for name, status in came.items() if status != 401]
    return judged(f"let in: {', '.join(let_in)}" if let_in else f"{len(came)}x 401", not let_in and good == 200)


def typed(world: World, kind: str) -> str:
    name, key = next(iter(world.issuer.keys.items()))
    claims = jwt.decode(world.issuer.token("ada"), options={"verify_signature": False})
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": name, "typ": kind})


@attack(25, "the header that says who calls, twice, through a proxy that is trusted", doors=("direct",))
def doubled_identity_headers(world: World, door: Door) -> Outcome:
    body = json.dumps(call_body("whoami")).encode()
    shape = rpc(call_body("whoami")).partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    headers = [(n, v) for n, _, v in (line.partition(": ") for line in shape)]
    came = []
    for doubled in (
        [("X-User", "mallory"), ("X-User", "chief")],
        [("X-User", "a"), ("x-user", "b")],
        [("X-User", "a"), ("X-Trust", "sandboxed"), ("X-Trust", "direct")],
    ):
        answer = ask(door.port, head(headers=[*headers, *doubled]) + body, source=PROXY)
        came.append(f"{answer.status}{' ' + answer.text()[:60] if answer.status == 200 else ''}")
    return judged(", ".join(came), all(status.startswith("4") for status in came))


@attack(29, "a trusted proxy that says nothing of trust; strangers that say all", doors=("direct",))
def a_missing_trust_header(world: World, door: Door) -> Outcome:
    def trust(source: str, **headers: str) -> str:
        answer = ask(door.port, rpc(call_body("whoami"), headers), source=source)
        return str(json.loads(answer.text()).get("trust")) if answer.status == 200 else str(answer.status)

    silent = trust(PROXY, **{"X-User": "ada"})
    empty = trust(PROXY, **{"X-User": "eve", "X-Trust": ""})
    stranger = trust("127.0.0.78", **{"X-User": "ada", "X-Trust": "direct"})
    told = f"without: {silent}, empty: {empty}, from a stranger: {stranger}"
    return judged(told, silent == empty == "sandboxed" and stranger == "401")


@attack(32, "DELETE with a version that does not exist: the session lives on")
def delete_with_a_wrong_version(world: World, door: Door) -> Outcome:
    token = opened(door, key_of("victim"), "2025-11-25")
    headers = {"Host": "localhost", **bearer(key_of("victim")), "Mcp-Session-Id": token}
    ended = [
        ask(door.port, head("DELETE", headers=[*headers.items(), ("MCP-Protocol-Version", version)])).status
        for version in ("1999-01-01", "2026-07-28", "x" * 300)
    ]
    after = ask(door.port, legacy("tools/list", None, {**headers, "MCP-Protocol-Version": "2025-11-25"})).status
    return judged(f"{ended}, then a list: {after}", after == 200 and all(status >= 400 for status in ended))


@attack(32, "a token without the scope it needs; a token that is bound to a key (DPoP) as a bearer token")
def scopes_and_bound_tokens(world: World, door: Door) -> Outcome:
    scope = status_of(world, door, world.issuer.token("ada", scope="other"))
    bound = status_of(
        world, door, world.issuer.token("ada", cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"})
    )
    challenge = scope.headers.get("www-authenticate", "")
    says = "insufficient_scope" in challenge
    told = f"{scope.status} {'insufficient_scope' if says else challenge[:30]}, {bound.status}"
    return judged(told, scope.status == 403 and says and bound.status == 401)


@attack(34, "forged session tokens at a call, at `initialize`: each is in the audit trail")
def forged_tokens_are_told(world: World, door: Door) -> Outcome:
    def told() -> int:
        events = json.loads(world.operators("GET", "/admin/api/events?limit=10000").body)
        return sum(event["event"] == "refused" and "api-key:mallory" in json.dumps(event) for event in events)

    before = told()
    token = opened(door, key_of("victim"), "2025-11-25")
    forged = token[:-8] + ("AAAAAAAA" if not token.endswith("AAAAAAAA") else "BBBBBBBB")
    key = bearer(key_of("mallory"))
    carried = {**key, "Mcp-Session-Id": forged}
    requests = [
        legacy("tools/list", None, {**carried, "MCP-Protocol-Version": "2025-11-25"}),
        legacy("initialize", hello(), carried),
        rpc(call_body("count"), {**key, "MCP-Gateway-Session": forged}),
        rpc(call_body("count", meta={SESSION_KEY: forged}), key),
    ]
    came = [ask(door.port, request).status for request in requests]
    until = time.monotonic() + 3
    while (events := told() - before) < len(requests) and time.monotonic() < until:
        time.sleep(0.1)
    return judged(f"{came}, {events} events", events >= len(requests) and 404 in came)
