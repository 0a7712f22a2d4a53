"""Two people, three replicas, and a certified provider whose tokens live for two seconds: each server acts for the
person of its session, however often the tokens are replaced. `PERSON_TOKEN_CALLS` is the number of calls."""

import hashlib
import itertools
import json
import logging
import os
import secrets
import time
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt
import pytest

from tests.requirements import requirement
from tests.support.asgi import served
from tests.support.consenting_server import Person
from tests.support.credentials import bearer, sha256
from tests.support.free_ports import free_port
from tests.support.gateway_process import PROBE, SIGNED, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, error_of, messages, tool_text
from tests.support.openid_provider import log_in, running_provider
from tests.support.redis_server import RunningRedis
from tests.support.scripted_http_server import HttpProbe, Reply, Seen, result_of
from tests.support.stdio_server import text
from tests.support.waiting import eventually

logger = logging.getLogger(__name__)

CALLS: Final = int(os.environ.get("PERSON_TOKEN_CALLS", "4000"))
PEOPLE: Final = ("ada", "ben")
LIVES_S: Final = 2
USED_S: Final = 0.9 * LIVES_S - 0.01
"""A token is replaced in its last tenth. The hundredth is for the roundings of two programs that tell the time."""
CALLBACK: Final = "http://localhost:9/callback"
OPERATOR: Final = "operator-key"


class Provider:
    """What a test asks of the provider."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        keys = httpx.get(f"{issuer}/jwks").json()["keys"]
        self._keys = {key["kid"]: jwt.PyJWK(key) for key in keys if key["kty"] == "RSA"}

    def subject(self, token: str, resource: str, *, may_be_over: bool = False) -> str:
        """Whom a token for that resource names. Raises `jwt.InvalidTokenError` for any other token."""
        key = self._keys[jwt.get_unverified_header(token)["kid"]]
        # One second, because times are whole seconds there, and another for the way.
        known: Any = {"audience": resource, "issuer": self.issuer, "leeway": 2}
        claims = jwt.decode(token, key, ["RS256"], options={"verify_exp": not may_be_over}, **known)
        return str(claims["sub"])

    def client(self, **metadata: Any) -> dict[str, Any]:
        """Register a client."""
        registered = httpx.post(f"{self.issuer}/reg", json={"response_types": [], "redirect_uris": [], **metadata})
        assert registered.status_code == 201, registered.text
        return dict(registered.json())

    def token(self, person: str, resource: str) -> str:
        """The token of a client in which a person has logged in."""
        flow: Any = {"grant_types": ["authorization_code"], "response_types": ["code"], "redirect_uris": [CALLBACK]}
        client = {"client_id": self.client(token_endpoint_auth_method="none", **flow)["client_id"]}
        verifier = secrets.token_urlsafe(48)
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {**client, "response_type": "code", "redirect_uri": CALLBACK, "scope": "mcp", "resource": resource}
        asked |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        (code,) = parse_qs(urlsplit(log_in(f"{self.issuer}/auth?{urlencode(asked)}", person, CALLBACK)).query)["code"]
        form = {**client, "grant_type": "authorization_code", "code": code, "redirect_uri": CALLBACK}
        given = httpx.post(f"{self.issuer}/token", data=form | {"code_verifier": verifier, "resource": resource})
        return str(given.json()["access_token"])

    def given(self, kind: str, resource: str) -> dict[str, list[float]]:
        """When it gave tokens for a resource by this grant, for each person. Fails if it has refused any."""
        events = httpx.get(f"{self.issuer}/events").json()
        assert not [event for event in events if event.get("error")], "nothing was asked twice, or too late"
        found = [each for each in events if each["grant"].endswith(kind) and each["aud"] == resource]
        return {name: [each["at"] for each in found if each["person"] == name] for name in PEOPLE}

    def forget(self, person: str) -> None:
        """Remove a person's account."""
        httpx.get(f"{self.issuer}/forget", params={"person": person})


class Showing(HttpProbe):
    """A server that says whom the tokens name that a call had, if they are valid."""

    provider: Provider

    def _call(self, seen: Seen, session: str) -> Reply:
        self.executed.append(session)
        sent = [seen.headers[name].removeprefix("Bearer ") for name in ("authorization", "x-exchanged")]
        return Reply(body=result_of(seen, text(json.dumps([self.provider.subject(each, self.url) for each in sent]))))


def options(provider: Provider, resource: str, folder: Path, port: int) -> dict[str, Any]:
    """The settings of gateways with two secrets: one is exchanged, and people consent to the other."""
    grants = ["urn:ietf:params:oauth:grant-type:token-exchange"]
    client = provider.client(grant_types=grants)
    (secret := folder / "client-secret").write_text(client["client_secret"])
    endpoint = {"token_endpoint": f"{provider.issuer}/token", "client_id": client["client_id"]}
    own = f"http://127.0.0.1:{port}/mcp"
    entry = {"issuer": provider.issuer, "audience": own, "jwks_url": f"{provider.issuer}/jwks", "scopes": ["mcp"]}
    return {
        "auth": {"resource": own, "jwt": [entry]},
        "admin": {"keys": {"ops": sha256(OPERATOR)}},
        "policy": UNLIMITED,
        "log_level": "warning",
        "secrets": {
            "exchanged": {"exchange": {**endpoint, "client_secret_file": str(secret), "resource": resource}},
            "consented": {"consent": {"resource": resource, "issuer": provider.issuer, "scopes": ["mcp"]}},
        },
    }


def link_in(answer: httpx.Response) -> str:
    """The link of an error that asks for consent."""
    error = error_of(answer)
    assert error["data"]["reason"] == "consent_needed", error
    return str(error["data"]["url"])


def connect(gateway: RunningGateway, provider: Provider, person: str, token: str) -> None:
    """Open the link that a client gets in place of a result, prove who it is, log in and come back. Somebody else who
    opens it gets nothing."""
    with httpx.Client(timeout=30) as http:
        link = link_in(Modern(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(token)).tool("count"))
    other = provider.token("somebody", f"{gateway.base}/mcp")
    assert Person("somebody", other).open(link).status_code == 403
    own = Person(person, token)
    page = own.open(link)
    assert page.status_code == 303, page.text
    back = log_in(page.headers["location"], person, gateway.base)
    assert own.browser.get(back).status_code == 200


@requirement("cred.exchange", "cred.consent", "rep.any")
@pytest.mark.timeout(600)
def test_no_call_of_thousands_has_the_token_of_another_person(redis_server: RunningRedis, tmp_path: Path) -> None:
    port, remote = free_port(), Showing()
    own = f"http://127.0.0.1:{port}/mcp"
    with ExitStack() as stack:
        remote.url = stack.enter_context(served(remote))
        issuer = stack.enter_context(running_provider((own, 600), (remote.url, LIVES_S)))
        provider = remote.provider = Provider(issuer)
        given = options(provider, remote.url, tmp_path, port) | {"store": redis_server.url}
        sent = {"Authorization": "Bearer ${secret:consented}", "X-Exchanged": "Bearer ${secret:exchanged}"}
        env = {"TOKEN_A": "${secret:consented}", "TOKEN_B": "${secret:exchanged}"}
        servers = {"remote": {"url": remote.url, "headers": sent}, "local": server(PROBE, env=env)}
        gateways = [
            stack.enter_context(running_gateway(servers, options=given, env=SIGNED, must_stop=False, port=each))
            for each in (port, 0, 0)
        ]
        tokens = {name: provider.token(name, own) for name in PEOPLE}
        for name, token in tokens.items():
            connect(gateways[0], provider, name, token)

        def work(first: int, who: str, name: str, kind: Any) -> int:
            with httpx.Client(timeout=60) as http:
                client = kind(f"{gateways[first % 3].base}/servers/{name}/mcp", http, headers=bearer(tokens[who]))
                if kind is Legacy:
                    client.open()
                for number in range(CALLS // 8):
                    client.url = f"{gateways[(first + number) % 3].base}/servers/{name}/mcp"
                    if name == "remote":
                        whose = json.loads(tool_text(client.tool("count")))
                    else:
                        found = json.loads(tool_text(client.tool("env", {"prefix": "TOKEN"})))
                        held = [found["TOKEN_A"], found["TOKEN_B"]]
                        whose = [provider.subject(each, remote.url, may_be_over=True) for each in held]
                    assert whose == [who, who]
                return CALLS // 8

        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            kinds = enumerate(itertools.product(PEOPLE, servers, (Legacy, Modern)))
            done = sum(pool.map(lambda kind: work(kind[0], *kind[1]), kinds))
        took_s = time.monotonic() - begun
        assert done == CALLS // 8 * 8
        refreshed, exchanged = provider.given("refresh_token", remote.url), provider.given("exchange", remote.url)
        logger.info(
            "%d calls in %.1f s; refreshed %s, exchanged %s", done, took_s, *map(_counts, (refreshed, exchanged))
        )
        for at in refreshed.values():
            assert len(at) > took_s / LIVES_S / 2, "in the whole time"
            assert all(later - earlier >= USED_S for earlier, later in itertools.pairwise(at)), "once for each expiry"
        for at in exchanged.values():  # each replica exchanges for the sessions that it owns
            assert all(later - earlier >= USED_S for earlier, later in zip(at, at[3:], strict=False))

        ends(gateways, provider, remote, tokens)


def ends(gateways: list[RunningGateway], provider: Provider, remote: Showing, tokens: dict[str, str]) -> None:
    """What is revoked is refused at once, on each replica; of whom the provider does not know any more, when the token
    ends. Nothing is sent then."""

    def call(gateway: RunningGateway, who: str) -> Any:
        with httpx.Client(timeout=30) as http:
            return Modern(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(tokens[who])).tool("count")

    issuer, admin = provider.issuer, f"{gateways[1].base}/admin/api/credentials"
    revoked = httpx.delete(admin, params={"principal": f"{issuer}:ada"}, headers=bearer(OPERATOR))
    assert revoked.json() == {"revoked": 1}, revoked.text
    before = len(remote.executed)
    assert all(link_in(call(gateway, "ada")) for gateway in gateways) and len(remote.executed) == before
    assert json.loads(tool_text(call(gateways[2], "ben"))) == ["ben", "ben"]
    provider.forget("ben")
    begun = time.monotonic()
    assert eventually(lambda: all("error" in messages(call(gateway, "ben"))[-1] for gateway in gateways))
    refused_s, before = time.monotonic() - begun, len(remote.executed)
    logger.info("refused by all %.1f s after the account was removed", refused_s)
    assert refused_s < 2 * LIVES_S, "when the tokens end that each of them has"
    assert all("error" in messages(call(gateway, "ben"))[-1] for gateway in gateways) and len(remote.executed) == before


def _counts(times: dict[str, list[float]]) -> dict[str, int]:
    return {name: len(at) for name, at in times.items()}
