"""What a stranger finds in a browser: how to connect, and nothing of anybody's."""

import base64
import hashlib
import re
from typing import Any

import httpx
import pytest

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from gateway.version import __version__
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, requirement("first.home")]

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


@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_a_browser_gets_a_page_that_says_how_to_connect(path: str) -> None:
    served = Served()
    async with served.client() as http:
        page = await http.get(path, headers=BROWSER)
        served.gateway.state.start_draining()
        assert "takes no new sessions now" in (await http.get(path, headers=BROWSER)).text
    without = await visited(path, discovery={"home_page": False})
    assert without.status_code == (404 if path == "/" else 406)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "claude mcp add --transport http gateway http://localhost:8080/mcp" in page.text
    assert "The gateway serves requests." in page.text and 'href="/readyz"' in page.text
    assert "MCP_TOKEN" not in page.text and "/admin" not in page.text


@pytest.mark.parametrize("path", ["/", "/mcp", "/servers/payroll-secret/mcp"])
async def test_the_page_tells_nothing_and_leaves_nothing(path: str) -> None:
    served = Served()
    async with served.client() as http:
        page = await http.get(path, headers=BROWSER)
    known = page.text.replace("http://localhost:8080/servers/payroll-secret/mcp", "")
    if path.startswith("/servers"):  # whoever asks has named it
        known = known.replace("payroll-secret", "")
    assert "payroll" not in known and __version__ not in page.text
    assert "set-cookie" not in page.headers and page.headers["cache-control"] == "no-store"
    assert not any(name.startswith("mcp-") for name in page.headers)
    assert not [*served.gateway.parts.foundation.live]


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
    assert (await visited(headers={"Accept": accept}, discovery={"home_page": False})).status_code == 404
    assert not [*served.gateway.parts.foundation.live]


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/event-stream", ""])
async def test_programs_get_what_they_got_before(accept: str) -> None:
    answers = []
    for options in ({}, {"discovery": {"home_page": False}}):
        async with Served(**options).client() as http:
            for path in ("/", "/mcp", "/servers/payroll-secret/mcp"):
                for method in ("GET", "HEAD", "POST", "OPTIONS"):
                    if (method, path) == ("GET", "/") and "application" not in accept:
                        continue  # a text
                    headers = {"Accept": accept}
                    if method == "GET" and "event-stream" in accept:
                        headers["Mcp-Session-Id"] = "unknown"
                    answer = await http.request(method, path, headers=headers)
                    text = re.sub("[0-9a-f]{32}", "ID", answer.text)
                    answers.append((path, method, answer.status_code, text, answer.headers.get("allow")))
    with_page, without = answers[: len(answers) // 2], answers[len(answers) // 2 :]
    assert with_page == without


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


async def test_the_page_shows_the_address_that_the_browser_has_used() -> None:
    for url, headers in (
        ("https://mcp.example.com/mcp", {"X-Forwarded-Proto": "https", "Host": "mcp.example.com"}),
        ("http://[::1]:8080/mcp", {"Host": "[::1]:8080"}),
    ):
        assert url in (await visited(headers=headers, allowed_hosts=["*"])).text
    async with Served().client(root_path="/tools") as http:
        page = (await http.get("/tools", headers=BROWSER)).text
        assert "http://localhost:8080/tools/mcp" in page and 'href="/tools/readyz"' in page


async def test_the_page_says_that_a_credential_is_needed_and_where_the_console_is() -> None:
    keyed: Any = {"api_keys": {"ann": "0" * 64}, "admin": {"keys": {"ann": "0" * 64}}}
    page = (await visited(**keyed)).text
    assert "MCP_TOKEN" in page and 'href="/admin"' in page
    public = await visited(**keyed, host="0.0.0.0", allowed_hosts=["localhost"])
    assert "MCP_TOKEN" in public.text and "/admin" not in public.text


async def test_visits_are_counted_like_requests_without_a_credential() -> None:
    async with Served(policy={"principal_rate": {"per_s": 0.01, "burst": 2}}).client() as http:
        answers = [(await http.get("/", headers=BROWSER)).status_code for _ in range(6)]
    assert answers[:2] == [200, 200] and answers[-1] == 429
