"""What servers say of their authorization servers is checked before anybody is sent there."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from gateway.bridge.state_cipher import StateCipher
from gateway.config.secrets import ConsentSettings
from gateway.context.authorization_server_client import AuthorizationServerClient, BadAnswer, Given
from gateway.context.consent_flow import ConsentFailed, ConsentFlow, client_metadata
from gateway.context.consented_tokens import ConsentedTokens, grant_name
from gateway.errors import ConsentNeeded
from session_store import KeyRing, MemoryBackend, Principal, Purpose
from session_store.testing import FakeClock
from tests.requirements import requirement

ALICE = Principal(issuer="api-key", subject="alice")
RESOURCE, ISSUER = "https://files.example/mcp", "https://login.example"
PROTECTED = "https://files.example/.well-known/oauth-protected-resource/mcp"
METADATA = f"{ISSUER}/.well-known/oauth-authorization-server"

pytestmark = requirement("cred.consent")


class Web(AuthorizationServerClient):
    """What servers answer, by URL. `asked` has the URLs of requests, `forms` what the token endpoint got."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.protected: dict[str, Any] = {"resource": RESOURCE, "authorization_servers": [ISSUER]}
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "registration_endpoint": f"{ISSUER}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        self.challenge = ""
        self.client_id = "registered"
        self.answer = Given("a.token", "bearer", 100.0, "a.refresh")

    async def send(self, request: httpx2.Request, *, head_only: bool = False) -> httpx2.Response:
        url = str(request.url)
        self.asked.append(url)
        if url == RESOURCE:
            return httpx2.Response(401, headers={"www-authenticate": f"Bearer {self.challenge}"}, request=request)
        registered = {"client_id": self.client_id, **client_metadata("https://gateway.example", "files")}
        known = {PROTECTED: self.protected, METADATA: self.metadata, f"{ISSUER}/register": registered}
        content = json.dumps(known[url]).encode() if url in known else b""
        return httpx2.Response(200 if url in known else 404, content=content, request=request)

    async def answer_to(self, endpoint: str, form: dict[str, str], headers: dict[str, str]) -> Given:
        self.forms.append(form | {"endpoint": endpoint})
        return self.answer


class Tokens(ConsentedTokens):
    """The tokens of a gateway whose requests a test answers."""

    def __init__(self, web: Web) -> None:
        clock = FakeClock()
        cipher = StateCipher(KeyRing(["k" * 40]).derive(Purpose.CONSENT))
        super().__init__(MemoryBackend(clock=clock).sealed, cipher, "https://gateway.example", clock)
        self.web = web

    @property
    def requests(self) -> Any:
        return self.web


@pytest.fixture
def web() -> Web:
    return Web()


async def begin(web: Web, **settings: Any) -> tuple[dict[str, str], ConsentFlow, ConsentSettings]:
    """The parameters of the request to which a browser is sent."""
    flow, given = ConsentFlow(Tokens(web)), ConsentSettings(resource=RESOURCE, **settings)
    url, state = await flow.begin("files", given, ALICE, "browser")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert url.startswith(f"{ISSUER}/authorize?") and asked["state"] == state
    return asked, flow, given


async def test_a_request_has_pkce_the_resource_and_the_scopes_that_the_server_asks_for(web: Web) -> None:
    web.challenge = 'scope="read write"'
    asked, flow, given = await begin(web)
    assert (asked["resource"], asked["scope"], asked["client_id"]) == (RESOURCE, "read write", "registered")
    redirect_uri = "https://gateway.example/oauth/callback/files"
    assert (asked["code_challenge_method"], asked["redirect_uri"]) == ("S256", redirect_uri)
    back = {"code": "c", "state": asked["state"], "iss": ISSUER}
    with pytest.raises(ConsentFailed, match="another browser"):
        await flow.finish("files", back, "another", lambda *_: given)
    grant = await flow.finish("files", back, "browser", lambda *_: given)
    assert grant.name == grant_name("files", given, ALICE) and grant.token == "a.token"
    (form,) = web.forms
    assert form["resource"] == RESOURCE and len(form["code_verifier"]) >= 43 and form["endpoint"] == f"{ISSUER}/token"
    with pytest.raises(ConsentFailed):
        await flow.finish("files", back, "browser", lambda *_: given)


OTHER = ConsentSettings(resource="https://other.example/mcp")


@pytest.mark.parametrize(
    ("secret", "back", "now", "why"),
    [
        ("files", {}, None, "another authorization server"),
        ("files", {"iss": "https://evil.example"}, None, "another authorization server"),
        ("files", {"iss": f"{ISSUER}/"}, None, "another authorization server"),
        ("other", {}, None, "of another authorization server"),
        ("files", {"iss": ISSUER}, OTHER, "has changed"),
    ],
    ids=["nobody says whose it is", "another's", "almost the issuer", "people were led to it", "other settings"],
)
async def test_a_code_of_another_server_or_for_other_settings_is_not_sent_anywhere(
    web: Web, secret: str, back: dict[str, str], now: ConsentSettings | None, why: str
) -> None:
    asked, flow, given = await begin(web)
    with pytest.raises(ConsentFailed, match=why):
        await flow.finish(secret, {"code": "c", "state": asked["state"], **back}, "browser", lambda *_: now or given)
    assert web.forms == []


async def test_who_is_gone_when_the_token_comes_is_not_connected(web: Web) -> None:
    asked, flow, given = await begin(web)
    back, known = {"code": "c", "state": asked["state"], "iss": ISSUER}, [given, None]
    with pytest.raises(ConsentFailed, match="has changed meanwhile"):
        await flow.finish("files", back, "browser", lambda *_: known.pop(0))
    assert await flow._tokens.connections() == []


async def test_the_token_is_for_what_is_configured_whatever_the_server_says(web: Web) -> None:
    web.protected["resource"] = "https://files.example/"
    assert (await begin(web))[0]["resource"] == RESOURCE


async def test_the_gateway_is_the_client_that_is_configured_or_its_document_or_a_registered_one(web: Web) -> None:
    _, flow, given = await begin(web)
    await flow.begin("files", given, ALICE, "browser")
    assert web.asked.count(f"{ISSUER}/register") == 1, "it registers once"
    assert (await begin(web, issuer=ISSUER, client_id="known"))[0]["client_id"] == "known"
    web.metadata["client_id_metadata_document_supported"] = True
    assert (await begin(web))[0]["client_id"] == "https://gateway.example/oauth/client/files.json"
    assert web.asked.count(f"{ISSUER}/register") == 1
    del web.metadata["client_id_metadata_document_supported"], web.metadata["registration_endpoint"]
    with pytest.raises(ConsentFailed, match=r"set consent\.issuer and client_id"):
        await begin(web)


@pytest.mark.parametrize("error", ["invalid_client", "unauthorized_client"])
async def test_a_client_that_its_server_has_forgotten_is_registered_anew(web: Web, error: str) -> None:
    asked, flow, given = await begin(web)
    back = {"code": "c", "iss": ISSUER}
    first = await flow.finish("files", {**back, "state": asked["state"]}, "browser", lambda *_: given)
    tokens, web.answer, web.client_id = flow._tokens, Given(error=error), "another"
    tokens.clock.pass_time(100.0)  # type: ignore[attr-defined]
    with pytest.raises(ConsentNeeded):
        await tokens.token_for("files", given, ALICE)
    url, state = await flow.begin("files", given, ALICE, "browser")
    assert parse_qs(urlsplit(url).query)["client_id"] == ["another"]
    web.client_id = "third"
    await tokens.forget_client(first, error)  # by a refresh of somebody else, with the former client
    assert "client_id=another" in (await flow.begin("files", given, ALICE, "browser"))[0]
    with pytest.raises(ConsentFailed, match=error):
        await flow.finish("files", {**back, "state": state}, "browser", lambda *_: given)
    assert "client_id=third" in (await flow.begin("files", given, ALICE, "browser"))[0]


@pytest.mark.parametrize(
    ("place", "changes", "why"),
    [
        ("protected", {"resource": "https://other.example/mcp"}, "of another server"),
        ("protected", {"authorization_servers": []}, "RFC 9728"),
        ("protected", {"authorization_servers": ["http://login.example"]}, "RFC 8414"),
        ("protected", {"authorization_servers": ["http://127.0.0.1:1"]}, "RFC 8414"),
        ("metadata", {"issuer": "https://evil.example"}, "another issuer"),
        ("metadata", {"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ("metadata", {"code_challenge_methods_supported": None}, "PKCE"),
        ("metadata", {"token_endpoint": "http://login.example/token"}, "not https"),
        ("metadata", {"token_endpoint": "https://localhost/token"}, "not https"),
        ("metadata", {"authorization_endpoint": "http://127.0.0.1/x"}, "not https"),
        ("metadata", {"registration_endpoint": "https://[::1]/x"}, "not https"),
    ],
)
async def test_nobody_is_sent_to_a_server_that_proves_nothing(
    web: Web, place: str, changes: dict[str, Any], why: str
) -> None:
    getattr(web, place).update(changes)
    with pytest.raises(ConsentFailed, match=why):
        await begin(web)
    assert not any("127.0.0.1" in url or url.startswith("http:") for url in web.asked)


async def test_a_server_does_not_have_the_gateway_ask_addresses_of_its_own_machine(web: Web) -> None:
    for named in ("http://127.0.0.1:8080/admin", "https://[bad", "https://a.example:port/", "https://a\x01b/"):
        web.challenge = f'resource_metadata="{named}"'
        assert (await begin(web))[0]["resource"] == RESOURCE
    assert not any("127.0.0.1" in url for url in web.asked)
    assert (await begin(web, issuer=ISSUER, scopes=("mine",)))[0]["scope"] == "mine"


@pytest.mark.parametrize(
    ("error", "told", "why"),
    [
        (BadAnswer("answers with status 500"), "status 500", "answers with status 500"),
        (ValueError("a.code"), "ValueError", "does not answer"),
    ],
)
async def test_operators_learn_why_there_is_no_token_and_nothing_that_was_sent(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, told: str, why: str
) -> None:
    async def answer_to(*_: Any) -> Given:
        raise error

    asked, flow, given = await begin(web)
    monkeypatch.setattr(web, "answer_to", answer_to)
    with pytest.raises(ConsentFailed, match=why):
        await flow.finish(
            "files", {"code": "a.code", "state": asked["state"], "iss": ISSUER}, "browser", lambda *_: given
        )
    assert told in caplog.text and "a.code" not in caplog.text
