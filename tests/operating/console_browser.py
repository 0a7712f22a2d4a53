"""The console in Chromium: signing in, and what axe finds."""

from functools import cache

from playwright.sync_api import Browser, BrowserContext, Page, expect

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


def on_device(browser: Browser, device: str) -> BrowserContext:
    """A screen with `dark` colours, or that of a `phone`. What axe puts into a page is let through."""
    size = {"width": 390, "height": 844} if device == "phone" else {"width": 1360, "height": 900}
    scheme = "dark" if device == "dark" else "light"
    return browser.new_context(color_scheme=scheme, bypass_csp=True, viewport=size)  # type: ignore[arg-type]  # sizes


@cache
def _axe() -> str:
    return (npm_packages({"axe-core": "4.10.3"}) / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def axe_violations(page: Page) -> list[str]:
    """What axe finds in a page of a context of `on_device`."""
    page.evaluate(_axe())
    found = page.evaluate("axe.run()")["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found]
