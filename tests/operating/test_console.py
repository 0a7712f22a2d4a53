"""The console in a browser: what an operator does with it, at whichever replica."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from session_store.redis import RedisBackend
from session_store.session import Principal
from session_store.testing import FakeClock, a_session
from tests.operating.conftest import OPERATOR, replica
from tests.operating.console_browser import axe_violations, signed_in
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import gone

Pair = tuple[RunningGateway, RunningGateway]


@requirement("ops.console")
@pytest.mark.parametrize("looks_at", [0, 1], ids=["its own replica", "another replica"])
def test_the_session_that_fails_is_found_understood_and_ended(
    pair: Pair, context: BrowserContext, http: httpx.Client, looks_at: int
) -> None:
    name = f"troubled-{looks_at}"
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name=name)
    process = psutil.Process(int(tool_text(client.tool("pid"))))
    page = signed_in(context, pair[looks_at])
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


@requirement("ops.bulk-end", "ops.console")
def test_the_sessions_of_a_client_are_counted_and_ended(
    pair: Pair, context: BrowserContext, http: httpx.Client
) -> None:
    name = "<b>left & behind</b>"
    theirs = [Legacy(f"{gateway.base}/servers/demo/mcp", http).open(name=name) for gateway in (*pair, pair[0])]
    other = Legacy(f"{pair[0].base}/servers/demo/mcp", http).open(name="stays")
    page = signed_in(context, pair[1])
    page.get_by_role("link", name="Sessions").click()
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("End these sessions…")).to_have_count(0)
    page.get_by_label("Client").fill(name)
    page.get_by_role("button", name="Find").click()
    expect(page.locator("main")).to_contain_text(f"3 sessions of client {name}.")
    page.get_by_text("End these sessions…").click()
    assert all(client.tool("count").status_code == 200 for client in theirs), "nothing has ended yet"
    page.get_by_role("button", name=f"End all sessions of client {name}").click()
    expect(page.get_by_role("heading", name="Events", exact=True)).to_be_visible()
    expect(page.locator("tbody")).to_contain_text(f"the operator olga has ended all sessions of client {name}: 3")
    assert [client.tool("count").status_code for client in theirs] == [404] * 3
    assert other.tool("count").status_code == 200
    url, cookie = (
        f"{pair[1].base}/admin/sessions/end",
        "; ".join(f"{c['name']}={c['value']}" for c in context.cookies()),
    )
    for site in ("cross-site", "same-site"):
        elsewhere = {"Cookie": cookie, "Sec-Fetch-Site": site, "Origin": "https://elsewhere.example"}
        assert http.post(url, data={"client": "stays"}, headers=elsewhere).status_code == 403
    assert other.tool("count").status_code == 200
    assert http.post(url, data={"client": "stays"}, headers={"Cookie": cookie}).status_code == 303
    assert other.tool("count").status_code == 404


@requirement("ops.console")
def test_a_thousand_sessions_stay_usable(context: BrowserContext) -> None:
    async def fill(url: str) -> None:
        backend = RedisBackend(url)
        clock = FakeClock(time.time())
        await asyncio.gather(
            *(
                backend.sessions.create(
                    a_session(clock, principal=Principal(issuer="key", subject=f"user-{number:04}"), idle_ttl_s=3_600.0)
                )
                for number in range(1_000)
            )
        )
        await backend.close()

    with running_redis() as redis, replica(redis) as one, replica(redis):
        # The browser's driver has this thread's event loop.
        with ThreadPoolExecutor(1) as another:
            another.submit(asyncio.run, fill(redis.url)).result()
        page = signed_in(context, one)
        page.get_by_role("link", name="Sessions").click()
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(50)
        seen = set(page.locator("tbody th").all_inner_texts())
        for _ in range(19):
            page.get_by_role("link", name="Next 50").click()
            expect(page.locator("tbody th").first).not_to_have_text(min(seen))
            seen |= set(page.locator("tbody th").all_inner_texts())
        assert len(seen) == 1_000
        page.get_by_label("Find").fill("user-0777")
        page.get_by_role("button", name="Find").click()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("user-0777")
        # The pages that change by themselves do so with a thousand as well.
        row = rows.inner_text()
        expect(rows).not_to_have_text(row, timeout=10_000)


@requirement("ops.console")
def test_a_replica_is_drained_and_admitted_in_the_console(own_redis: RunningRedis, context: BrowserContext) -> None:
    with replica(own_redis) as one, replica(own_redis) as other:
        page = signed_in(context, one)
        page.get_by_role("link", name="Replicas", exact=True).click()
        told = httpx.get(f"{one.base}/admin/api/replicas", headers={"Authorization": f"Bearer {OPERATOR}"}).json()
        [name] = [report["replica"] for report in told if report["address"] and report["pid"] == other.pid]
        header = page.locator("th[scope=row]").get_by_role("link", name=name, exact=True)
        row = page.locator("section[aria-labelledby=replicas] tbody tr").filter(has=header)
        row.get_by_text("Drain…").click()
        row.get_by_role("button", name="Hand over").click()
        expect(row.locator("td").first).to_have_text("draining")
        assert httpx.get(f"{other.base}/readyz").status_code == 503
        row.get_by_role("button", name="Admit").click()
        expect(row.locator("td").first).to_have_text("ready")
        assert httpx.get(f"{other.base}/readyz").status_code == 200


@requirement("ops.console", "ops.redact")
def test_what_clients_say_of_themselves_is_text_in_the_console(
    pair: Pair, context: BrowserContext, http: httpx.Client
) -> None:
    forged = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    client = Legacy(f"{pair[0].base}/servers/demo/mcp", http).open(name=forged)
    client.tool(forged)
    page = signed_in(context, pair[0])
    page.on("dialog", lambda _: pytest.fail("it was executed"))
    page.goto(f"{pair[0].base}/admin/sessions?q=onerror")
    expect(page.locator("tbody tr").first).to_contain_text(forged)
    assert page.locator("main img, main script").count() == 0
    page.goto(f"{pair[0].base}/admin/sessions?q=%22%3E%3Cscript%3Ealert(3)%3C/script%3E&only=%22x")
    expect(page.locator("main")).to_contain_text("No live session")
    client.delete()


@requirement("ops.console")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_to_sign_in_is_accessible(pair: Pair, browser: Browser, scheme: str) -> None:
    """The other pages: `test_console_look`."""
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]  # light or dark
    page = context.new_page()
    page.goto(f"{pair[0].base}/admin")
    assert axe_violations(page) == []
    page.get_by_label("Operator's key").fill(OPERATOR)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    # By keyboard alone: the first stop skips to the content.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    context.close()


@requirement("ops.console")
def test_it_works_without_scripts(pair: Pair, browser: Browser, http: httpx.Client, tmp_path: Path) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="plain")
    context = browser.new_context(java_script_enabled=False)
    page = signed_in(context, pair[1])
    page.goto(f"{pair[1].base}/admin/sessions/{client.session[:8]}")
    page.get_by_text("End this session…").click()
    page.get_by_role("button", name=re.compile("End session")).click()
    assert client.tool("pid").status_code == 404
    context.close()
