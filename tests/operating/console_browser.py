"""The console in Chromium: signing in, and what axe finds."""

from functools import cache

from playwright.sync_api import BrowserContext, Page, expect

from tests.operating.conftest import OPERATOR
from tests.support.gateway_process import RunningGateway
from tests.tools.obtain import npm_packages


def signed_in(context: BrowserContext, gateway: RunningGateway) -> Page:
    """A page that shows the overview. Fails if the browser has complained until then."""
    page = context.new_page()
    page.set_default_timeout(60_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{gateway.base}/admin")
    page.get_by_label("Operator's key").fill(OPERATOR)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert complaints == []
    return page


@cache
def _axe() -> str:
    return (npm_packages({"axe-core": "4.10.3"}) / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def axe_violations(page: Page) -> list[str]:
    """What axe finds. The context must have been opened with `bypass_csp`."""
    page.evaluate(_axe())
    found = page.evaluate("axe.run()")["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found]
