"""What an authorization server answers decides about a token, and is not believed too much."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.secrets import ExchangeSettings
from gateway.context.authorization_requests import ASKED_AGAIN_S, NoToken
from gateway.context.token_exchange import TokenExchange
from gateway.identity.credential_claims import CallerToken
from tests.requirements import requirement
from tests.support.http_thread import Handler, answering

NOW = 1_000.0
ADA = CallerToken("adas.own.token", NOW + 600, "all")


class Endpoint:
    """A token endpoint that answers what a test says. `asked` has the bodies that it was sent."""

    def __init__(self) -> None:
        self.status, self.kind, self.body = 200, "application/json", b""
        self.asked: list[str] = []
        self.now = NOW
        self.url = ""

    def gives(self, status: int = 200, **body: object) -> None:
        """Answer with this JSON object."""
        self.status, self.body = status, json.dumps(body).encode()

    def exchange(self, **more: object) -> TokenExchange:
        given = {"token_endpoint": self.url, "client_id": "gateway", "audience": "files", **more}
        return TokenExchange("files", ExchangeSettings.model_validate(given), lambda: self.now)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Tokens(Handler):
        def do_POST(self) -> None:
            endpoint.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.respond(endpoint.status, endpoint.kind, endpoint.body)

    with answering(Tokens) as port:
        endpoint.url = f"http://127.0.0.1:{port}/token"
        yield endpoint


@requirement("cred.exchange")
@pytest.mark.anyio
async def test_a_token_is_asked_for_again_only_when_its_lifetime_ends(endpoint: Endpoint) -> None:
    endpoint.gives(access_token="one", token_type="bearer", expires_in="100", error=None)
    exchange = endpoint.exchange()
    assert await exchange.token_for(ADA) == "one"
    endpoint.gives(access_token="two", token_type="Bearer", expires_in=100)
    endpoint.now = NOW + 89
    assert await exchange.token_for(ADA) == "one"
    endpoint.now = NOW + 90
    assert await exchange.token_for(ADA) == "two"
    assert "subject_token=adas.own.token" in endpoint.asked[0] and "client_id=gateway" in endpoint.asked[0]
    assert len(endpoint.asked) == 2


@requirement("cred.exchange")
@pytest.mark.anyio
async def test_a_token_is_not_used_for_longer_than_the_clients_is_valid_nor_for_another(endpoint: Endpoint) -> None:
    endpoint.gives(access_token="one", token_type="bearer", expires_in=9_999)
    exchange = endpoint.exchange()
    assert await exchange.token_for(ADA) == "one"
    endpoint.gives(400, error="invalid_grant")
    with pytest.raises(NoToken, match="invalid_grant"):
        await exchange.token_for(CallerToken("another", ADA.expires, "all"))
    asked, endpoint.now = len(endpoint.asked), ADA.expires
    with pytest.raises(NoToken, match="has expired"):
        await exchange.token_for(ADA)
    assert len(endpoint.asked) == asked


@requirement("cred.exchange")
@pytest.mark.anyio
@pytest.mark.parametrize("said", ["nan", "inf", "-inf", -5, 0, 1])
async def test_an_odd_lifetime_makes_no_token_eternal_and_no_request_for_each_call(
    said: object, endpoint: Endpoint
) -> None:
    endpoint.gives(access_token="one", token_type="bearer", expires_in=said)
    exchange = endpoint.exchange()
    for _ in range(3):
        assert await exchange.token_for(ADA) == "one"
    assert len(endpoint.asked) == 1
    endpoint.now += 60
    assert await exchange.token_for(ADA) == "one" and len(endpoint.asked) == 2


@requirement("cred.exchange")
@pytest.mark.anyio
async def test_an_endpoint_that_is_none_is_told_as_what_it_does(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.status = 404
    with pytest.raises(NoToken, match="answers with status 404"):
        await endpoint.exchange().token_for(ADA)
    assert "is its URL right?" in caplog.text


@requirement("cred.exchange", "ops.redact")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b"{}"),
        (200, b'{"access_token": "", "token_type": "bearer"}'),
        (200, b'{"access_token": "a b\\r\\nx: y", "token_type": "bearer"}'),
        (200, b'{"access_token": "good", "token_type": "DPoP"}'),
        (200, b'{"access_token": "good"}'),
        (200, b'{"x": ' + b"[" * 60_000),
        (200, b'{"access_token": ["good"], "token_type": "bearer"}'),
        (200, b'{"access_token": "' + b"x" * 70_000 + b'", "token_type": "bearer"}'),
        (302, b'{"access_token": "good", "token_type": "bearer"}'),
        (500, b'{"access_token": "good", "token_type": "bearer"}'),
        (400, b'{"error": "adas.own.token is <unknown>"}'),
        (400, b'{"access_token": "good", "token_type": "bearer"}'),
    ],
)
async def test_an_answer_without_a_bearer_token_gives_none(
    endpoint: Endpoint, status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.status, endpoint.body = status, body
    exchange = endpoint.exchange()
    for _ in range(2):
        with pytest.raises(NoToken) as failed:
            await exchange.token_for(ADA)
    assert len(endpoint.asked) == 1, "it is not asked with each call"
    assert ADA.token not in f"{failed.value} {caplog.text} {ADA}" and "good" not in caplog.text
    endpoint.gives(access_token="good", token_type="bearer")
    endpoint.now += ASKED_AGAIN_S
    assert await exchange.token_for(ADA) == "good"


@requirement("cred.exchange")
@pytest.mark.anyio
async def test_without_its_secret_the_gateway_sends_no_token(endpoint: Endpoint, tmp_path: Path) -> None:
    exchange = endpoint.exchange(client_secret_file=tmp_path / "missing")
    with pytest.raises(NoToken, match="no client secret"):
        await exchange.token_for(ADA)
    assert endpoint.asked == []
