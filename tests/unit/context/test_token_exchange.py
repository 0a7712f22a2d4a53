"""What an authorization server answers decides about a token, and is not believed too much."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from pydantic import ValidationError

from gateway.config.secrets import ExchangeSettings
from gateway.context.authorization_server_client import ACCESS_TOKEN, ASKED_AGAIN_S, ID_JAG, NoToken
from gateway.context.token_exchange import TokenExchange
from gateway.identity.credential_claims import CallerToken
from tests.requirements import requirement
from tests.support.http_thread import Handler, answering

NOW = 1_000.0
ADA = CallerToken("adas.own.token", NOW + 600, "all")


class Endpoint:
    """A token endpoint that answers what a test says, and the second time what is in `later`. `asked` has the bodies
    that it was sent."""

    def __init__(self) -> None:
        self.status, self.kind, self.body = 200, "application/json", b""
        self.later: list[bytes] = []
        self.asked: list[str] = []
        self.now = NOW
        self.url = ""

    def gives(self, status: int = 200, **body: object) -> None:
        """Answer with this JSON object."""
        self.status, self.body = status, json.dumps(body).encode()

    def asserts(self, **more: object) -> None:
        """Answer with an identity assertion, which has not expired."""
        kinds = {"token_type": "N_A", "issued_token_type": ID_JAG}
        self.gives(200, **{"access_token": "an.id.jag", **kinds, "expires_in": 60, **more})

    def two_steps(self, **more: object) -> TokenExchange:
        """Ask for an assertion, and present it, here too."""
        second = {"token_endpoint": self.url, "client_id": "us", **more}
        return self.exchange(resource="https://files.example/mcp", scope="read", id_jag=second)

    def exchange(self, **more: object) -> TokenExchange:
        given = {"token_endpoint": self.url, "client_id": "gateway", "audience": "files", **more}
        return TokenExchange("files", ExchangeSettings.model_validate(given), lambda: self.now)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Tokens(Handler):
        def do_POST(self) -> None:
            endpoint.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            body = endpoint.body
            if endpoint.later:  # before the client has its answer, and the test goes on
                endpoint.body = endpoint.later.pop(0)
            self.respond(endpoint.status, endpoint.kind, body)

    with answering(Tokens) as port:
        endpoint.url = f"http://127.0.0.1:{port}/token"
        yield endpoint


@requirement("cred.exchange")
async def test_a_token_is_asked_for_again_only_when_its_lifetime_ends(endpoint: Endpoint) -> None:
    endpoint.gives(access_token="one", token_type="bearer", expires_in="100", error=None)
    exchange = endpoint.exchange()
    assert (await exchange.token_for(ADA)).token == "one"
    endpoint.gives(access_token="two", token_type="Bearer", expires_in=100)
    endpoint.now = NOW + 89
    assert (await exchange.token_for(ADA)).token == "one"
    endpoint.now = NOW + 90
    assert (await exchange.token_for(ADA)).token == "two"
    assert "subject_token=adas.own.token" in endpoint.asked[0] and "client_id=gateway" in endpoint.asked[0]
    assert len(endpoint.asked) == 2


@requirement("cred.exchange")
async def test_a_token_is_not_used_for_longer_than_the_clients_is_valid_nor_for_another(endpoint: Endpoint) -> None:
    endpoint.gives(access_token="one", token_type="bearer", expires_in=9_999)
    exchange = endpoint.exchange()
    assert (await exchange.token_for(ADA)).token == "one"
    endpoint.gives(400, error="invalid_grant")
    with pytest.raises(NoToken, match="invalid_grant"):
        await exchange.token_for(CallerToken("another", ADA.expires, "all"))
    asked, endpoint.now = len(endpoint.asked), ADA.expires
    with pytest.raises(NoToken, match="has expired"):
        await exchange.token_for(ADA)
    assert len(endpoint.asked) == asked


@requirement("cred.exchange")
@pytest.mark.parametrize("said", ["nan", "inf", "-inf", -5, 0, 1])
async def test_an_odd_lifetime_makes_no_token_eternal_and_no_request_for_each_call(
    said: object, endpoint: Endpoint
) -> None:
    endpoint.gives(access_token="one", token_type="bearer", expires_in=said)
    exchange = endpoint.exchange()
    for _ in range(3):
        assert (await exchange.token_for(ADA)).token == "one"
    assert len(endpoint.asked) == 1
    endpoint.now += 60
    assert (await exchange.token_for(ADA)).token == "one" and len(endpoint.asked) == 2


@requirement("cred.exchange")
async def test_an_endpoint_that_is_none_is_told_as_what_it_does(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.status = 404
    with pytest.raises(NoToken, match="answers with status 404"):
        await endpoint.exchange().token_for(ADA)
    assert "gateway.secrets.files.exchange: " in caplog.text and "is its URL right?" in caplog.text


@requirement("cred.exchange", "ops.redact")
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
    assert (await exchange.token_for(ADA)).token == "good"


@requirement("cred.exchange", "cred.id-jag")
async def test_a_client_with_a_secret_is_named_in_one_way_except_to_take_an_assertion(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    (secret := tmp_path / "secret").write_text("ours")
    endpoint.asserts()
    endpoint.later = [b'{"access_token": "one", "token_type": "Bearer"}']
    second = {"token_endpoint": endpoint.url, "client_id": "us", "client_secret_file": secret}
    exchange = endpoint.exchange(client_secret_file=secret, resource="https://files.example/mcp", id_jag=second)
    assert (await exchange.token_for(ADA)).token == "one"
    assert [parse_qs(body).get("client_id") for body in endpoint.asked] == [None, ["us"]]


@requirement("cred.exchange", "cred.id-jag")
async def test_no_server_gets_what_an_authorization_server_was_sent(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.gives(access_token=ADA.token, token_type="bearer")
    for _ in range(2):
        with pytest.raises(NoToken, match="gives back what it was sent"):
            await endpoint.exchange().token_for(ADA)
    assert "gateway.secrets.files.exchange" in caplog.text and ADA.token not in caplog.text
    endpoint.asked.clear()
    endpoint.asserts(access_token=ADA.token)
    with pytest.raises(NoToken, match="gives back what it was sent"):
        await endpoint.two_steps().token_for(ADA)
    assert len(endpoint.asked) == 1, "it is presented nowhere"
    for token in ADA.token, "an.id.jag":
        endpoint.asserts()
        endpoint.later = [json.dumps({"access_token": token, "token_type": "bearer"}).encode()]
        with pytest.raises(NoToken, match="gives back what it was sent"):
            await endpoint.two_steps().token_for(ADA)


@requirement("cred.exchange")
@pytest.mark.parametrize("kind", [ID_JAG, "urn:ietf:params:oauth:token-type:refresh_token", ACCESS_TOKEN, ""])
async def test_a_token_for_authorization_servers_goes_to_no_other_server(endpoint: Endpoint, kind: str) -> None:
    endpoint.gives(access_token="one", token_type="Bearer", issued_token_type=kind)
    if kind in (ACCESS_TOKEN, ""):
        assert (await endpoint.exchange().token_for(ADA)).token == "one"
    else:
        with pytest.raises(NoToken, match="gives no bearer token for a server"):
            await endpoint.exchange().token_for(ADA)


@requirement("cred.exchange")
async def test_without_its_secret_the_gateway_sends_no_token(endpoint: Endpoint, tmp_path: Path) -> None:
    exchange = endpoint.exchange(client_secret_file=tmp_path / "missing")
    with pytest.raises(NoToken, match="no client secret"):
        await exchange.token_for(ADA)
    assert endpoint.asked == []


@requirement("cred.id-jag")
async def test_an_assertion_is_presented_once_at_the_authorization_server_that_it_is_for(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.asserts()
    token = {"access_token": "one", "token_type": "Bearer", "expires_in": 100}
    endpoint.later = [json.dumps(token).encode(), endpoint.body, json.dumps(token | {"access_token": "two"}).encode()]
    exchange = endpoint.two_steps()
    assert [(await exchange.token_for(ADA)).token for _ in range(3)] == ["one"] * 3
    first, second = (parse_qs(body) for body in endpoint.asked)
    assert first["requested_token_type"] == [ID_JAG] and first["subject_token"] == [ADA.token]
    assert first["audience"] == ["files"] and first["resource"] == second["resource"] == ["https://files.example/mcp"]
    assert second["assertion"] == ["an.id.jag"] and second["client_id"] == ["us"] and second["scope"] == ["read"]
    assert ADA.token not in endpoint.asked[1], "the other server does not get the client's token"
    endpoint.now += 90
    assert (await exchange.token_for(ADA)).token == "two" and len(endpoint.asked) == 4, (
        "a new one, with a new assertion"
    )


@requirement("cred.id-jag")
@pytest.mark.parametrize(
    "more",
    [
        {"issued_token_type": ACCESS_TOKEN},
        {"issued_token_type": None},
        {"token_type": "Bearer"},
        {"token_type": ""},
        {"access_token": "a b"},
        {"access_token": ""},
        {"expires_in": 0},
        {"expires_in": -60},
        {"expires_in": "nan"},
        {"access_token": "x" * 70_000},
    ],
)
async def test_what_is_no_assertion_goes_to_no_other_server(endpoint: Endpoint, more: dict[str, object]) -> None:
    endpoint.asserts(**more)
    exchange = endpoint.two_steps()
    for _ in range(2):
        with pytest.raises(NoToken):
            await exchange.token_for(ADA)
    assert len(endpoint.asked) == 1, "nor is it asked for with each call"


@requirement("cred.id-jag", "ops.redact")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"access_token": "good", "token_type": "N_A", "issued_token_type": ID_JAG}, "bearer token"),
        ({"access_token": "good"}, "bearer token"),
        ({"error": "invalid_grant", "error_description": "an.id.jag"}, "invalid_grant"),
    ],
)
async def test_an_assertion_that_is_not_accepted_gives_no_token(
    endpoint: Endpoint, given: dict[str, object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.asserts()
    endpoint.later = [json.dumps(given).encode()]
    exchange = endpoint.two_steps()
    for _ in range(2):
        with pytest.raises(NoToken, match=why) as failed:
            await exchange.token_for(ADA)
    assert len(endpoint.asked) == 2 and "an.id.jag" not in f"{failed.value} {caplog.text}"
    where = "gateway.secrets.files.exchange.id_jag: the token endpoint of 127.0.0.1 "
    assert where in caplog.text, "the operator learns which of the two it was"


@requirement("cred.id-jag")
async def test_an_assertion_is_not_presented_without_the_secret_of_the_gateway(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.asserts()
    with pytest.raises(NoToken, match="no client secret"):
        await endpoint.two_steps(client_secret_file=tmp_path / "missing").token_for(ADA)
    assert len(endpoint.asked) == 1


@requirement("cred.id-jag")
@pytest.mark.parametrize(
    "more",
    [
        {"audience": ""},
        {"resource": ""},
        {"id_jag": {"token_endpoint": "http://files.example/token", "client_id": "us"}},
        {"id_jag": {"token_endpoint": "https://files.example/token", "client_id": ""}},
    ],
)
def test_an_assertion_is_for_a_server_that_is_named_and_goes_by_a_safe_way(more: dict[str, object]) -> None:
    second = {"token_endpoint": "https://files.example/token", "client_id": "us"}
    good = {"token_endpoint": "https://id.example/token", "client_id": "gateway", "audience": "https://files.example"}
    good |= {"resource": "https://files.example/mcp", "id_jag": second}  # type: ignore[dict-item]  # any JSON
    assert ExchangeSettings.model_validate(good).id_jag is not None
    with pytest.raises(ValidationError):
        ExchangeSettings.model_validate(good | more)
