"""The documents as a site: it builds without a warning, asks no other host, and draws its diagrams."""

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from playwright.sync_api import Page, sync_playwright

from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.tools.programs import program

ADDRESS = "https://docs.example.com/gateway/"
PAGES = ("", "architecture/", "cli/", "clients/langchain-mcp-adapters/", "rest/", "servers/", "troubleshooting/")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "SITE_URL": ADDRESS}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = str(program("chromium", "chromium"))
        with playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
            yield browser.new_page()


@requirement("ops.site")
def test_pages_ask_no_other_host_and_nothing_is_missing(site: str, page: Page) -> None:
    asked: list[str] = []
    missing: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("response", lambda response: missing.append(response.url) if response.status >= 400 else None)
    for path in PAGES:
        page.goto(site + path, wait_until="networkidle")
        assert page.locator("article h1").count() == 1, path
        if path == "architecture/":
            page.locator("div.mermaid").first.wait_for()
    assert len(asked) > len(PAGES)
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []
    assert missing == []


@requirement("ops.site")
def test_the_sitemap_has_the_address_of_each_page(site: str) -> None:
    found = re.findall("<loc>(.*?)</loc>", httpx.get(f"{site}sitemap.xml").text)
    assert {ADDRESS, f"{ADDRESS}start/", f"{ADDRESS}cli/"} <= {*found}
    assert all(place.startswith(ADDRESS) for place in found)


@requirement("ops.site")
def test_the_first_screen_has_a_command_to_copy(site: str, page: Page) -> None:
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto(site, wait_until="networkidle")
    first = page.locator("article pre code").first
    place = first.bounding_box()
    assert first.inner_text().strip() == "make run" and place is not None and place["y"] + place["height"] < 768


@requirement("ops.site")
def test_the_commands_and_operations_of_the_code_are_on_the_site(site: str) -> None:
    commands, rest = httpx.get(f"{site}cli/").text, httpx.get(f"{site}rest/").text
    assert all(f'id="{name}"' in commands for name in ("run", "sessions-list", "sandbox-learn"))
    assert "DELETE /admin/api/sessions/{session}" in rest


@requirement("ops.site")
def test_the_search_finds_guides_before_decisions(site: str, page: Page) -> None:
    for words, guide in (("reaper", "sandbox/"), ("lenient", "policy/")):
        # Words that are typed before the page has loaded its index may find nothing; those in the URL wait for it.
        page.goto(f"{site}?q={words}")
        page.locator(".md-search-result__item a[href*='/adr/']").first.wait_for(state="attached")
        found = [str(link.get_attribute("href")) for link in page.locator(".md-search-result__item > a").all()]
        places = [url.removeprefix(site).partition("?")[0].partition("#")[0] for url in found]
        decisions = [place.startswith("adr/") for place in places]
        assert guide in places and decisions == sorted(decisions), places


@requirement("ops.site")
def test_each_page_is_markdown_as_well_and_listed_for_programs(site: str) -> None:
    text = httpx.get(f"{site}llms.txt").text
    assert text.startswith("# MCP Session Gateway\n\n> One durable")
    listed = re.findall(r"^- \[.+?\]\((.*?)\)", text, re.MULTILINE)
    indexed = httpx.get(f"{site}search/search_index.json").json()["docs"]
    assert sorted(listed) == sorted({one["location"].partition("#")[0] + "index.md" for one in indexed})
    assert text.index("(start/index.md)") < text.index("## Optional") < text.index("(adr/index.md)")
    for place in listed:
        written = httpx.get(site + place).text
        assert written.startswith("# ") and "<!-- run" not in written, place
        for link in re.findall(r"\]\((?!https?:)([^)#:\s]+)", re.sub(r"```.*?```", "", written, flags=re.DOTALL)):
            assert httpx.head(urljoin(site + place, link)).status_code == 200, f"{place}: {link}"


def test_every_document_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in sorted(Path(ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        assert name.startswith("adr/") or name in text, f"{name} is on no page of the site's navigation"
