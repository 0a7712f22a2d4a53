"""Who may be a principal: names that can be used, said once, by tokens that were made for calling."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest

from gateway.config.policy import AuthSettings
from gateway.config.settings import Settings
from gateway.identity.access_tokens import is_access_token
from gateway.identity.authenticate import Identity
from tests.e2e.conftest import bearer
from tests.requirements import requirement
from tests.support.issuer import Issuer, running_issuer
from tests.support.one_connection import OneConnection
from tests.support.raw import Modern, modern_body, modern_headers, tool_text
from tests.support.running import DEMO, RunningGateway, running_gateway, server
from transports.inbound.http import header_map
from transports.inbound_port import Refused

UNUSABLE = ("", " ", "a\nb", "a\r\nX-User: root", "a\x00", "a\u2028b", "a\u202eb", "x" * 257, " ada", "ada\t")
NAMES = {"subject_header": "X-User", "trust_header": "X-Trust", "workspace_header": "X-Team"}
PROXIES = {"networks": ["127.0.0.0/8"], "permissions_header": "X-May", **NAMES}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(issuer: Issuer) -> Iterator[RunningGateway]:
    with running_gateway({"demo": server(DEMO)}, options={"auth": issuer.settings()}) as running:
        yield running


@pytest.fixture(scope="module")
def proxied() -> Iterator[RunningGateway]:
    with running_gateway({"demo": server(DEMO)}, options={"auth": {"proxies": PROXIES}}) as running:
        yield running


@requirement("wall.authority")
def test_a_token_whose_subject_is_no_name_is_refused(
    gateway: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    for subject in UNUSABLE:
        answer = Modern(gateway.url, http, headers=bearer(issuer.token(subject))).tool("whoami")
        assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"], subject
        assert "subject cannot be used" in answer.json()["error"]["message"], subject
    longest = "x" * 256
    told = json.loads(tool_text(Modern(gateway.url, http, headers=bearer(issuer.token(longest))).tool("whoami")))
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
def test_only_access_tokens_are_credentials(gateway: RunningGateway, issuer: Issuer, http: httpx.Client) -> None:
    name, key = next(iter(issuer.keys.items()))
    for tokens, status in ((OTHERS, 401), (ACCESS, 200)):
        for head, claims in tokens:
            body = jwt.decode(issuer.token(**claims), options={"verify_signature": False})
            token = jwt.encode(body, key, algorithm="RS256", headers={"kid": name, **head})
            answer = Modern(gateway.url, http, headers=bearer(token)).tool("whoami")
            assert answer.status_code == status, (head, claims)
    assert not is_access_token({"typ": "at+jwt;x"}, {}) and is_access_token({}, {})


@requirement("wall.authority")
@pytest.mark.parametrize("name", ["X-User", "X-Trust", "X-Team", "X-May"])
def test_a_header_that_says_who_calls_stands_once(proxied: RunningGateway, name: str) -> None:
    body = modern_body("tools/call", {"name": "whoami", "arguments": {}})
    headers = modern_headers(body)
    says = {"X-User": "ada", "X-Trust": "direct", "X-Team": "red", "X-May": "a"}
    for other, value in ((name, "root"), (name.lower(), "root"), (name.upper(), says[name]), (name, "")):
        with OneConnection(proxied.url) as client:
            request = client.rpc(body, {**headers, **says})
            client.write(request.replace(b"\r\n\r\n", f"\r\n{other}:  {value} \r\n\r\n".encode(), 1))
            [(status, answer)] = client.answers(1)
        assert status == 400 and "more than once" in answer["error"]["message"], (other, value)


@requirement("wall.authority")
def test_headers_are_the_same_in_any_case_and_with_any_space() -> None:
    for raw in ([(b"X-User", b"a"), (b"x-user", b"b")], [(b"x-USER", b"a"), (b"X-User", b" a")]):
        with pytest.raises(Refused):
            header_map(raw, frozenset({"x-user"}))
    assert header_map([(b"X-User", b" a\t")]) == {"x-user": "a"}


@requirement("wall.authority")
def test_a_proxys_names_are_usable_and_utf_8() -> None:
    auth = AuthSettings.model_validate({"proxies": PROXIES})
    identity = Identity(api_keys={}, allow_anonymous=True, auth=auth)

    def named(raw: bytes) -> str:
        headers = {"x-user": raw.decode("latin-1"), "x-team": raw.decode("latin-1")}
        who = asyncio.run(identity.authenticate(headers, "127.0.0.1"))
        assert who.granted is not None and who.granted.workspace == who.principal.subject
        return who.principal.subject

    for name in ("ada", "CN=ada,O=x", "Łucja", "àla"):
        assert named(name.encode()) == name
    for raw in (*(name.encode() for name in UNUSABLE if name), "é".encode("latin-1")):
        with pytest.raises(Refused) as refused:
            named(raw)
        assert refused.value.status == 401, raw


@requirement("wall.authority", "ops.config")
@pytest.mark.parametrize(
    ("proxies", "words"),
    [
        ({"trust_header": "X-Trust"}, "give subject_header"),
        ({"subject_header": "X User"}, "no name of a header"),
        ({"subject_header": "X-User", "trust_header": "x-user"}, "a header of its own"),
    ],
)
def test_headers_of_proxies_make_sense(proxies: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings.model_validate({"gateway": {"auth": {"proxies": {"networks": ["10.0.0.0/8"], **proxies}}}})
