"""The tools in the console, in a browser: found, understood, called, and their answers shown."""

import base64
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.operating import console_browser
from tests.operating.conftest import ADMIN
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, SIGNED, RunningGateway, running_gateway, server
from tests.support.stdio_server import text
from tests.support.table_server import table_server

pytestmark = requirement("ops.try-tools")


PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A picture of one red point."""
SVG: Final = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
SCRIPT: Final = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202etxet"
KINDS: Final[dict[str, Any]] = {
    "text": {"type": "string", "description": f"Any text. {SCRIPT}"},
    "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
    "share": {"type": "number"},
    "exact": {"type": "boolean"},
    "unit": {"enum": ["C", "F", 7, None]},
    "tags": {"type": "array", "items": {"type": "string"}},
    'odd "name" & <b>': {"type": "string"},
    "secret": {"type": "string", "format": "password"},
}
HOSTILE: Final[list[dict[str, Any]]] = [
    {
        "name": "kinds",
        "title": "All kinds",
        "description": f"Repeats what it gets.\n{SCRIPT}",
        "inputSchema": {"type": "object", "properties": KINDS, "required": ["text", "count"]},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "pictures", "description": "Draws.", "inputSchema": {"type": "object", "properties": {}}},
    {
        "name": "either",
        "description": "Has no form.",
        "inputSchema": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    },
    {"name": "<script>alert(3)</script>", "inputSchema": {"type": "object"}},
]

PICTURES: Final = (
    ("image/png", PNG),
    ("image/svg+xml", SVG),
    ("image/png", SVG),
    ('image/png" onerror="alert(4)', PNG),
)
TABLE: Final = {
    "era": "legacy",
    "answers": {
        "tools/list": {"tools": HOSTILE},
        "tools/call pictures": {
            "content": [
                *({"type": "image", "mimeType": kind, "data": data} for kind, data in PICTURES),
                *text(SCRIPT)["content"],
            ]
        },
        "tools/call": text("@ARGUMENTS"),
    },
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    servers = {"tools": table_server(TABLE), "probe": server(PROBE)}
    with running_gateway(servers, options={"admin": ADMIN}, env=SIGNED, must_stop=False) as running:
        yield running


def signed_in(context: BrowserContext, gateway: RunningGateway) -> Page:
    page = console_browser.signed_in(context, gateway)
    page.on("dialog", lambda _: pytest.fail("a script of a server was executed"))
    return page


def sent(page: Page) -> Any:
    """The arguments that the tool `kinds` got."""
    return json.loads(
        page.locator("section", has=page.get_by_role("heading", name="Result")).locator("> pre").inner_text()
    )


def test_a_tool_is_found_and_called_with_arguments_of_every_kind(
    gateway: RunningGateway, context: BrowserContext
) -> None:
    page = signed_in(context, gateway)
    page.get_by_role("link", name="Tools", exact=True).click()
    page.get_by_label("Find").fill("all kinds")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("link", name="kinds", exact=True).click()
    expect(page.get_by_role("heading", name="All kinds")).to_be_visible()
    page.get_by_label("text").fill("two\nlines ü")
    page.get_by_label("count").fill("4")
    page.get_by_label("share").fill("0.25")
    page.get_by_label("exact").select_option("false")
    page.get_by_label("unit").select_option("7")
    page.get_by_label("tags").fill('["a", "b"]')
    page.get_by_label('odd "name" & <b>').fill("<&>")
    page.get_by_label("secret").fill("hunter2")
    page.get_by_role("button", name="Call kinds").click()
    expect(page.locator(".badge", has_text="Answered")).to_be_visible()
    assert sent(page) == {
        "text": "two\nlines ü",
        "count": 4,
        "share": 0.25,
        "exact": False,
        "unit": 7,
        "tags": ["a", "b"],
        'odd "name" & <b>': "<&>",
        "secret": "hunter2",
    }
    # What was typed is still there for the next call, but for the secret.
    expect(page.get_by_label("text")).to_have_value("two\nlines ü")
    expect(page.get_by_label("secret")).to_have_value("")
    expect(page.get_by_label("count")).to_have_value("4")


def test_what_cannot_be_sent_is_said_at_its_argument(gateway: RunningGateway, context: BrowserContext) -> None:
    page = signed_in(context, gateway)
    page.goto(f"{gateway.base}/admin/tools/tools?name=kinds")
    page.get_by_label("text").fill("x")
    page.get_by_label("tags").fill("[1, ")
    page.get_by_role("button", name="Call kinds").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was called")
    expect(page.get_by_label("tags")).to_have_accessible_description(
        "is not JSON: Expecting value in line 1, column 5 array · items: string"
    )
    expect(page.get_by_label("tags")).to_have_value("[1, ")


def test_arguments_can_be_given_as_json(gateway: RunningGateway, context: BrowserContext) -> None:
    page = signed_in(context, gateway)
    page.goto(f"{gateway.base}/admin/tools/tools?name=kinds")
    page.get_by_role("link", name="As JSON").click()
    expect(page.get_by_label("Arguments")).to_have_value('{\n  "text": "",\n  "count": 3\n}')
    page.get_by_label("Arguments").fill('{"text": "t", "count": 2, "deep": {"er": [null]}}')
    page.get_by_role("button", name="Call kinds").click()
    expect(page.locator(".badge", has_text="Answered")).to_be_visible()
    assert sent(page) == {"text": "t", "count": 2, "deep": {"er": [None]}}
    page.goto(f"{gateway.base}/admin/tools/tools?name=either")
    page.get_by_label("Arguments").fill('{"a": 1}')
    page.get_by_role("button", name="Call either").click()
    assert sent(page) == {"a": 1}


def test_a_hostile_answer_is_text_and_only_known_images_are_drawn(
    gateway: RunningGateway, context: BrowserContext
) -> None:
    page = signed_in(context, gateway)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"{gateway.base}/admin/tools")
    expect(page.locator("tbody")).to_contain_text("<script>alert(3)</script>")
    page.goto(f"{gateway.base}/admin/tools/tools?name=pictures")
    page.get_by_role("button", name="Call pictures").click()
    result = page.locator("section", has=page.get_by_role("heading", name="Result"))
    images = result.locator("img")
    expect(images).to_have_count(1)
    assert images.evaluate("image => [image.complete, image.naturalWidth]") == [True, 1]
    expect(result).to_contain_text("Only image/gif, image/jpeg, image/png, image/webp are shown.")
    expect(result).to_contain_text("Its bytes are not of that type.")
    expect(result.locator("> pre")).to_have_text("<script>alert(1)</script><img src=x onerror=alert(2)>\\u202etxet")
    assert page.locator("main script").count() == 0
    assert complaints == []


@pytest.mark.parametrize("device", ["dark", "phone"])
def test_the_pages_of_tools_are_accessible_and_fit(gateway: RunningGateway, browser: Browser, device: str) -> None:
    context = console_browser.on_device(browser, device)
    page = signed_in(context, gateway)
    found: dict[str, Any] = {}

    def look(where: str) -> None:
        found[where] = console_browser.axe_violations(page)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found[where] += [f"{wide} px too wide"] if wide > 0 else []

    page.goto(f"{gateway.base}/admin/tools")
    look("list")
    page.goto(f"{gateway.base}/admin/tools/tools?name=kinds")
    look("form")
    page.get_by_label("text").fill("x")
    page.get_by_label("tags").fill("{")
    page.get_by_role("button", name="Call kinds").click()
    look("faults")
    page.goto(f"{gateway.base}/admin/tools/tools?name=pictures")
    page.get_by_role("button", name="Call pictures").click()
    look("result")
    context.close()
    assert not any(found.values()), json.dumps(found, indent=1)
