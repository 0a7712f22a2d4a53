"""The console in a browser: what an operator does with it, at whichever replica."""

import re
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.operating.conftest import ONLY_DEMO, OPERATOR, replica
from tests.operating.console_browser import signed_in
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import gone

pytestmark = requirement("ops.console")

Pair = tuple[RunningGateway, RunningGateway]


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


def test_a_replica_is_drained_and_admitted_in_the_console(
    pair: Pair, own_redis: RunningRedis, context: BrowserContext
) -> None:
    one = pair[0]
    with replica(own_redis, servers=ONLY_DEMO) as other:
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


@requirement("ops.redact")
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


def test_it_works_without_scripts(pair: Pair, browser: Browser, http: httpx.Client, tmp_path: Path) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="plain")
    context = browser.new_context(java_script_enabled=False)
    page = signed_in(context, pair[1])
    page.goto(f"{pair[1].base}/admin/sessions/{client.session[:8]}")
    page.get_by_text("End this session…").click()
    page.get_by_role("button", name=re.compile("End session")).click()
    assert client.tool("pid").status_code == 404
    context.close()
