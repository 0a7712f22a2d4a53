"""Published MCP Apps in a real browser, with the published host code, through the gateway."""

import functools
import http.server
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.requirements import requirement
from tests.support.credentials import KEYS, sha256
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.support.http_thread import Handler, answering
from tests.tools.obtain import node, npm_packages
from tests.tools.programs import program

pytestmark = requirement("ext.apps")

PACKAGES = {
    "@modelcontextprotocol/server-basic-vanillajs": "2.0.3",
    "@modelcontextprotocol/server-system-monitor": "2.0.3",
    "@modelcontextprotocol/ext-apps": "2.0.4",
    "@modelcontextprotocol/client": "2.4.0",
    "esbuild": "0.28.2",
}
HOST = Path(__file__).parent / "app_host.mjs"
CLOCK = "ui://get-time/mcp-app.html"
ERAS = ["legacy", "modern"]


def program_of(folder: Path, package: str) -> tuple[str, ...]:
    return str(node()), str(folder / "node_modules/@modelcontextprotocol" / package / "dist/index.js"), "--stdio"


@pytest.fixture(scope="module")
def packages() -> Path:
    return npm_packages(PACKAGES)


@pytest.fixture(scope="module")
def page_url(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the host's page."""
    folder = tmp_path_factory.mktemp("host")
    entry = packages / HOST.name  # beside node_modules, which is where imports are looked for
    entry.write_text(HOST.read_text())
    options = {"entryPoints": [str(entry)], "bundle": True, "format": "iife", "outfile": str(folder / "host.js")}
    bundling = f"require('esbuild').buildSync({json.dumps(options)})"
    subprocess.run([str(node()), "-e", bundling], cwd=packages, check=True, timeout=60)
    (folder / "index.html").write_text("<!doctype html><title>host</title><body><script src='host.js'></script>")

    class Files(Handler, http.server.SimpleHTTPRequestHandler):
        """The files of the folder."""

    with answering(functools.partial(Files, directory=str(folder))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def gateway(packages: Path, page_url: str) -> Iterator[RunningGateway]:
    servers = {
        "demo": server(DEMO),
        "clock": server(program_of(packages, "server-basic-vanillajs")),
        "monitor": server(program_of(packages, "server-system-monitor")),
    }
    options = {
        "allowed_origins": [page_url],
        "api_keys": {"alice": sha256(KEYS["alice"])},
        "limits": {"list_timeout_s": 30},  # Node takes a while to start, the more so beside other tests
        "session": {"default_session": ["app-host"]},  # a page cannot be told from other clients
    }
    with running_gateway(servers, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def page(page_url: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(program("chromium", "chromium")), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_default_timeout(15_000)
        page.goto(page_url)
        page.wait_for_function("window.ready")
        yield page
        browser.close()


def connected(page: Page, gateway: RunningGateway, era: str) -> list[str]:
    """Connect the host, with a key: by it, 2026-07-28 clients meet their session again. Returns the names of tools."""
    names: list[str] = page.evaluate("([url, era, key]) => connectTo(url, era, key)", [gateway.url, era, KEYS["alice"]])
    return names


@pytest.mark.timeout(180)  # the first run downloads the packages
@pytest.mark.parametrize("era", ERAS)
def test_published_apps_are_opened_and_call_their_tools(page: Page, gateway: RunningGateway, era: str) -> None:
    names = connected(page, gateway, era)
    assert {"demo__whoami", "clock__get-time", "monitor__get-system-info", "monitor__poll-system-stats"} <= {*names}

    opened = page.evaluate("era => openApp(era, 'clock__get-time', 'clock-' + era)", era)
    assert opened["tool"]["_meta"]["ui"] == {"resourceUri": CLOCK}
    assert opened["contents"][0]["mimeType"] == "text/html;profile=mcp-app"
    clock = page.frame_locator(f"#clock-{era}")
    shown = clock.locator("#server-time")
    first = opened["calledByHost"]["structuredContent"]["time"]
    expect(shown).to_have_text(first)
    clock.locator("#get-time-btn").click()
    expect(shown).not_to_have_text(first)
    expect(shown).to_have_text(page_time := shown.inner_text())
    assert page_time > first and page_time.endswith("Z"), "the app has called its tool, and shows the later time"

    page.evaluate("era => openApp(era, 'monitor__get-system-info', 'monitor-' + era)", era)
    page.wait_for_function("era => callsOf(era).includes('poll-system-stats')", arg=era)
    called = page.evaluate("era => callsOf(era)", era)
    assert {"get-time", "poll-system-stats"} <= {*called}, "apps call tools by the names of their servers"
    page.frame_locator(f"#monitor-{era}").locator("body").get_by_text("%").first.wait_for()
