"""Whose session it is, and by what a client carries it."""

import json
import re
from typing import Any

import httpx
import pytest

from tests.conftest import NoCookies
from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import SESSION_KEY, Legacy, Modern, messages, tool_text, without_id


def who(response: httpx.Response) -> str:
    session_id = json.loads(tool_text(response))["session_id"]
    assert isinstance(session_id, str) and session_id
    return session_id


def cookie_of(response: httpx.Response) -> str:
    """The cookie as a client returns it."""
    return response.headers["set-cookie"].partition(";")[0]


@requirement("id.carriers", "id.random", "id.result-token")
def test_a_modern_client_finds_its_session_by_header_meta_or_cookie(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    first = client.tool("whoami")
    session = who(first)
    token = first.headers["mcp-gateway-session"]
    assert session not in token.replace(".", "")[len(session) :] and token != session
    assert messages(first)[0]["result"]["_meta"][SESSION_KEY] == token
    carriers: list[Any] = [
        {"headers": {"MCP-Gateway-Session": token}},
        {"meta": {SESSION_KEY: token}},
        {"headers": {"Cookie": cookie_of(first)}},
    ]
    for carried in carriers:
        later = client.tool("whoami", **carried)
        assert who(later) == session and later.headers["mcp-gateway-session"]
        assert SESSION_KEY not in messages(later)[0]["result"].get("_meta", {}), "a result has the token once"
    known = client.tool("whoami", headers={"User-Agent": "python-httpx2/2.0"})
    assert SESSION_KEY not in messages(known)[0]["result"].get("_meta", {}) and known.headers["mcp-gateway-session"]
    assert who(client.tool("whoami")) != session, "an anonymous client that keeps nothing is a new one each time"
    # A modern response never carries the legacy header, and an incoming one is ignored.
    assert "mcp-session-id" not in first.headers
    assert who(client.tool("whoami", headers={"Mcp-Session-Id": token})) != session


@requirement("id.carriers")
def test_carriers_count_in_the_documented_order(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    opened = [client.tool("whoami") for _ in range(3)]
    by_header, by_meta, by_cookie = opened
    carried = {
        "headers": {"MCP-Gateway-Session": by_header.headers["mcp-gateway-session"], "Cookie": cookie_of(by_cookie)},
        "meta": {SESSION_KEY: by_meta.headers["mcp-gateway-session"]},
    }
    assert who(client.tool("whoami", **carried)) == who(by_header)
    del carried["headers"]["MCP-Gateway-Session"]
    assert who(client.tool("whoami", **carried)) == who(by_meta)
    # A sealed requestState comes before them all.
    asked = messages(client.tool("ask", headers={"Cookie": cookie_of(by_cookie)}))[0]["result"]
    retry = {
        "name": "ask",
        "arguments": {},
        "requestState": asked["requestState"],
        "inputResponses": {"name": {"action": "accept", "content": {"name": "Ada"}}},
    }
    token = by_header.headers["mcp-gateway-session"]
    answer = client.send("tools/call", retry, headers={"MCP-Gateway-Session": token})
    assert tool_text(answer) == "Hello, Ada!"
    assert answer.headers["mcp-gateway-session"] != token


@requirement("id.carriers", "id.forged")
@pytest.mark.parametrize("carrier", ["header", "meta"])
@pytest.mark.parametrize("token", ["nonsense", "x" * 24 + "." + "y" * 43, "", "a" * 5_000])
def test_an_invalid_explicit_carrier_is_404_and_never_falls_through(
    demo: RunningGateway, http: httpx.Client, carrier: str, token: str
) -> None:
    client = Modern(demo.url, http)
    cookie = {"Cookie": cookie_of(client.tool("whoami"))}
    if carrier == "header":
        answer = client.tool("whoami", headers={**cookie, "MCP-Gateway-Session": token})
    else:
        answer = client.tool("whoami", headers=cookie, meta={SESSION_KEY: token})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] not in (-32601, *range(-32099, -32019))
    assert answer.json()["id"] == 1


@requirement("id.forged")
def test_forged_expired_ended_and_foreign_tokens_are_answered_alike(keyed: RunningGateway, http: httpx.Client) -> None:
    alice, bob = (Modern(keyed.at("demo"), http, headers=bearer(KEYS[name])) for name in ("alice", "bob"))
    token = alice.tool("whoami", headers={}).headers["mcp-gateway-session"]
    swapped = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    ended = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["bob"])).open()
    ended.delete()
    answers = [
        bob.tool("whoami", headers={"MCP-Gateway-Session": t}) for t in (swapped, token, "unknown", ended.session)
    ]
    assert len({(a.status_code, str(without_id(a.json()["error"]))) for a in answers}) == 1
    assert answers[0].status_code == 404


@requirement("id.carriers", "id.purpose")
def test_an_invalid_foreign_or_misplaced_cookie_is_ignored_and_replaced(
    demo: RunningGateway, http: httpx.Client
) -> None:
    client = Modern(demo.url, http)
    first = client.tool("whoami")
    token = first.headers["mcp-gateway-session"]
    for value in ("nonsense", token):  # a token is no cookie
        answer = client.tool("whoami", headers={"Cookie": f"mcp_session_id={value}"})
        assert answer.status_code == 200 and who(answer) != who(first)
        assert cookie_of(answer).startswith("mcp_session_id=") and value not in cookie_of(answer)
    value = cookie_of(first).partition("=")[2]  # and a cookie is no token
    assert client.tool("whoami", headers={"MCP-Gateway-Session": value}).status_code == 404


@requirement("id.purpose")
def test_a_result_that_may_be_cached_carries_no_token(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    token = client.tool("whoami").headers["mcp-gateway-session"]
    carried = {"MCP-Gateway-Session": token}
    lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover")
    answers = [client.send(method, headers=carried) for method in lists]
    answers.append(client.send("resources/read", {"uri": "demo://session"}, headers=carried))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert token not in answer.text and SESSION_KEY not in answer.text
    assert "mcp-gateway-session" not in client.send("tools/list").headers, "lists and discover create no session"


@requirement("id.cookie-flags")
def test_the_cookie_is_signed_httponly_strict_and_secure_behind_tls(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    plain = client.tool("whoami")
    assert re.fullmatch(
        r"mcp_session_id=[\w-]{24}\.[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", plain.headers["set-cookie"]
    )
    assert plain.headers["cache-control"] == "no-store"
    tls = client.tool("whoami", headers={"X-Forwarded-Proto": "https"})
    assert tls.headers["set-cookie"].startswith("__Host-mcp_session_id=")
    assert "; Secure" in tls.headers["set-cookie"] and "; Path=/;" in tls.headers["set-cookie"]
    again = client.tool("whoami", headers={"Cookie": cookie_of(plain)})
    assert "set-cookie" not in again.headers, "a client that holds its cookie is not given another"


@requirement("id.cookie-flags", "spec.origin")
def test_a_cookie_is_useless_cross_site(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    first = client.tool("whoami")
    cookie = {"Cookie": cookie_of(first)}
    for site in ("cross-site", "same-site"):
        assert who(client.tool("whoami", headers={**cookie, "Sec-Fetch-Site": site})) != who(first)
    other_port = {**cookie, "Origin": "http://localhost:9"}
    assert who(client.tool("whoami", headers=other_port)) != who(first)
    assert client.tool("whoami", headers={**cookie, "Origin": "https://evil.example"}).status_code == 403
    assert who(client.tool("whoami", headers={**cookie, "Origin": demo.base})) == who(first)


@requirement("id.bound")
def test_a_session_answers_only_its_principal_and_lives_on(keyed: RunningGateway, http: httpx.Client) -> None:
    alice = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["alice"])).open()
    before = who(alice.tool("whoami"))
    mallory = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["bob"]))
    mallory.session = alice.session
    assert mallory.tool("whoami").status_code == 404
    assert mallory.notify("notifications/initialized").status_code == 404
    assert mallory.delete().status_code == 404
    with mallory.get() as stream:
        assert stream.status_code == 404
    nobody = Legacy(keyed.at("demo"), http)
    nobody.session = alice.session
    refused = nobody.tool("whoami")
    assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Bearer")
    assert who(alice.tool("whoami")) == before


@requirement("id.refresh")
def test_a_replaced_key_of_the_same_principal_keeps_the_session(keyed: RunningGateway, http: httpx.Client) -> None:
    session = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["alice"])).open()
    before = who(session.tool("whoami"))
    session.headers = bearer(KEYS["alice-new"])
    assert who(session.tool("whoami")) == before


@requirement("life.affinity")
def test_an_api_key_is_enough_to_meet_ones_own_session_again(keyed: RunningGateway) -> None:
    def calls(key: str, name: str) -> tuple[set[str], list[int]]:
        sessions, counts = set(), []
        for _ in range(3):  # a new connection each time
            with httpx.Client(timeout=20) as http:
                http.cookies.jar._policy = NoCookies()  # type: ignore[attr-defined]  # httpx has no switch for it
                client = Modern(keyed.at("demo"), http, headers=bearer(KEYS[key]))
                meta = {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}
                sessions.add(who(client.tool("whoami", meta=meta)))
                counts.append(int(tool_text(client.tool("count", meta=meta))))
        return sessions, counts

    alice, counts = calls("alice", "affine")
    assert len(alice) == 1 and counts == [1, 2, 3]
    bob, counts = calls("bob", "affine")
    assert len(bob) == 1 and counts == [1, 2, 3] and bob != alice
    assert calls("alice", "another-host")[0] != alice


@requirement("id.reattach")
def test_initialize_with_an_explicit_token_resumes_session_state_and_process(
    demo: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(demo.url, http).open()
    session = who(client.tool("whoami"))
    assert tool_text(client.tool("count")) == "1"
    again = Legacy(demo.url, http)
    again.session = client.session
    again.open()
    assert who(again.tool("whoami")) == session
    assert tool_text(again.tool("count")) == "2"
    stale = Legacy(demo.url, http)
    stale.session = "x" * 24 + "." + "y" * 43
    assert stale.initialize().status_code == 200 and stale.session not in ("", client.session)


@requirement("id.reattach")
def test_by_cookie_or_principal_initialize_resumes_only_where_switched_on(http: httpx.Client) -> None:
    def sessions(url: str, key: str, name: str) -> list[str]:
        found: list[str] = []
        cookie: dict[str, str] = {}
        for _ in range(2):
            client = Legacy(url, http, headers={**bearer(key), **cookie})
            opened = client.initialize(name=name)
            cookie = {"Cookie": cookie_of(opened)} if "set-cookie" in opened.headers else cookie
            client.notify("notifications/initialized")
            found.append(who(client.tool("whoami")))
        return found

    options = {"api_keys": {name: sha256(key) for name, key in KEYS.items()}}
    for reattach, resumes in ((["cookie"], True), (["principal"], True), ([], False)):
        settings = {**options, "session": {"reattach": reattach}}
        with in_process_gateway({"main": server(DEMO)}, options=settings) as gateway:
            first, second = sessions(gateway.url, KEYS["alice"], "host")
            assert (first == second) is resumes, reattach
            assert sessions(gateway.url, KEYS["bob"], "host")[0] != first


@requirement("ops.redact")
def test_no_token_credential_or_whole_id_in_logs_errors_or_health(http: httpx.Client) -> None:
    """Also not where everything is logged."""
    options = {"api_keys": {"alice": sha256(KEYS["alice"])}, "log_level": "debug"}
    with in_process_gateway({"main": server(PROBE)}, options=options) as gateway:
        client = Modern(gateway.url, http, headers=bearer(KEYS["alice"]))
        env = json.loads(tool_text(first := client.tool("env", {"prefix": "MCP_SESSION"})))
        secrets = [KEYS["alice"], first.headers["mcp-gateway-session"], cookie_of(first), env["MCP_SESSION_ID"]]
        answers = [
            client.tool("crash"),
            client.tool("whoami", headers={"MCP-Gateway-Session": secrets[1][:-3] + "AAA"}),
            Modern(gateway.url, http, headers=bearer("wrong-key-" * 3)).tool("pid"),
            http.get(gateway.base + "/readyz"),
            http.get(gateway.base + "/healthz"),
        ]
        client.tool("pid")
    told = gateway.stderr() + "".join(a.text for a in answers)
    assert env["MCP_SESSION_ID"][:8] in told, "sessions are named by their first 8 characters"
    assert "wrong-key" not in told
    for secret in secrets:
        assert secret not in told
        assert secret.partition("=")[2] not in told or not secret.partition("=")[2]
