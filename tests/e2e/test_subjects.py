"""Who may be a principal: names that can be used, said once, by tokens that were made for calling."""

import json
from typing import Any

import httpx
import jwt
import pytest

from gateway.identity.access_tokens import is_access_token
from tests.requirements import requirement
from tests.support.credentials import bearer
from tests.support.gateway_process import RunningGateway
from tests.support.issuer import Issuer
from tests.support.mcp_clients import Modern, modern_body, modern_headers, tool_text
from tests.support.pipelining_client import PipeliningClient

UNUSABLE = ("", " ", "a\nb", "a\r\nX-User: root", "a\x00", "a\u2028b", "a\u202eb", "x" * 257, " ada", "ada\t")


@requirement("wall.authority")
def test_a_token_whose_subject_is_no_name_is_refused(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    for subject in UNUSABLE:
        answer = Modern(issued.at("demo"), http, headers=bearer(issuer.token(subject))).tool("whoami")
        assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"], subject
        assert "subject is invalid" in answer.json()["error"]["message"], subject
    longest = "x" * 256
    told = json.loads(tool_text(Modern(issued.at("demo"), http, headers=bearer(issuer.token(longest))).tool("whoami")))
    assert told["principal"].endswith(longest)


OTHERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"nonce": "n"}),
    ({}, {"at_hash": "h"}),
    ({}, {"c_hash": "h", "typ": "Bearer"}),
    ({}, {"typ": "ID"}),
    ({}, {"typ": "Refresh"}),
    ({}, {"token_use": "id"}),
    ({}, {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}),
    ({"typ": "id_token"}, {}),
    ({"typ": "logout+jwt"}, {}),
    ({"typ": "dpop+jwt"}, {}),
]
ACCESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"typ": "at+jwt"}, {}),
    ({"typ": "application/at+JWT"}, {"nonce": "n"}),
    ({"typ": None}, {}),
    ({}, {"typ": "Bearer", "nonce": "older Keycloaks"}),
    ({}, {"token_use": "access"}),
]


@requirement("wall.authority")
def test_only_access_tokens_are_credentials(issued: RunningGateway, issuer: Issuer, http: httpx.Client) -> None:
    name, key = next(iter(issuer.keys.items()))
    for tokens, status in ((OTHERS, 401), (ACCESS, 200)):
        for head, claims in tokens:
            body = jwt.decode(issuer.token(**claims), options={"verify_signature": False})
            token = jwt.encode(body, key, algorithm="RS256", headers={"kid": name, **head})
            answer = Modern(issued.at("demo"), http, headers=bearer(token)).tool("whoami")
            assert answer.status_code == status, (head, claims)
    assert not is_access_token({"typ": "at+jwt;x"}, {}) and is_access_token({}, {})


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
