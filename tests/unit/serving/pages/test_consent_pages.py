"""The page of consent takes forms of people alone, and tells nothing to whoever it is not for."""

from typing import Any

import httpx
import pytest

from gateway.admin.auth import FREE
from gateway.config.settings import Settings
from gateway.context.consented_tokens import LINK_S, Link, grant_name
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from session_store import Principal
from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256

pytestmark = requirement("cred.consent")

BASE = "http://localhost:8080"
RESOURCE = "http://127.0.0.1:9/mcp"


class Page:
    """A gateway with a link that alice alone may use."""

    def __init__(self) -> None:
        options: dict[str, Any] = {
            "public_url": BASE,
            "api_keys": {name: sha256(KEYS[name]) for name in ("alice", "bob")},
            "secrets": {"files": {"consent": {"resource": RESOURCE}}},
        }
        server = {"url": RESOURCE, "headers": {"Authorization": "Bearer ${secret:files}"}}
        settings = Settings.model_validate({"mcpServers": {"files": server}, "gateway": options})
        gateway = Gateway(settings)
        gateway.state.start()
        tokens = gateway.parts.servers.consented
        alice = Principal(issuer="api-key", subject="alice")
        consent = gateway.parts.servers.credentials.consent_of("files", alice)
        assert consent is not None
        link = Link("files", grant_name("files", consent, alice), tokens.clock() + LINK_S)
        self.path = "/oauth/connect/" + tokens.sealed.seal("link", link).decode()
        self._transport = httpx.ASGITransport(create_app(settings, gateway=gateway))

    async def ask(self, method: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url=BASE) as http:
            return await http.request(method, self.path, **more)


@pytest.mark.parametrize(
    ("form", "status"),
    [({f"field{n}": "x" for n in range(9)}, 400), ({"credential": "x" * (16 << 10)}, 413), ({"other": "x"}, 401)],
)
async def test_a_form_that_is_not_the_pages_is_refused(form: Any, status: int) -> None:
    assert (await Page().ask("POST", data=form)).status_code == status


async def test_a_link_says_nothing_of_its_server_to_somebody_else() -> None:
    page = Page()
    for who, status, is_told in (("alice", 200, True), ("bob", 403, False)):
        answer = await page.ask("GET", headers=bearer(KEYS[who]))
        assert (answer.status_code, RESOURCE in answer.text) == (status, is_told)
    stranger = await page.ask("GET")
    assert RESOURCE not in stranger.text and "alice" not in stranger.text
    assert (await page.ask("PUT")).status_code == 405 and (await page.ask("HEAD")).status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_wrong_credentials_are_counted_and_lock_nobody_out_who_has_the_right_one(method: str) -> None:
    page = Page()
    wrong = [(await page.ask(method, headers=bearer(f"guess {n}"))).status_code for n in range(FREE + 1)]
    assert wrong[-1] == 429 and 429 not in wrong[:FREE]
    assert (await page.ask("GET", headers=bearer(KEYS["alice"]))).status_code == 200
    assert (await page.ask("POST", data={"credential": KEYS["bob"]})).status_code == 403, "known, and not the person"
