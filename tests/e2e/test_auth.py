"""Access tokens, protected-resource metadata, trusted proxies, and nobody by accident."""

import json
import time
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import DEMO, RunningGateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import AUDIENCE, Issuer, running_issuer
from tests.support.mcp_clients import Legacy, Modern, error_of, modern_body, modern_headers, tool_text
from tests.support.wire import PipeliningClient


def whoami(issued: RunningGateway, http: httpx.Client, token: str) -> Any:
    return json.loads(tool_text(Modern(issued.url, http, headers=bearer(token)).tool("demo__whoami")))


@requirement("pol.auth", "id.refresh", "life.affinity", "id.bound")
def test_a_token_is_a_principal_and_a_refreshed_one_the_same(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    first = whoami(issued, http, issuer.token("ada", jti="1", team="red", mcp={"trust": "Direct "}))
    assert first["principal"] == f"{issuer.url}:ada" and first["workspace"] == "red" and first["trust"] == "direct"
    again = whoami(issued, http, issuer.token("ada", jti="2", team="red", mcp={"trust": "direct"}))
    assert again["session_id"] == first["session_id"], "a refreshed token"
    assert whoami(issued, http, issuer.token("bob", team="red"))["session_id"] != first["session_id"]
    key = Modern(issued.url, http, headers=bearer(KEYS["alice"]))
    assert json.loads(tool_text(key.tool("demo__whoami")))["principal"] == "api-key:alice"
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


@requirement("pol.auth")
def test_new_keys_are_found_and_forged_ids_do_not_hammer_the_issuer(http: httpx.Client) -> None:
    """An issuer that counts who asks, and whose key changes."""
    with running_issuer() as issuer:
        with in_process_gateway({"demo": server(DEMO)}, options={"auth": issuer.settings()}) as gateway:
            url = gateway.url

            def status(token: str) -> int:
                return Modern(url, http, headers=bearer(token)).tool("whoami").status_code

            assert status(issuer.token()) == 200 and issuer.asked == 1
            assert [status(issuer.token(kid=f"forged-{n}")) for n in range(20)] == [401] * 20
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


@requirement("pol.permissions", "pol.trust", "id.refresh")
def test_what_a_token_no_longer_says_holds_no_longer(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    client = Legacy(issued.url, http, headers=bearer(issuer.token("eve", may=["read.secrets"]))).open()
    assert tool_text(client.tool("secret__count")) == "1"
    env = json.loads(tool_text(client.tool("probe__env", {"prefix": "MCP_SESSION_PERM"})))
    assert env == {"MCP_SESSION_PERMISSIONS": "read.secrets"}
    client.headers = bearer(issuer.token("eve", may=[], mcp={"trust": "whatever"}))
    assert "Unknown tool" in error_of(client.tool("secret__count"))["message"]
    env = json.loads(tool_text(client.tool("probe__env", {"prefix": "MCP_SESSION_"})))
    assert (env["MCP_SESSION_PERMISSIONS"], env["MCP_SESSION_TRUST"]) == ("", "sandboxed"), "unknown is not trusted"


@requirement("pol.auth", "ctx.unforgeable", "id.cookie-flags")
def test_only_trusted_proxies_say_who_calls(proxied: RunningGateway, http: httpx.Client) -> None:
    says = {"X-User": "ada", "X-Trust": "sandboxed", "X-May": "a, b", "X-Forwarded-Proto": "https"}
    answer = Modern(proxied.at("demo"), http, headers=says).tool("whoami")
    told = json.loads(tool_text(answer))
    assert told["principal"] == "proxy:ada" and told["trust"] == "sandboxed"
    assert "__Host-" in answer.headers["set-cookie"]
    assert Modern(proxied.at("demo"), http).tool("whoami").status_code == 401
    names = {"subject_header": "X-User", "trust_header": "X-Trust", "permissions_header": "X-May"}
    elsewhere = {"auth": {"proxies": {"networks": ["10.0.0.0/8"], **names}}}
    with in_process_gateway({"demo": server(DEMO)}, options=elsewhere) as gateway:
        assert Modern(gateway.url, http, headers=says).tool("whoami").status_code == 401


@requirement("wall.authority")
@pytest.mark.parametrize("name", ["X-User", "X-Trust", "X-Team", "X-May"])
def test_a_header_that_says_who_calls_stands_once(proxied: RunningGateway, name: str) -> None:
    body = modern_body("tools/call", {"name": "demo__whoami", "arguments": {}})
    headers = modern_headers(body)
    says = {"X-User": "ada", "X-Trust": "direct", "X-Team": "red", "X-May": "a"}
    for other, value in ((name, "root"), (name.lower(), "root"), (name.upper(), says[name]), (name, "")):
        with PipeliningClient(proxied.url) as client:
            request = client.rpc(body, {**headers, **says})
            client.write(request.replace(b"\r\n\r\n", f"\r\n{other}:  {value} \r\n\r\n".encode(), 1))
            [(status, answer)] = client.answers(1)
        assert status == 400 and "more than once" in answer["error"]["message"], (other, value)
