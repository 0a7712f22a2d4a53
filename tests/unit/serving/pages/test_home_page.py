"""What a stranger finds in a browser: how to connect, and nothing of anybody's."""

import base64
import hashlib
import re
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from gateway.version import __version__
from tests.requirements import requirement

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}
SERVERS = {"payroll-secret": {"url": "http://127.0.0.1:9/mcp"}}


class Served:
    """A gateway with the page."""

    def __init__(self, **options: Any) -> None:
        settings = Settings.model_validate({"mcpServers": SERVERS, "gateway": options})
        self.gateway = Gateway(settings)
        self.gateway.state.start()  # its servers need not run
        self.app = create_app(settings, gateway=self.gateway)

    def client(self, **more: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, **more)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost:8080")


async def visited(path: str = "/", headers: dict[str, str] = BROWSER, **options: Any) -> httpx.Response:
    """What a browser is shown, or a client that sends other headers."""
    async with Served(**options).client() as http:
        return await http.get(path, headers=BROWSER | headers)


@requirement("first.home")
@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_a_browser_gets_a_page_that_says_how_to_connect(path: str) -> None:
    served = Served()
    async with served.client() as http:
        page = await http.get(path, headers=BROWSER)
        served.gateway.state.start_draining()
        assert "takes no new sessions now" in (await http.get(path, headers=BROWSER)).text
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "claude mcp add --transport http gateway http://localhost:8080/mcp" in page.text
    assert "The gateway serves requests." in page.text and 'href="/readyz"' in page.text
    assert "MCP_TOKEN" not in page.text and "/admin" not in page.text


@requirement("first.home")
@pytest.mark.parametrize("path", ["/", "/mcp", "/servers/payroll-secret/mcp"])
async def test_the_page_tells_nothing_and_leaves_nothing(path: str) -> None:
    served = Served()
    async with served.client() as http:
        page = await http.get(path, headers=BROWSER)
    asked = "http://localhost:8080/servers/payroll-secret/mcp", "payroll-secret"
    known = page.text
    for text in asked if path.startswith("/servers") else asked[:1]:  # whoever asks has named it
        known = known.replace(text, "")
    assert "payroll" not in known and __version__ not in page.text
    assert "set-cookie" not in page.headers and page.headers["cache-control"] == "no-store"
    assert not any(name.startswith("mcp-") for name in page.headers)
    assert not [*served.gateway.parts.foundation.live]


@requirement("first.home")
async def test_the_page_runs_no_script_and_has_the_style_that_is_allowed() -> None:
    async with Served().client() as http:
        page = await http.get("/", headers=BROWSER)
        assert (await http.head("/", headers=BROWSER)).status_code == 404, "a look at the head is no visit"
        assert (await http.head("/mcp", headers=BROWSER)).status_code == 405
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.S)
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and f"'sha256-{allowed}'" in policy
    assert "<script" not in page.text and "style=" not in page.text


@requirement("first.home")
@pytest.mark.parametrize("accept", ["*/*", "", "text/plain", "application/json;q=0.1, */*;q=0.01"])
async def test_whoever_asks_for_no_page_gets_the_same_as_text(accept: str) -> None:
    served = Served(api_keys={"ann": "0" * 64})
    async with served.client() as http:
        text = await http.get("/", headers={"Accept": accept})
        assert text.status_code == 200 and text.headers["content-type"] == "text/plain; charset=utf-8"
        assert "endpoint   http://localhost:8080/mcp\n" in text.text and "serves requests" in text.text
        assert "connect CLIENT --url http://localhost:8080/mcp\n" in text.text and "API key" in text.text
        assert "payroll" not in text.text and __version__ not in text.text and "set-cookie" not in text.headers
        assert (await http.get("/", headers={"Accept": accept, "Host": "evil.example"})).status_code == 421
    assert not [*served.gateway.parts.foundation.live]


@requirement("first.home")
@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/event-stream", ""])
async def test_programs_get_what_they_got_before(accept: str) -> None:
    async with Served().client() as http:
        for path in ("/", "/mcp", "/servers/payroll-secret/mcp"):
            for method in ("GET", "HEAD", "POST", "OPTIONS"):
                if (method, path) == ("GET", "/") and "application" not in accept:
                    continue  # a text
                headers = {"Accept": accept}
                if method == "GET" and "event-stream" in accept:
                    headers["Mcp-Session-Id"] = "unknown"
                answer = await http.request(method, path, headers=headers)
                get = 404 if path == "/" or "event-stream" in accept else 406
                endpoint = {"GET": get, "HEAD": 405, "POST": 415, "OPTIONS": 204}
                assert answer.status_code == (404 if path == "/" else endpoint[method]), (path, method)
                assert "html" not in answer.headers.get("content-type", "") and "connect" not in answer.text


@requirement("first.home")
@pytest.mark.parametrize(
    ("options", "host", "status", "shown"),
    [
        ({}, "evil.example", 421, "evil"),
        ({"allowed_hosts": ["*"]}, "a<b>\"'$(id)", 200, "$(id)"),
        ({"allowed_hosts": ["*"]}, "x" * 300, 200, "xxxx"),
    ],
)
async def test_the_host_of_a_request_becomes_nothing_but_an_address(
    options: Any, host: str, status: int, shown: str
) -> None:
    page = await visited(headers={"Host": host}, **options)
    assert page.status_code == status and shown not in page.text
    if status == 200:
        assert "http://HOST/mcp" in page.text


@requirement("first.home")
async def test_the_page_shows_the_address_that_the_browser_has_used() -> None:
    for url, headers in (
        ("https://mcp.example.com/mcp", {"X-Forwarded-Proto": "https", "Host": "mcp.example.com"}),
        ("http://[::1]:8080/mcp", {"Host": "[::1]:8080"}),
    ):
        assert url in (await visited(headers=headers, allowed_hosts=["*"])).text
    async with Served().client(root_path="/tools") as http:
        page = (await http.get("/tools", headers=BROWSER)).text
        assert "http://localhost:8080/tools/mcp" in page and 'href="/tools/readyz"' in page


@requirement("first.home")
async def test_the_page_says_that_a_credential_is_needed_and_where_the_console_is() -> None:
    keyed: Any = {"api_keys": {"ann": "0" * 64}, "admin": {"keys": {"ann": "0" * 64}}}
    page = (await visited(**keyed)).text
    assert "MCP_TOKEN" in page and 'href="/admin"' in page
    public = await visited(**keyed, host="0.0.0.0", allowed_hosts=["localhost"])
    assert "MCP_TOKEN" in public.text and "/admin" not in public.text


@requirement("first.home", "ext.discovery")
@pytest.mark.parametrize("path", ["/", "/.well-known/ai-catalog.json"])
async def test_visits_are_counted_like_requests_without_a_credential(path: str) -> None:
    slow = settings(DISCOVERY, policy={"principal_rate": {"per_s": 0.01, "burst": 3}})
    async with client(slow) as http:
        answers = [await http.get(path, headers=BROWSER) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 3
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert ("access-control-allow-origin" in answers[-1].headers) is (path != "/")


# -- What everyone may know of the gateway's servers, and nothing more


SEARCH = {"name": "com.example/search", "description": "Finds pages"}
ALL = {"name": "com.example/everything", "description": "All servers", "version": "2.0"}
BASE = "https://mcp.example.com"
DISCOVERY = {"search": SEARCH, "*": ALL}
CARD = "application/mcp-server-card+json"


def settings(cards: Any = None, **gateway: Any) -> Settings:
    found: dict[str, Any] = {"mcpServers": {"search": {"command": "search"}, "secret": {"command": "secret"}}}
    published = {"public_url": f"{BASE}/", "cards": cards} if cards else {}
    return Settings.model_validate({**found, "gateway": published | gateway})


def client(configured: Settings) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(configured)), base_url="http://localhost")


@requirement("ext.discovery")
@pytest.mark.parametrize(
    "path", ["/.well-known/ai-catalog.json", "/mcp/server-card", "/servers/search/mcp/server-card"]
)
async def test_nothing_is_published_by_default(path: str) -> None:
    async with client(settings()) as http:
        assert (await http.get(path)).status_code == 404


@requirement("ext.discovery")
async def test_the_catalog_leads_to_the_cards_and_the_cards_to_the_servers() -> None:
    async with client(settings(DISCOVERY)) as http:
        catalog = await http.get("/.well-known/ai-catalog.json")
        assert catalog.headers["content-type"] == "application/ai-catalog+json"
        entries = [
            {"identifier": f"urn:air:example.com:mcp:{name}", "type": CARD, "url": f"{BASE}{path}/server-card"}
            for name, path in (("search", "/servers/search/mcp"), ("everything", "/mcp"))
        ]
        assert catalog.json() == {"specVersion": "1.0", "entries": entries}
        cards = [await http.get(httpx.URL(entry["url"]).path) for entry in catalog.json()["entries"]]
        assert [card.headers["content-type"] for card in cards] == [CARD, CARD]
        assert cards[0].json() == {
            **SEARCH,
            "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
            "version": "1.0.0",
            "remotes": [{"type": "streamable-http", "url": f"{BASE}/servers/search/mcp"}],
        }
        assert cards[1].json()["remotes"] == [{"type": "streamable-http", "url": f"{BASE}/mcp"}]
        assert (await http.get("/servers/secret/mcp/server-card")).status_code == 404
        assert "secret" not in catalog.text


@requirement("ext.discovery")
async def test_every_page_may_read_and_keep_them() -> None:
    path = "/mcp/server-card"
    async with client(settings(DISCOVERY)) as http:
        first = await http.get(path, headers={"Origin": "https://elsewhere.example"})
        assert first.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in first.headers
        assert first.headers["access-control-expose-headers"] == "ETag"
        assert first.headers["cache-control"] == "public, max-age=3600"
        tag = first.headers["etag"]
        for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await http.get(path, headers={"If-None-Match": sent})
            assert again.status_code == 304 and not again.content and again.headers["etag"] == tag
        assert (await http.get(path, headers={"If-None-Match": '"other"'})).status_code == 200
        preflight = await http.options(path, headers={"Access-Control-Request-Headers": "if-none-match"})
        assert preflight.status_code == 204 and "If-None-Match" in preflight.headers["access-control-allow-headers"]
        assert (await http.post(path, json={})).status_code == 405
        assert (await http.head(path)).status_code == 200


@requirement("ext.discovery")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"public_url": ""}, "public_url is ''"),
        *(
            ({"public_url": url}, "with https, or http on this machine")
            for url in ("http://mcp.example", "https://u:pw@a.b")
        ),
        ({"cards": {"*": SEARCH, "search": SEARCH}}, "two cards have the same name"),
        ({"cards": {"*": SEARCH, "search": {**SEARCH, "name": "Com.Example/search"}}}, "two cards have the same name"),
        ({"cards": {"other": SEARCH}}, "there is no server 'other'"),
        ({"cards": {"*": {**SEARCH, "name": "search"}}}, "pattern"),
        ({"cards": {"*": {**SEARCH, "name": "com..example/search"}}}, "pattern"),
        ({"cards": {"*": {**SEARCH, "description": "x" * 101}}}, "100"),
    ],
)
def test_a_card_that_nobody_could_use_is_refused_at_the_start(given: Any, message: str) -> None:
    good: dict[str, Any] = {"cards": {"*": SEARCH}, "public_url": "http://127.0.0.1:8080"}
    assert settings(**good).gateway.browser_url, "an address of this machine is good for trying"
    with pytest.raises(ValidationError, match=message):
        settings(**good | given)
