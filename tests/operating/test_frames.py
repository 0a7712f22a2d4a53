"""Messages and stderr of a session that an operator watches: what is shown, what never, and for how long."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.operating.conftest import ADMIN, OPERATOR, Pair, replica
from tests.operating.console_browser import axe_violations, on_device, signed_in
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually

SECRET = "the value of a secret"
PASSWORD = "a-password-of-an-argument"


@pytest.fixture(scope="module")
def watched_pair(own_redis: RunningRedis) -> Iterator[Pair]:
    """Two replicas whose operators may watch every session. A server has a secret of its principal."""
    admin = ADMIN | {"frames": "any"}
    secrets = {"THE_SECRET": {"env": "VALUE_OF_THE_SECRET"}}
    own = {"probe": server(PROBE, env={"HARMLESS": "${secret:THE_SECRET}"})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALUE_OF_THE_SECRET", SECRET)
        one = replica(own_redis, admin=admin, secrets=secrets, more_servers=own)
        other = replica(own_redis, admin=admin, secrets=secrets, more_servers=own)
        with one as first, other as second:
            yield first, second


def opened(gateway: RunningGateway, http: httpx.Client, era: type) -> tuple[Any, str]:
    """A client of that era, and how the id of its session begins."""
    url = f"{gateway.base}/servers/probe/mcp"
    if era is Legacy:
        legacy = Legacy(url, http).open(name="watched")
        tool_text(legacy.tool("pid"))
        return legacy, legacy.session[:8]
    first = Modern(url, http, headers={"MCP-Gateway-Session": "new"}).tool("pid")
    token = first.headers["mcp-gateway-session"]
    return Modern(url, http, headers={"MCP-Gateway-Session": token}), token[:8]


def frames_path(gateway: RunningGateway, session: str) -> str:
    return f"{gateway.base}/admin/api/sessions/{session}/frames"


def page_of(ops: httpx.Client, url: str, **params: Any) -> Any:
    response = ops.get(url, params=params)
    assert response.status_code == 200, response.text
    return response.json()


@requirement("ops.frames")
@pytest.mark.parametrize(("era", "at"), [(Legacy, 1), (Modern, 0)], ids=["another replica", "its own replica"])
def test_messages_of_both_sides_are_seen_at_every_replica(
    watched_pair: Pair, ops: httpx.Client, http: httpx.Client, era: type, at: int
) -> None:
    client, session = opened(watched_pair[0], http, era)
    url = frames_path(watched_pair[at], session)
    off = page_of(ops, url)
    assert (off["watched"], off["frames"]) == (False, [])
    tool_text(client.tool("echo", {"before": 1}))  # nobody watches
    on = ops.put(url).json()
    assert (on["watched"], on["by"], on["frames"]) == (True, "olga", []) and 590 < on["ends_in_s"] <= 600
    arguments = {
        "visible": "an argument",
        "password": PASSWORD,
        "text": f"token={PASSWORD} and Bearer abcdefgh12345678",
    }
    tool_text(client.tool("meta", arguments))
    seen = page_of(ops, url)
    ways = [(frame["direction"], frame["kind"], frame["method"], frame.get("server", "")) for frame in seen["frames"]]
    assert ways == [
        ("client to gateway", "request", "tools/call", ""),
        ("gateway to server", "request", "tools/call", "probe"),
        ("server to gateway", "response", "tools/call", "probe"),
        ("gateway to client", "response", "tools/call", ""),
    ]
    shown = json.dumps(seen)
    assert "an argument" in seen["frames"][0]["body"] and "[redacted]" in shown
    assert PASSWORD not in shown and "abcdefgh12345678" not in shown
    assert all(frame["size"] > 0 and frame["id"] for frame in seen["frames"])
    if era is Legacy:  # what the gateway refuses or answers itself is seen, too
        client.call("logging/setLevel", {"level": "loud"})
        client.call("ping")
        behind = page_of(ops, url, after=seen["after"])["frames"]
        assert [(frame["direction"], frame["kind"], frame["method"]) for frame in behind] == [
            ("client to gateway", "request", "logging/setLevel"),
            ("gateway to client", "error", "logging/setLevel"),
            ("client to gateway", "request", "ping"),
            ("gateway to client", "response", "ping"),
        ]
    assert ops.delete(url).json()["watched"] is False
    assert page_of(ops, url)["frames"] == []
    tool_text(client.tool("echo", {"after": 1}))
    assert page_of(ops, url)["frames"] == []

    def is_audited() -> bool:
        events = ops.get(f"{watched_pair[at].base}/admin/api/events", params={"session": session}).json()
        reasons = [event["reason"] for event in events if event["event"] == "operated"]
        return reasons == [f"the operator olga has switched {way} its frames" for way in ("off", "on")]

    assert eventually(is_audited)
    assert ops.delete(f"{watched_pair[0].base}/admin/api/sessions/{session}").status_code == 200


@requirement("ops.frames")
def test_no_secret_of_the_session_is_shown(watched_pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    for era in (Legacy, Modern):
        client, session = opened(watched_pair[0], http, era)
        url = frames_path(watched_pair[0], session)
        ops.put(url)
        assert json.loads(tool_text(client.tool("env")))["HARMLESS"] == SECRET
        tool_text(client.tool("mutter", {"line": f"it is {SECRET}, {PASSWORD}"}))
        tool_text(client.tool("meta"))
        tool_text(client.tool("echo", {"again": SECRET}))
        assert eventually(lambda url=url: page_of(ops, url.replace("/frames", "/stderr"))["lines"])  # type: ignore[misc]  # bound in this round
        shown = json.dumps([page_of(ops, url), page_of(ops, url.replace("/frames", "/stderr"))])
        assert len(page_of(ops, url)["frames"]) >= 16
        assert SECRET not in shown and shown.count("[redacted]") > 4
        assert "Bearer" not in shown and "eyJ" not in shown
        token = client.session if era is Legacy else client.headers["MCP-Gateway-Session"]
        assert token not in shown
        ops.delete(f"{watched_pair[0].base}/admin/api/sessions/{session}")


@requirement("ops.stderr-live")
def test_stderr_is_seen_as_it_is_written(watched_pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    client, session = opened(watched_pair[0], http, Legacy)
    tool_text(client.tool("mutter", {"line": "before anybody watches"}))
    url = frames_path(watched_pair[1], session).replace("/frames", "/stderr")
    last_words = page_of(ops, url)
    assert not last_words["watched"] and last_words["lines"][-1]["text"] == "before anybody watches"
    assert ops.get(url, headers={"Accept": "text/event-stream"}).status_code == 409
    ops.put(frames_path(watched_pair[1], session))
    heard: list[str] = []
    is_read = threading.Event()

    def read() -> None:
        with ops.stream("GET", url, headers={"Accept": "text/event-stream"}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    heard.append(json.loads(line[6:])["text"])
                    is_read.set()
                    if len(heard) == 3:
                        return

    reader = threading.Thread(target=read)
    reader.start()
    assert is_read.wait(10), "the line from before"
    for line in ("one", "Bearer abcdefgh12345678"):
        tool_text(client.tool("mutter", {"line": line}))
    reader.join(15)
    assert heard == ["before anybody watches", "one", "[redacted]"]
    page = page_of(ops, url)
    assert [line["text"] for line in page_of(ops, url, after=page["lines"][0]["number"])["lines"]] == heard[1:]
    client.delete()


@requirement("ops.frames-reason")
def test_where_clients_have_keys_an_operator_gives_a_reason_and_the_next_one_another(ops: httpx.Client) -> None:
    keys = {"olga": sha256(OPERATOR), "otto": sha256("key of otto")}
    options = {"admin": {"keys": keys}, "api_keys": {"ann": sha256("key of ann")}}
    others = httpx.Client(headers=bearer("key of otto"), timeout=20)
    with (
        running_gateway({"probe": server(PROBE)}, options=options) as gateway,
        httpx.Client(headers=bearer("key of ann"), timeout=20) as http,
        others as otto,
    ):
        client, session = opened(gateway, http, Legacy)
        url = frames_path(gateway, session)
        assert ops.put(url).status_code == 400 and page_of(ops, url)["watched"] is False
        assert ops.put(url, params={"reason": "ticket 17"}).json()["by"] == "olga"
        tool_text(client.tool("echo", {"first": 1}))
        assert len(page_of(ops, url)["frames"]) == 4
        streamed = {"Accept": "text/event-stream"}
        for refused in (otto.get(url), otto.get(url, headers=streamed), otto.put(url)):
            assert refused.status_code == 400 and "reason" in refused.json()["detail"]
        assert otto.get(url.replace("/frames", "/stderr")).status_code == 400
        assert otto.put(url, params={"reason": "on call"}).json()["frames"] == []
        tool_text(client.tool("echo", {"second": 2}))
        assert len(page_of(otto, url)["frames"]) == 4 and ops.get(url).status_code == 400
        assert ops.delete(url).json()["watched"] is False and page_of(otto, url)["frames"] == []

        def reasons() -> list[str]:
            events = ops.get(f"{gateway.base}/admin/api/events", params={"session": session}).json()
            return [event["reason"] for event in events if event["event"] == "operated"]

        assert eventually(lambda: len(reasons()) == 3)
        assert reasons() == [
            "the operator olga has switched off its frames",
            "the operator otto has switched on its frames: on call",
            "the operator olga has switched on its frames: ticket 17",
        ]


@requirement("ops.frames-reason")
def test_the_page_asks_for_the_reason(http: httpx.Client, browser: Browser) -> None:
    with running_gateway({"probe": server(PROBE)}, options={"admin": ADMIN | {"frames": "with_reason"}}) as gateway:
        client, session = opened(gateway, http, Legacy)
        context = on_device(browser, "dark")
        page = signed_in(context, gateway)
        page.goto(f"{gateway.base}/admin/sessions/{session}")
        expect(page.get_by_text("only the operator who gives a reason")).to_be_visible()
        page.get_by_role("button", name="Switch on for 10 minutes").click()  # the browser asks for the reason
        expect(page.get_by_text("Switched on by olga")).to_be_hidden()
        page.get_by_label("Reason, for the audit trail").fill("ticket <17>")
        page.get_by_role("button", name="Switch on for 10 minutes").click()
        expect(page.get_by_text("Switched on by olga")).to_be_visible()
        tool_text(client.tool("echo", {"first": 1}))
        expect(page.locator("table.frames tbody tr")).to_have_count(4)
        assert axe_violations(page) == []
        page.get_by_role("button", name="Switch off").click()
        expect(page.get_by_label("Reason, for the audit trail")).to_be_visible()
        page.goto(f"{gateway.base}/admin/events?event=operated")
        expect(page.locator("tbody")).to_contain_text("the operator olga has switched on its frames: ticket <17>")
        context.close()


@requirement("ops.frames", "ops.stderr-live", "ops.console-live", "ops.console-keys")
@pytest.mark.parametrize("device", ["dark", "phone"])
def test_the_page_of_a_session_shows_them_as_they_pass(
    watched_pair: Pair, http: httpx.Client, browser: Browser, device: str
) -> None:
    client, session = opened(watched_pair[0], http, Legacy)
    context = on_device(browser, device)
    page = signed_in(context, watched_pair[1])
    page.goto(f"{watched_pair[1].base}/admin/sessions/{session}")
    button = page.get_by_role("button", name="Switch on for 10 minutes")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Switched on by olga")).to_be_visible()
    tool_text(client.tool("echo", {"first": "<b>one</b>"}))
    rows = page.locator("table.frames tbody tr")
    expect(rows).to_have_count(4)
    oldest = rows.last.locator("summary")
    oldest.focus()
    page.keyboard.press("Enter")
    expect(rows.last.locator("pre")).to_contain_text("<b>one</b>")
    page.evaluate("document.querySelectorAll('table.frames tr').forEach((row) => (row.isTheSame = true))")
    tool_text(client.tool("mutter", {"line": "a line of stderr"}))
    expect(rows).to_have_count(8)
    expect(page.locator("pre.log")).to_contain_text("a line of stderr")
    # What was there stays as it is: nothing flickers, and what is open stays open.
    assert page.evaluate("[...document.querySelectorAll('table.frames tbody tr')].slice(-4).every((r) => r.isTheSame)")
    expect(rows.last.locator("pre")).to_be_visible()
    expect(oldest).to_be_focused()
    assert axe_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("button", name="Switch off").click()
    expect(page.get_by_role("button", name="Switch on for 10 minutes")).to_be_visible()
    context.close()
    client.delete()
