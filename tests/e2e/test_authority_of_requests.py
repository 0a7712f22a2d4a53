"""Whose authority a request has: that of its own credential, and of nothing that came before it on its connection."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from gateway.config.settings import Settings
from gateway.integrations.gateway_sessions import GatewaySessionMiddleware
from gateway.integrations.session_middleware import SCOPE_KEY
from gateway.serving.app import Gateway, create_app
from session_store import NoSession, current_session
from tests.requirements import requirement
from tests.support.asgi import served
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, server
from tests.support.in_process_gateway import RING, in_process_gateway
from tests.support.issuer import Issuer
from tests.support.mcp_clients import Legacy, Modern, messages, modern_body, modern_headers, tool_text
from tests.support.named_gateways import CLAIMS
from tests.support.redis_server import RunningRedis
from tests.support.wire import PipeliningClient

pytestmark = requirement("wall.authority")

POWERFUL: dict[str, Any] = {"mcp": {"trust": "direct"}, "team": "red", "may": ["notes.write"]}
NOTHING = ("sandboxed", "", "")
PATH = "/servers/probe/mcp"


def options(issuer: Issuer) -> dict[str, Any]:
    return {
        "auth": issuer.settings(claims=CLAIMS),
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
        "session": {"trust": "sandboxed"},
    }


def what_am_i() -> tuple[Any, dict[str, str]]:
    body = modern_body("tools/call", {"name": "env", "arguments": {"prefix": "MCP_SESSION_"}})
    return body, modern_headers(body)


def authority(answer: Any) -> tuple[str, str, str]:
    """Trust, workspace and permissions, as the server was told them."""
    told = json.loads(answer["result"]["content"][0]["text"])
    return told["MCP_SESSION_TRUST"], told["MCP_SESSION_WORKSPACE"], told["MCP_SESSION_PERMISSIONS"]


def test_pipelined_requests_inherit_nothing_of_each_other(issued: RunningGateway, issuer: Issuer) -> None:
    body, headers = what_am_i()
    token, key = bearer(issuer.token("ada", **POWERFUL)), bearer(KEYS["alice"])
    plain = bearer(issuer.token("eve"))
    with PipeliningClient(issued.url) as client:
        sent = [token, key, {}, token, plain, token, key]
        client.write(*(client.rpc(body, {**headers, **credential}, PATH) for credential in sent))
        answers = client.answers(len(sent))
    assert [status for status, _ in answers] == [200, 200, 401, 200, 200, 200, 200]
    powerful = ("direct", "red", "notes.write")
    found = [authority(answer) for status, answer in answers if status == 200]
    assert found == [powerful, NOTHING, powerful, NOTHING, powerful, NOTHING]


def test_a_kept_alive_connection_inherits_nothing(issued: RunningGateway, issuer: Issuer) -> None:
    body, headers = what_am_i()
    with PipeliningClient(issued.url) as client:
        for credential, expected in (
            (bearer(issuer.token("ada", **POWERFUL)), ("direct", "red", "notes.write")),
            (bearer(KEYS["bob"]), NOTHING),
        ):
            client.write(client.rpc(body, {**headers, **credential}, PATH))
            [(status, answer)] = client.answers(1)
            assert status == 200 and authority(answer) == expected


def test_a_batch_inherits_nothing_of_the_request_before_it(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    body, headers = what_am_i()
    mine = Legacy(issued.at("probe"), http, version="2025-03-26", headers=bearer(KEYS["bob"])).open()
    call = {
        "jsonrpc": "2.0",
        "method": "tools/call",
        "params": {"name": "env", "arguments": {"prefix": "MCP_SESSION_"}},
    }
    batch = [{**call, "id": number} for number in (1, 2)]
    with PipeliningClient(issued.url) as client:
        token = bearer(issuer.token("ada", **POWERFUL))
        client.write(
            client.rpc(body, {**headers, **token}, PATH),
            client.rpc(batch, mine.request_headers(), PATH),
        )
        (first, _), (second, answers) = client.answers(2)
    assert (first, second) == (200, 200)
    assert [authority(answer) for answer in answers] == [NOTHING, NOTHING]


@contextmanager
def embedded(issuer: Issuer) -> Iterator[str]:
    """An app of its own with the gateway in it, under uvicorn; gives its base URL."""
    settings = Settings.model_validate({"mcpServers": {"probe": server(PROBE)}, "gateway": options(issuer)})
    gateway = Gateway(settings)

    async def who(request: Request) -> Response:
        session = request.scope[SCOPE_KEY]
        found = {"principal": session.principal, "trust": session.context.trust, "here": current_session().principal}
        return JSONResponse(found | {"workspace": session.context.workspace, "may": list(session.context.permissions)})

    async def outside(_: Request) -> Response:
        try:
            return JSONResponse({"principal": current_session().principal})
        except NoSession:
            return JSONResponse({"principal": None})

    inner = GatewaySessionMiddleware(Starlette(routes=[Route("/who", who)]), gateway)
    routes = [Route("/outside", outside), Mount("/in", inner), Mount("/gateway", create_app(settings, gateway=gateway))]
    app = Starlette(routes=routes, lifespan=gateway.lifespan)
    with served(app, lifespan="on") as url:
        yield url.removesuffix("/mcp")


def test_an_embedded_apps_requests_inherit_nothing(issuer: Issuer) -> None:
    token, key = bearer(issuer.token("ada", **POWERFUL)), bearer(KEYS["alice"])
    body, headers = what_am_i()
    with embedded(issuer) as base, PipeliningClient(base) as client:
        ask = [client.request("GET", "/in/who", credential) for credential in (token, key, {}, token)]
        inside = client.rpc(body, {**headers, **key}, "/gateway/mcp")
        # Written at once, and then one by one on the same connection.
        client.write(*ask, client.request("GET", "/outside", {}), ask[1], inside)
        answers = client.answers(7)
        for one in (ask[0], ask[1], inside):
            client.write(one)
            answers += client.answers(1)
    assert [status for status, _ in answers] == [200, 200, 401, 200, 200, 200, 200, 200, 200, 200]
    ada = {"trust": "direct", "workspace": "red", "may": ["notes.write"]}
    alice = {"principal": "api-key:alice", "here": "api-key:alice", "trust": "sandboxed", "workspace": "", "may": []}
    for at in (0, 3, 7):
        assert ada.items() <= answers[at][1].items()
    for at in (1, 5, 8):
        assert answers[at][1] == alice
    assert answers[4][1] == {"principal": None}, "no session of the request before"
    assert authority(answers[6][1]) == authority(answers[9][1]) == NOTHING


@requirement("id.refresh")
def test_a_session_has_the_authority_of_each_request_however_it_is_found(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    """A principal may hold several tokens; one that says less may do less, also in a session that it finds by cookie,
    by header, by who it is (its default session), or with a handle."""
    body, _ = what_am_i()
    less = bearer(issuer.token("zoe"))
    for carrier in ("none", "cookie", "header", "initialize"):
        more = bearer(issuer.token("zoe", **POWERFUL))
        first = Modern(issued.at("probe"), http, headers=more).send(body["method"], body["params"])
        assert authority(messages(first)[-1]) == ("direct", "red", "notes.write")
        carried = {
            "none": {},
            "cookie": {"Cookie": first.headers["set-cookie"].partition(";")[0]},
            "header": {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]},
            "initialize": {},
        }[carrier]
        if carrier == "initialize":
            client = Legacy(issued.at("probe"), http, headers={**more}).open()
            client.headers = less
            client.initialize()
            answer = client.call(body["method"], {"name": "env", "arguments": {"prefix": "MCP_SESSION_"}})
        else:
            answer = Modern(issued.at("probe"), http, headers={**less, **carried}).send(body["method"], body["params"])
        assert authority(messages(answer)[-1]) == NOTHING, carrier


def test_a_handles_session_has_the_authority_of_each_request(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    client = Legacy(issued.at("probe"), http, headers=bearer(issuer.token("ada", **POWERFUL))).open()
    within = {"prefix": "MCP_SESSION_", "session": tool_text(client.tool("open_session"))}
    assert authority(messages(client.tool("env", within))[-1]) == ("direct", "red", "notes.write")
    client.headers = bearer(issuer.token("ada"))
    assert authority(messages(client.tool("env", within))[-1]) == NOTHING


@requirement("rep.any")
def test_a_request_keeps_its_own_authority_on_its_way_to_another_replica(
    redis_server: RunningRedis, issuer: Issuer, http: httpx.Client
) -> None:
    more, less = bearer(issuer.token("kay", **POWERFUL)), bearer(issuer.token("kay"))
    servers = {"probe": server(PROBE, handles=True)}
    settings = options(issuer) | {"store": redis_server.url}
    with (
        in_process_gateway(servers, options=settings, ring=RING) as owner,
        in_process_gateway(servers, options=settings, ring=RING) as other,
    ):
        client = Legacy(owner.url, http, headers=more).open()
        handle = tool_text(client.tool("open_session"))
        for within in ({}, {"session": handle}):
            arguments = {"prefix": "MCP_SESSION_"} | within
            for url, credential, expected in (
                (owner.url, more, ("direct", "red", "notes.write")),
                (other.url, less, NOTHING),
                (other.url, more, ("direct", "red", "notes.write")),
                (owner.url, less, NOTHING),
            ):
                client.url, client.headers = url, credential
                assert authority(messages(client.tool("env", arguments))[-1]) == expected
