"""What everyone may know of the gateway's servers, and nothing more."""

import json
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, requirement("ext.discovery")]

NAMED = {"name": "com.example/search", "description": "Finds pages", "title": "Search"}
SEARCH = {**NAMED, "website": "https://example.com"}
ALL = {"name": "com.example/everything", "description": "All servers", "version": "2.0"}
BASE = "https://mcp.example.com"
DISCOVERY = {"url": f"{BASE}/", "publisher": "example.com", "cards": {"search": SEARCH, "*": ALL}}
CARD = "application/mcp-server-card+json"


def settings(discovery: Any = None, **gateway: Any) -> Settings:
    found: dict[str, Any] = {"mcpServers": {"search": {"command": "search"}, "secret": {"command": "secret"}}}
    return Settings.model_validate({**found, "gateway": {**({"discovery": discovery} if discovery else {}), **gateway}})


def client(configured: Settings) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(configured)), base_url="http://localhost")


async def test_nothing_is_published_by_default() -> None:
    async with client(settings()) as http:
        for path in ("/.well-known/ai-catalog.json", "/mcp/server-card", "/servers/search/mcp/server-card"):
            assert (await http.get(path)).status_code == 404


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
            **NAMED,
            "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
            "version": "1.0.0",
            "websiteUrl": "https://example.com",
            "remotes": [{"type": "streamable-http", "url": f"{BASE}/servers/search/mcp"}],
        }
        assert cards[1].json()["remotes"] == [{"type": "streamable-http", "url": f"{BASE}/mcp"}]
        assert (await http.get("/servers/secret/mcp/server-card")).status_code == 404
        assert "secret" not in catalog.text


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


async def test_requests_are_limited_by_address() -> None:
    slow = settings(DISCOVERY, policy={"principal_rate": {"per_s": 0.01, "burst": 3}})
    async with client(slow) as http:
        answers = [await http.get("/.well-known/ai-catalog.json") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 3
    assert int(answers[-1].headers["retry-after"]) >= 1 and answers[-1].headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("discovery", "message"),
    [
        ({"cards": {"search": SEARCH}}, "discovery.url is ''"),
        ({"url": "http://mcp.example.com", "cards": {"search": SEARCH}}, "with https, or http on this machine"),
        ({"url": "https://u:pw@a.b", "cards": {"search": SEARCH}}, "with https, or http on this machine"),
        ({"url": "https://a.b", "cards": {"*": SEARCH, "search": SEARCH}}, "two cards have the same name"),
        ({"url": "https://mcp.example.com", "cards": {"other": SEARCH}}, "there is no server 'other'"),
        ({"url": "https://a.b", "publisher": "a:b", "cards": {"*": SEARCH}}, "'a:b' is no domain"),
        ({"url": "https://a.b", "cards": {"*": {**SEARCH, "name": "search"}}}, "pattern"),
        ({"url": "https://a.b", "cards": {"*": {**SEARCH, "description": "x" * 101}}}, "100"),
        ({"url": "https://a.b", "cards": {"*": {**SEARCH, "website": "javascript:x"}}}, "is no web address"),
    ],
)
def test_a_card_that_nobody_could_use_is_refused_at_the_start(discovery: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(discovery)


def test_an_address_of_this_machine_is_good_for_trying() -> None:
    discovery = settings({"url": "http://127.0.0.1:8080", "cards": {"*": SEARCH}}).gateway.discovery
    assert json.loads(discovery.model_dump_json())["url"] and discovery.domain == "127.0.0.1"
