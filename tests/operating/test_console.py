"""The console in a browser: what an operator does with it, times are local, keys, colours, and narrow screens."""

import json
import re
from collections.abc import Iterator

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.operating.conftest import Pair, replica
from tests.operating.console_browser import axe_violations, on_device, signed_in
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import gone

PATHS = ("", "/sessions", "/sessions?when=day", "/tasks", "/servers", "/usage", "/events", "/replicas", "/connect",
         "/configuration")  # fmt: skip


@pytest.fixture(scope="module")
def failing(pair: Pair) -> Iterator[Legacy]:
    """A client whose calls fail."""
    with httpx.Client(timeout=20) as http:
        client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="looked-at")
        client.tool("fail")
        yield client


def next_change(page: Page) -> None:
    """Wait until the page has shown something new."""
    page.evaluate(
        "() => new Promise((done, fail) => { setTimeout(fail, 20000);"
        " new MutationObserver((_, o) => { o.disconnect(); done(); })"
        ".observe(document.getElementById('live'), {childList: true, subtree: true, characterData: true}); })"
    )


@requirement("ops.console-live")
def test_a_page_changes_in_place(pair: Pair, browser: Browser, failing: Legacy) -> None:
    context = browser.new_context(viewport={"width": 700, "height": 500})
    page = signed_in(context, pair[0])
    page.goto(f"{pair[0].base}/admin/replicas")
    page.get_by_text("Drain…").first.click()
    page.evaluate("document.querySelectorAll('#live tr').forEach((row) => (row.isTheSame = true))")
    page.evaluate("document.querySelector('.wide').scrollLeft = 40; window.scrollTo(0, 20)")
    places = page.evaluate("[document.querySelector('.wide').scrollLeft, window.scrollY]")
    for _ in range(2):
        next_change(page)
    assert page.evaluate("[...document.querySelectorAll('#live tr')].every((row) => row.isTheSame)")
    assert page.evaluate("document.querySelectorAll('#live details[open]').length") == 1
    assert page.evaluate("[document.querySelector('.wide').scrollLeft, window.scrollY]") == places
    page.goto(f"{pair[0].base}/admin/sessions/{failing.session[:8]}")
    rows = page.locator("section[aria-labelledby=failures] tbody tr")
    rows.locator("a").first.focus()
    name, before = page.evaluate("document.activeElement.textContent"), rows.count()
    failing.tool("fail")
    expect(rows).to_have_count(before + 1)
    # The row that was the first is the second now, and the focus is where it was.
    assert page.evaluate("document.activeElement.textContent") == name
    expect(rows.nth(1).locator("a").first).to_be_focused()
    context.close()


@requirement("ops.console-live")
def test_times_are_those_of_the_readers_place(pair: Pair, browser: Browser, failing: Legacy) -> None:
    context = browser.new_context(timezone_id="Asia/Kathmandu", locale="en-GB")
    page = signed_in(context, pair[0])
    page.goto(f"{pair[0].base}/admin/events")
    time = page.locator("time").first
    expect(time).to_have_attribute("title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(shown in Asia/Kat"))
    at = str(time.get_attribute("datetime"))
    local = page.evaluate("(at) => new Date(at).toLocaleTimeString('en-GB')", at)
    expect(time).to_have_text(re.compile(f"{local}$"))
    assert at[11:19] != local
    shown = page.locator("time").count()
    failing.tool("fail")  # often in the second of the event before
    expect(page.locator("time").nth(shown)).to_be_visible(timeout=15_000)
    expect(time).to_have_attribute("title", re.compile("UTC"))
    context.close()


@requirement("ops.console-search")
def test_a_time_of_day_is_that_of_the_readers_place(pair: Pair, browser: Browser, failing: Legacy) -> None:
    context = browser.new_context(timezone_id="Asia/Kathmandu", locale="en-GB")
    page = signed_in(context, pair[0])
    failing.tool("fail")
    for path in ("/events", "/sessions?when=day"):
        rows = page.locator("#live tbody tr", has_text=re.compile("tool error|looked-at"))
        for hours_ago, is_found in ((0, True), (12, False)):
            page.goto(f"{pair[0].base}/admin{path}")
            expect(page.get_by_text("UTC+05:45").first).to_be_visible()
            page.get_by_label("Outcome").select_option("failed or refused")
            page.get_by_label("Tool", exact=True).fill("FAI")
            clock = "(hours) => new Date(Date.now() - hours * 3.6e6).toLocaleTimeString('en-GB').slice(0, 5)"
            page.get_by_label("From").fill(page.evaluate(clock, hours_ago + 1))
            page.get_by_label("To", exact=False).last.fill(page.evaluate(clock, hours_ago - 1))
            page.get_by_role("button", name="Find").click()
            expect(page.get_by_text("UTC+05:45").first).to_be_visible()
            expect(page.get_by_label("Tool", exact=True)).to_have_value("FAI")
            if is_found:
                expect(rows.first).to_be_visible()
            else:
                expect(page.get_by_text(re.compile("matches"))).to_be_visible()
    context.close()


LONG = "https://login.example.com/realms/platform-agents/9f1c2d3e-4b5a-6789-abcd-ef0123456789"


@requirement("ops.console-look")
def test_nothing_is_out_of_sight_on_a_small_laptop(pair: Pair, browser: Browser, own_redis: RunningRedis) -> None:
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    with (
        replica(own_redis, api_keys={LONG: sha256("a client")}) as gateway,
        httpx.Client(timeout=20, headers=bearer("a client")) as http,
    ):
        client = Legacy(f"{gateway.base}/servers/probe/mcp", http).open(name=f"client-{LONG[8:]}")
        client.tool("fail")
        page = signed_in(context, gateway)
        found = {}
        for path in (*PATHS, "/sessions?only=failing", "/events?failed=true", f"/sessions/{client.session[:8]}"):
            page.goto(f"{gateway.base}/admin{path}")
            expect(page.locator("h1")).to_be_visible()
            over = "[document.documentElement, ...document.querySelectorAll('.wide, .tiles, .facts')]"
            found[path] = page.evaluate(f"Math.max(...{over}.map((one) => one.scrollWidth - one.clientWidth))")
            if path in ("/sessions", "/sessions?when=day", "/events"):
                expect(page.locator("#live")).to_contain_text(LONG)
        client.delete()
    assert not any(found.values()), found
    context.close()


@requirement("ops.console-keys")
def test_everything_is_reached_by_keys(pair: Pair, browser: Browser, failing: Legacy) -> None:
    context = browser.new_context()
    page = signed_in(context, pair[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Sessions", exact=True)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Find")).to_be_focused()
    page.keyboard.type("looked-at gs?t")  # letters are text in a field
    expect(page.get_by_label("Find")).to_have_value("looked-at gs?t")
    expect(page.locator("dialog")).to_be_hidden()
    page.get_by_label("Find").fill("looked-at")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    expect(page.locator("tbody th a")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("Next row")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Session {failing.session[:8]}")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("Live")  # before, the page does not hear its keys
    page.keyboard.press("p")
    expect(page.locator("#connection")).to_have_text("Paused")
    context.close()


@requirement("ops.console-look")
def test_colours_are_chosen_and_stay(pair: Pair, browser: Browser) -> None:
    context = browser.new_context(color_scheme="light")
    page = signed_in(context, pair[0])
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.get_by_title("Change the colours (t)")
    expect(button).to_have_text("System colours")
    page.keyboard.press("t")
    expect(button).to_have_text("Light")
    page.keyboard.press("t")
    expect(button).to_have_text("Dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.keyboard.press("t")
    assert page.evaluate(ground) == light
    context.close()


@requirement("ops.console-look")
@pytest.mark.parametrize("device", ["dark", "phone"])
def test_every_page_is_accessible_and_fits(pair: Pair, browser: Browser, failing: Legacy, device: str) -> None:
    context = on_device(browser, device)
    page = context.new_page()
    page.goto(f"{pair[0].base}/admin")
    found = {"sign-in": axe_violations(page)}
    page = signed_in(context, pair[0])
    for path in (*PATHS, f"/sessions/{failing.session[:8]}"):
        page.goto(f"{pair[0].base}/admin{path}")
        expect(page.locator("h1")).to_be_visible()
        found[path] = axe_violations(page)
        if (more := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            found[path].append(f"the page is {more} px wider than the screen")
    assert not any(found.values()), json.dumps(found, indent=1)
    page.keyboard.press("?")
    assert axe_violations(page) == []
    context.close()


@requirement("ops.console")
def test_the_session_that_fails_is_found_understood_and_ended(
    pair: Pair, context: BrowserContext, http: httpx.Client
) -> None:
    name = "troubled"
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name=name)
    process = psutil.Process(int(tool_text(client.tool("pid"))))
    page = signed_in(context, pair[1])
    client.tool("fail")
    # It appears by itself, on the page that is open already.
    row = page.locator("section", has=page.get_by_role("heading", name="Sessions with failures")).locator(
        "tr", has_text=name
    )
    expect(row).to_contain_text("it failed")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Failures")).to_be_visible()
    expect(page.locator("main")).to_contain_text("tools/call fail")
    expect(page.get_by_label("Standard error of the servers of this session")).to_contain_text(
        "no route to the database"
    )
    expect(page.get_by_label("Standard error of the servers of this session")).not_to_contain_text("abcdefgh12345678")
    expect(page.locator("main")).to_contain_text(str(process.pid))
    page.get_by_text("End this session…").click()
    page.get_by_role("button", name=re.compile("End session")).click()
    expect(page.get_by_role("heading", name="Sessions", exact=True)).to_be_visible()
    assert gone([process]) and client.tool("pid").status_code == 404
    page.get_by_role("link", name="Events").click()
    expect(page.locator("tbody")).to_contain_text("the operator olga ended it")


@requirement("ops.console")
def test_it_works_without_scripts(pair: Pair, browser: Browser, http: httpx.Client) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="plain")
    context = browser.new_context(java_script_enabled=False)
    page = signed_in(context, pair[1])
    page.goto(f"{pair[1].base}/admin/sessions/{client.session[:8]}")
    page.get_by_text("End this session…").click()
    page.get_by_role("button", name=re.compile("End session")).click()
    assert client.tool("pid").status_code == 404
    context.close()
