"""Whose authority a request has: that of its own credential, and of nothing that a client says or sent before."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from gateway.config.settings import Settings
from gateway.integrations.mounted_gateway_middleware import GatewaySessionMiddleware
from gateway.serving.app import Gateway, create_app
from session_store import NoSession, current_session
from tests.requirements import requirement
from tests.support.asgi import served
from tests.support.credentials import API_KEYS, KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.in_process_gateway import RING, InProcessGateway, in_process_gateway
from tests.support.issuer import AUDIENCE, Issuer, running_issuer
from tests.support.mcp_clients import (
    Legacy,
    Modern,
    error_of,
    messages,
    modern_body,
    modern_headers,
    result_of,
    tool_text,
)
from tests.support.named_gateways import CLAIMS
from tests.support.redis_server import RunningRedis
from tests.support.wire import PipeliningClient

POWERFUL: dict[str, Any] = {"mcp": {"trust": "direct"}, "team": "red", "may": ["notes.write"]}
ALL, NOTHING = ("direct", "red", "notes.write"), ("sandboxed", "", "")
PATH = "/servers/probe/mcp"
WHAT: Any = {"name": "env", "arguments": {"prefix": "MCP_SESSION_"}}


def what_am_i() -> tuple[Any, dict[str, str]]:
    body = modern_body("tools/call", WHAT)
    return body, modern_headers(body)


def authority(answer: Any) -> tuple[str, str, str]:
    """Trust, workspace and permissions, as the server was told them."""
    told = json.loads(answer["result"]["content"][0]["text"])
    return told["MCP_SESSION_TRUST"], told["MCP_SESSION_WORKSPACE"], told["MCP_SESSION_PERMISSIONS"]


def told(client: Legacy, tool: str = "probe__env") -> tuple[str, str, str]:
    return authority(messages(client.tool(tool, WHAT["arguments"]))[-1])


def whoami(issued: RunningGateway, http: httpx.Client, token: str) -> Any:
    return json.loads(tool_text(Modern(issued.url, http, headers=bearer(token)).tool("demo__whoami")))


# -- access tokens


@requirement("pol.auth", "id.refresh", "life.affinity", "id.bound")
def test_a_token_is_a_principal_and_a_refreshed_one_the_same(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    first = whoami(issued, http, issuer.token("ada", jti="1", team="red", mcp={"trust": "Direct "}))
    assert first["principal"] == f"{issuer.url}:ada" and first["workspace"] == "red" and first["trust"] == "direct"
    again = whoami(issued, http, issuer.token("ada", jti="2", team="red", mcp={"trust": "direct"}))
    assert again["session_id"] == first["session_id"], "a refreshed token"
    assert whoami(issued, http, issuer.token("bob", team="red"))["session_id"] != first["session_id"]
    legacy = Legacy(issued.url, http, headers=bearer(issuer.token("ada"))).open()
    legacy.headers = bearer(issuer.token("ada", jti="3"))
    assert tool_text(legacy.tool("demo__count")) == "1"
    legacy.headers = bearer(issuer.token("bob"))
    assert legacy.tool("demo__count").status_code == 404, "somebody else's"
    legacy.headers = bearer(issuer.token("ada", jti="4"))
    assert tool_text(legacy.tool("demo__count")) == "2", "and it lives on"


@requirement("pol.auth", "wall.authority")
def test_tokens_that_are_not_good_are_refused(issued: RunningGateway, issuer: Issuer, http: httpx.Client) -> None:
    """What else is not good is in tests/unit/identity/test_access_tokens.py."""
    now = int(time.time())
    bad = {
        "of another issuer": issuer.token(iss="https://evil.example"),
        "expired": issuer.token(exp=now - 100),
        "not good yet": issuer.token(nbf=now + 100),
        "without a subject": issuer.token(sub=None),
        "of a name that deceives its reader": issuer.token("a\u202eb"),
        "an identity token": issuer.token(nonce="n"),
        "bound to a key": issuer.token(cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}),
        "no JWT": "aaaaaaaa.bbbbbbbbb.cccccccc",
        "changed": issuer.token()[:-8] + "AAAAAAAA",
    }
    for what, token in bad.items():
        answer = Modern(issued.url, http, headers=bearer(token)).tool("demo__whoami")
        assert answer.status_code == 401, what
        assert 'error="invalid_token"' in answer.headers["www-authenticate"], what
        assert token.split(".")[1] not in issued.stderr() + answer.text, what
    just_now = int(time.time()) - 1
    assert whoami(issued, http, issuer.token(exp=just_now))["principal"].endswith(":ada"), "within the clocks' skew"


@requirement("wall.authority", "pol.auth")
def test_a_token_that_does_not_go_far_enough_is_told_what_it_needs(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    for scope in ("other", None):
        answer = Modern(issued.at("demo"), http, headers=bearer(issuer.token(scope=scope))).tool("whoami")
        challenge = answer.headers["www-authenticate"]
        assert answer.status_code == 403 and answer.json()["error"]["code"] == -32011
        assert challenge.startswith("Bearer ") and 'error="insufficient_scope"' in challenge
        assert 'scope="mcp"' in challenge and "resource_metadata=" in challenge
    more = Modern(issued.at("demo"), http, headers=bearer(issuer.token(scope="mcp other")))
    assert more.tool("whoami").status_code == 200


@requirement("pol.auth")
def test_new_keys_are_found_and_forged_ids_do_not_hammer_the_issuer(http: httpx.Client) -> None:
    """An issuer that counts who asks, and whose key changes."""
    with running_issuer() as issuer:
        with in_process_gateway({"demo": server(DEMO)}, options={"auth": issuer.settings()}) as gateway:
            url = gateway.url

            def status(token: str) -> int:
                return Modern(url, http, headers=bearer(token)).tool("whoami").status_code

            assert status(issuer.token()) == 200 and issuer.asked == 1
            assert [status(issuer.token(kid=f"forged-{n}")) for n in range(5)] == [401] * 5
            assert issuer.asked == 1, "not within seconds of the last look"
            old = issuer.token(jti="never shown before")
            issuer.rotate("second")
            deadline = time.monotonic() + 20
            while status(issuer.token()) != 200:
                assert time.monotonic() < deadline
                time.sleep(0.5)
            assert issuer.asked == 2 and status(old) == 401


@requirement("pol.auth")
def test_clients_can_find_the_authorization_server(issued: RunningGateway, issuer: Issuer, http: httpx.Client) -> None:
    refused = Legacy(issued.url, http).initialize()
    challenge = refused.headers["www-authenticate"]
    url = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
    assert refused.status_code == 401 and f'resource_metadata="{url}"' in challenge and 'scope="mcp"' in challenge
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
        assert http.get(issued.base + path).json() == {
            "resource": AUDIENCE,
            "authorization_servers": [issuer.url],
            "bearer_methods_supported": ["header"],
            "scopes_supported": ["mcp"],
        }


@requirement("pol.permissions", "pol.trust", "id.refresh", "wall.provenance")
def test_what_a_token_no_longer_says_holds_no_longer(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    says: dict[str, Any] = {"may": ["read.secrets"], "mcp": {"trust": "direct"}, "team": "boss"}
    client = Legacy(issued.url, http, headers=bearer(issuer.token("eve", **says)))
    client.open(meta={"orbit": {"workspace": "other"}})
    assert tool_text(client.tool("secret__count")) == "1"
    assert told(client) == ("direct", "boss", "read.secrets")
    client.headers = bearer(issuer.token("eve", may=[], mcp={"trust": "whatever"}))
    assert "Unknown tool" in error_of(client.tool("secret__count"))["message"]
    assert told(client) == NOTHING, "unknown is not trusted, and what was announced is none"


# -- proxies that say who calls


@requirement("pol.auth", "ctx.unforgeable", "id.cookie-flags", "wall.provenance")
def test_only_trusted_proxies_say_who_calls(proxied: RunningGateway, http: httpx.Client) -> None:
    says = {"X-User": "ada", "X-May": "a, b"}
    answer = Modern(proxied.at("demo"), http, headers={**says, "X-Forwarded-Proto": "https"}).tool("whoami")
    assert json.loads(tool_text(answer))["principal"] == "proxy:ada" and "__Host-" in answer.headers["set-cookie"]
    assert Modern(proxied.at("demo"), http).tool("whoami").status_code == 401
    for headers, expected in (
        (says, ("direct", "red", "a b")),
        ({"X-User": "ada"}, ("direct", "red", "")),
        ({"X-User": "eve", "X-May": ""}, ("sandboxed", "boss", "")),
    ):
        assert told(Legacy(proxied.url, http, headers=headers).open(meta={"orbit.workspace": "boss"})) == expected
    names = {"subject_header": "X-User", "permissions_header": "X-May"}
    elsewhere = {"auth": {"proxies": {"networks": ["10.0.0.0/8"], **names}}}
    with in_process_gateway({"demo": server(DEMO)}, options=elsewhere) as gateway:
        assert Modern(gateway.url, http, headers=says).tool("whoami").status_code == 401


@requirement("wall.authority")
@pytest.mark.parametrize("name", ["X-User", "X-May"])
def test_a_header_that_says_who_calls_stands_once(proxied: RunningGateway, name: str) -> None:
    body, headers = what_am_i()
    says = {"X-User": "ada", "X-May": "a"}
    for other, value in ((name, "root"), (name.lower(), "root"), (name.upper(), says[name]), (name, "")):
        with PipeliningClient(proxied.url) as client:
            request = client.rpc(body, {**headers, **says})
            client.write(request.replace(b"\r\n\r\n", f"\r\n{other}:  {value} \r\n\r\n".encode(), 1))
            [(status, answer)] = client.answers(1)
        assert status == 400 and "more than once" in answer["error"]["message"], (other, value)


# -- what a client announces restricts and fills in, and never grants


BOSS = "team-boss"


def keyed_options(**policy: Any) -> dict[str, Any]:
    """A guest, and bob, whose workspace a rule says."""
    rules = [
        {"workspaces": ["team-*"], "trust": "direct", "permissions": ["notes.write"]},
        {"principals": ["api-key:bob"], "workspace": BOSS},
    ]
    keys = {"guest": sha256(KEYS["alice"]), "bob": sha256(KEYS["bob"])}
    return {"api_keys": keys, "session": {"trust": "sandboxed"}, "policy": {"rules": rules, **policy}}


def announcing(gateway: InProcessGateway, http: httpx.Client, key: str, workspace: str = BOSS) -> Legacy:
    return Legacy(gateway.url, http, headers=bearer(KEYS[key])).open(meta={"orbit": {"workspace": workspace}})


def listed(client: Legacy) -> set[str]:
    return {tool["name"] for tool in result_of(client.call("tools/list"))["tools"]}


@requirement("wall.provenance")
def test_a_guest_gains_nothing_by_the_workspace_it_announces(http: httpx.Client) -> None:
    tools = {"noise": {"permissions": ["notes.write"]}, "echo": {"bind": {"id": "workspace"}}}
    servers = {"probe": server(PROBE, tools=tools), "inner": server(DEMO, direct_only=True)}
    with in_process_gateway(servers, options=keyed_options()) as gateway:
        guest = announcing(gateway, http, "alice")
        assert told(guest) == ("sandboxed", BOSS, "")
        assert not any(name == "probe__noise" or name.startswith("inner__") for name in listed(guest))
        assert "Unknown tool" in error_of(guest.tool("probe__noise"))["message"]
        assert json.loads(tool_text(guest.tool("probe__echo"))) == {"id": BOSS}, "it fills in what a client may choose"
        bob = announcing(gateway, http, "bob", "elsewhere")
        assert told(bob) == ("direct", BOSS, "notes.write")
        assert "probe__noise" in listed(bob), "a rule has said its workspace"


@requirement("wall.provenance")
@pytest.mark.parametrize("era", [Legacy, Modern])
def test_a_server_gets_no_announced_workspace_that_is_not_the_operators(http: httpx.Client, era: Any) -> None:
    """Which is not is decided as in tests/unit/context/test_announced_context.py."""
    with in_process_gateway(
        {"probe": server(PROBE)}, options={"policy": {"rules": [{"principals": ["*"], "workspace": "blue"}]}}
    ) as gateway:
        client = era(gateway.url, http)
        if era is Legacy:
            client.open(meta={"orbit": {"workspace": "red"}, "acme": 1})
            shaken = json.loads(tool_text(client.tool("meta", {"initialize": True})))
            assert shaken == {"orbit": {}, "acme": 1}, "also the handshake that a server gets"
        for _ in range(3):  # the third of alike calls is no longer decided on
            found = json.loads(tool_text(client.tool("meta", meta={"orbit": {"workspace": "red", "view": 1}})))
            assert found["orbit"] == {"view": 1}


# -- nothing of a request is left for the next one


@requirement("wall.authority")
def test_pipelined_requests_inherit_nothing_of_each_other(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    body, headers = what_am_i()
    token, key = bearer(issuer.token("ada", **POWERFUL)), bearer(KEYS["alice"])
    mine = Legacy(issued.at("probe"), http, version="2025-03-26", headers=bearer(KEYS["bob"])).open()
    batch = [{"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": WHAT} for number in (1, 2)]
    with PipeliningClient(issued.url) as client:
        sent = [token, key, {}, token, bearer(issuer.token("eve")), token]
        requests = [client.rpc(body, {**headers, **credential}, PATH) for credential in sent]
        client.write(*requests, client.rpc(batch, mine.request_headers(), PATH))
        *answers, (_, of_batch) = client.answers(len(sent) + 1)
        client.write(requests[1])  # on the connection that was kept
        answers += client.answers(1)
    assert [status for status, _ in answers] == [200, 200, 401, 200, 200, 200, 200]
    found = [authority(answer) for status, answer in answers if status == 200]
    assert found == [ALL, NOTHING, ALL, NOTHING, ALL, NOTHING]
    assert [authority(answer) for answer in of_batch] == [NOTHING, NOTHING]


def options(issuer: Issuer) -> dict[str, Any]:
    return {"auth": issuer.settings(claims=CLAIMS), "api_keys": API_KEYS, "session": {"trust": "sandboxed"}}


@contextmanager
def embedded(issuer: Issuer) -> Iterator[str]:
    """An app of its own with the gateway in it, under uvicorn; gives its base URL."""
    settings = Settings.model_validate({"mcpServers": {"probe": server(PROBE)}, "gateway": options(issuer)})
    gateway = Gateway(settings)

    async def who(request: Request) -> Response:
        session = request.scope["mcp.session"]
        facts = [session.context.trust, session.context.workspace, " ".join(session.context.permissions)]
        return JSONResponse([session.principal, current_session().principal, *facts])

    async def outside(_: Request) -> Response:
        try:
            return JSONResponse(current_session().principal)
        except NoSession:
            return JSONResponse(None)

    inner = GatewaySessionMiddleware(Starlette(routes=[Route("/who", who)]), gateway)
    routes = [Route("/outside", outside), Mount("/in", inner), Mount("/gateway", create_app(settings, gateway=gateway))]
    app = Starlette(routes=routes, lifespan=gateway.lifespan)
    with served(app, lifespan="on") as url:
        yield url.removesuffix("/mcp")


@requirement("wall.authority")
def test_an_embedded_apps_requests_inherit_nothing(issuer: Issuer) -> None:
    token, key = bearer(issuer.token("ada", **POWERFUL)), bearer(KEYS["alice"])
    body, headers = what_am_i()
    with embedded(issuer) as base, PipeliningClient(base) as client:
        ask = [client.request("GET", "/in/who", credential) for credential in (token, key, {}, token)]
        inside = client.rpc(body, {**headers, **key}, "/gateway/mcp")
        client.write(*ask, client.request("GET", "/outside", {}), ask[1], inside)
        answers = client.answers(7)
    assert [status for status, _ in answers] == [200, 200, 401, 200, 200, 200, 200]
    ada, alice = f"{issuer.url}:ada", "api-key:alice"
    assert answers[0][1] == answers[3][1] == [ada, ada, *ALL]
    assert answers[1][1] == answers[5][1] == [alice, alice, *NOTHING]
    assert answers[4][1] is None, "no session of the request before"
    assert authority(answers[6][1]) == NOTHING


@requirement("wall.authority", "id.refresh")
def test_a_session_has_the_authority_of_each_request_however_it_is_found(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    """A principal may hold several tokens; one that says less may do less, also in a session that it finds by cookie,
    by header, by who it is (its default session), or with a handle."""
    more, less = bearer(issuer.token("zoe", **POWERFUL)), bearer(issuer.token("zoe"))
    url = issued.at("probe")
    for carrier in ("none", "cookie", "header"):
        first = Modern(url, http, headers=more).send("tools/call", WHAT)
        assert authority(messages(first)[-1]) == ALL
        carried = {
            "none": {},
            "cookie": {"Cookie": first.headers["set-cookie"].partition(";")[0]},
            "header": {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]},
        }[carrier]
        answer = Modern(url, http, headers={**less, **carried}).send("tools/call", WHAT)
        assert authority(messages(answer)[-1]) == NOTHING, carrier
    client = Legacy(url, http, headers=more).open()
    within = {"prefix": "MCP_SESSION_", "session": tool_text(client.tool("open_session"))}
    assert authority(messages(client.tool("env", within))[-1]) == ALL
    client.headers = less
    assert authority(messages(client.tool("env", within))[-1]) == NOTHING, "with a handle"
    client.initialize()
    assert told(client, "env") == NOTHING


@requirement("wall.authority", "rep.any")
def test_a_request_keeps_its_own_authority_on_its_way_to_another_replica(
    redis_server: RunningRedis, issuer: Issuer, http: httpx.Client
) -> None:
    more, less = bearer(issuer.token("kay", **POWERFUL)), bearer(issuer.token("kay"))
    servers, settings = {"probe": server(PROBE, handles=True)}, options(issuer) | {"store": redis_server.url}
    with (
        in_process_gateway(servers, options=settings, ring=RING) as owner,
        in_process_gateway(servers, options=settings, ring=RING) as other,
    ):
        client = Legacy(owner.url, http, headers=more).open()
        handle = tool_text(client.tool("open_session"))
        for within in ({}, {"session": handle}):
            for url, credential, expected in (
                (owner.url, more, ALL),
                (other.url, less, NOTHING),
                (other.url, more, ALL),
                (owner.url, less, NOTHING),
            ):
                client.url, client.headers = url, credential
                assert authority(messages(client.tool("env", WHAT["arguments"] | within))[-1]) == expected
