"""`gateway.admin.console`: each page is shown, kept up to date and acted on in the same way, whatever it is about."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from time import time
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from jinja2 import Environment
from starlette.applications import Starlette

from gateway.admin import console, rest
from gateway.admin.auth import (
    FREE,
    LONGEST_S,
    VALID_S,
    Access,
    HostNotAllowed,
    OperatorHosts,
    SignInAttempts,
    SignInLink,
    TooManyAttempts,
)
from gateway.admin.console import Console
from gateway.admin.operator_tool_calls import ToolCatalog
from gateway.admin.pages import console_pages
from gateway.admin.query_types import NoSuch
from gateway.admin.report_types import (
    HiddenTools,
    ProcessFacts,
    ReplicaReport,
    ServerEnvironment,
    ServerPart,
    SessionPart,
    Variable,
)
from gateway.admin.rest import Rest
from gateway.config.settings import Settings
from gateway.observability.audit import Audit
from gateway.observability.observed_call import Failure
from gateway.observability.usage_counts import FigureRecord, ToolFigures, WhoFigures
from gateway.protocol.merged_lists import Tools
from gateway.sandbox.refusal_reports import RefusedRow
from session_store import AuditEvent, HistoryRecord, KeyRing, MemoryBackend
from session_store.ports.timelines import TimelineEntry, TimelineHead, TimelinePart
from session_store.session import ClientFacts
from session_store.testing import FakeClock, a_session, a_task
from session_store.token_signing import generate_key
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.unit.admin.test_verb_handlers import FakeEnding, FakeReplicas, an_environment, operations_of
from transports.inbound.host_and_origin import Guard

HOSTILE = "\u202e<script>alert(1)</script>"
SESSION = "abcdefgh-the-secret-rest"
TASK = "ijklmnop-the-secret-rest"
ENDED = "qrstuvwx-the-secret-rest"
HOSTILE_TOOL = {"name": HOSTILE, "title": HOSTILE, "description": HOSTILE, "inputSchema": {"title": HOSTILE}}
HOSTILE_SERVER: Any = SimpleNamespace(name="hostile", probed_tools=Tools([HOSTILE_TOOL]))


class Draining(FakeReplicas):
    """Replicas that drain: each stream of a page ends after its first event."""

    is_draining = True

    async def reports(self) -> list[ReplicaReport]:
        silent = ReplicaReport(replica="ghi", silent=True)
        return [ReplicaReport(replica="abc", address=HOSTILE), ReplicaReport(replica="def", draining=True), silent]


@pytest.fixture
async def ending() -> FakeEnding:
    return FakeEnding()


@pytest.fixture
async def operator(ending: FakeEnding) -> AsyncIterator[httpx.AsyncClient]:
    """An operator's client of a console that shows one session and one task, whose every text is hostile."""
    clock = FakeClock(time())
    backend = MemoryBackend(clock=clock)
    named, noted = ClientFacts(name=HOSTILE), {"note": HOSTILE}
    session = a_session(clock, id=SESSION, client=named, links=(HOSTILE,), metadata=noted)
    await backend.sessions.create(session)
    error = msgspec.json.encode({"code": -32603, "message": HOSTILE})
    task = a_task(clock, id=TASK, session_id=SESSION, server=HOSTILE, tool=HOSTILE, status="failed", error=error)
    await backend.tasks.create(task)
    event = AuditEvent(at=1.0, event="refused", session="abcdefgh", principal=HOSTILE, reason=HOSTILE)
    await backend.audit.record([event])
    entries = [
        TimelineEntry(1.0, "refusal", correlation="blocked-1"),
        TimelineEntry(2.0, "call", outcome="failed", correlation="called-1"),
    ]
    for known in ("abcdefgh", ENDED[:8]):
        await backend.timelines.add([TimelinePart(head=TimelineHead(session=known), entries=entries)])
    for number in range(21):
        await backend.tasks.create(a_task(clock, id=f"{number:08}-of-ended", session_id=ENDED, server=HOSTILE))
    failure = Failure(at=1.0, name=HOSTILE, server=HOSTILE, outcome="failed", why=HOSTILE, correlation="c")
    process = ProcessFacts(server=HOSTILE, era="legacy", stderr=[HOSTILE])
    refused = RefusedRow(at=1.0, server=HOSTILE, kind="name", what=HOSTILE, why="not listed", allows=HOSTILE, count=3)
    tools, who = [ToolFigures(HOSTILE, HOSTILE, 3, counts=[3])], [WhoFigures(HOSTILE, 3)]
    figures = msgspec.json.encode(FigureRecord(tools=tools, principals=who, clients=who))
    for step_s in (60, 600):
        await backend.history.write(step_s, HistoryRecord(int(clock()) // step_s * step_s, "abc", figures))
    replicas = Draining(SessionPart(id=SESSION, failed=1, failures=[failure], processes=[process], refused=[refused]))
    replicas.stored[SESSION] = session
    given = ServerEnvironment(
        server=HOSTILE, kind="command", cwd=HOSTILE, home=HOSTILE, temporary=HOSTILE, sandbox=[HOSTILE], why=[HOSTILE],
        variables=[Variable(name=HOSTILE, origin="session", where=HOSTILE, value=HOSTILE)],
        hidden_tools=[HiddenTools(reason=HOSTILE, count=1, names=[HOSTILE])],
    )  # fmt: skip
    replicas.environments[SESSION] = an_environment(session, given, why=HOSTILE)
    tried: Any = SimpleNamespace(catalog=ToolCatalog([HOSTILE_SERVER]), where="any")
    replicas.known_servers = [ServerPart(server=HOSTILE, kind="command", state="failing", reason=HOSTILE)]
    settings = Settings.model_validate({"gateway": {"public_url": HOSTILE}})
    operations = operations_of(backend, replicas, clock, ending=ending, settings=settings, tried=tried)
    keys, audit, allowed = {"ann": [sha256("key")]}, Audit(backend.audit, time), OperatorHosts(["gateway"])
    access = Access(keys, KeyRing.ephemeral(), guard=Guard(), flags=backend.flags, audit=audit, hosts=allowed)
    transport = httpx.ASGITransport(Starlette(routes=Console(operations, access).routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=bearer("key")) as client:
        yield client


@requirement("ops.console")
async def test_each_page_is_shown_whole_and_its_live_part_is_sent_again(operator: httpx.AsyncClient) -> None:
    for name, page in console_pages().items():
        path = page.path.replace("{session}", "abcdefgh").replace("{task}", "ijklmnop")
        anonymous = await operator.get(path, headers={"Authorization": ""})
        assert (anonymous.status_code, anonymous.headers["location"]) == (303, "/admin/sign-in"), name
        if not page.is_live:
            continue
        answer = await operator.get(path)
        assert answer.status_code == 200 and answer.text.startswith("<!doctype html>"), name
        assert (await operator.get(f"{path}/live", headers={"Authorization": ""})).status_code == 401, name
        stream = await operator.get(f"{path}/live")
        assert stream.headers["content-type"].startswith("text/event-stream"), name
        live = json.loads(stream.text.removeprefix("data: "))
        _, _, shown = answer.text.partition(f'data-live="{path}/live">')
        assert live.strip() and shown.strip().startswith(live.strip()), name
        assert ("&lt;script&gt;" in live or name == "connect") and HOSTILE not in answer.text + live, name
        assert "\u202e" not in live, f"{name}: what turns the order of the text around it is an escape"
        assert "the-secret-rest" not in answer.text + live, name


@requirement("ops.timeline")
async def test_a_correlation_id_is_a_link_if_an_event_has_it(operator: httpx.AsyncClient) -> None:
    shown = (await operator.get("/admin/sessions/abcdefgh")).text
    assert "events?q=blocked-1" in shown, "the refusal is an event"
    assert 'title="called-1"' in shown and "q=called-1" not in shown, "without audit.calls, only the log has it"


@requirement("ops.timeline")
async def test_a_session_that_has_ended_leads_to_all_its_tasks(operator: httpx.AsyncClient) -> None:
    shown = (await operator.get(f"/admin/sessions/{ENDED[:8]}")).text
    assert "This session is over" in shown and f"/admin/tasks?q={ENDED[:8]}" in shown


@requirement("ops.console-limits")
async def test_pages_say_what_they_cannot_know(operator: httpx.AsyncClient) -> None:
    for path in ("sessions?when=day", "servers", "usage"):
        assert "1 replica did not answer in time" in (await operator.get(f"/admin/{path}")).text, path
    for path, words in (
        ("", "counted since each replica has started"),
        ("/replicas", "since the start of the replica"),
        ("/events", "<code>gateway.audit.calls</code> is off"),
        ("/sessions?when=day&tool=x", "newest 500 sessions"),
        ("/tasks?status=failed", "Searched are the newest 20,000"),
        ("/sessions/abcdefgh", "forgets them when frames are switched"),
    ):
        assert words in " ".join((await operator.get(f"/admin{path}")).text.split()), path


@requirement("ops.console", "ops.try-tools")
async def test_what_a_server_says_of_a_tool_is_text(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/admin/tools/hostile", params={"name": HOSTILE})
    assert page.status_code == 200 and "&lt;script&gt;" in page.text and HOSTILE not in page.text
    for path in ("/admin/tools/hostile/live", "/admin/tools/hostile?name=other"):
        assert (await operator.get(path)).status_code == 404


@requirement("ops.console")
async def test_the_navigation_has_the_pages_in_order_and_marks_the_present_one(operator: httpx.AsyncClient) -> None:
    text = (await operator.get("/admin/sessions")).text
    found = [text.index(f'href="/admin{link}') for link in ('">', '/sessions" aria-current', '/events"')]
    assert found == sorted(found)
    places = [page.position for page in console_pages().values() if page.label]
    assert len(set(places)) == len(places)


@requirement("ops.console")
async def test_a_page_that_cannot_be_shown_says_why_once(operator: httpx.AsyncClient) -> None:
    for session, status, why in (("zzzzzzzz", 404, "No session"), ("a", 400, "Give at least 4")):
        page = await operator.get(f"/admin/sessions/{session}")
        assert page.status_code == status and page.text.count(why) == 1
        live = await operator.get(f"/admin/sessions/{session}/live")
        assert why in json.loads(live.text.removeprefix("data: "))


@requirement("ops.console")
async def test_an_action_is_an_operators_and_leads_to_the_next_page(
    operator: httpx.AsyncClient, ending: FakeEnding
) -> None:
    form = "/admin/sessions/abcdefgh/end"
    assert (await operator.post(form, headers={"Authorization": ""})).status_code == 403 and not ending.ended
    done = await operator.post(form)
    assert (done.status_code, done.headers["location"]) == (303, "/admin/sessions")
    assert ending.ended == [(SESSION, "the operator ann ended it")]
    failed = await operator.post("/admin/sessions/zzzzzzzz/end")
    assert failed.status_code == 404 and "No session begins with" in failed.text
    assert (await operator.post("/admin/replicas/abc/drain")).headers["location"] == "/admin/replicas"


@requirement("ops.console")
async def test_a_client_is_told_to_connect_where_the_browser_does(operator: httpx.AsyncClient) -> None:
    page = (await operator.get("/admin/connect")).text
    assert "claude mcp add --transport http gateway http://gateway/mcp" in page
    page = (await operator.get("/admin/connect?base=https://mcp.example.com/mcp&client=vscode")).text
    assert 'href="vscode:mcp/install?' in page and "https://mcp.example.com/mcp" in page
    for base in ("javascript:alert(1)", "https://ann:secret@a.example", "http://", "http://[", "x y"):
        refused = await operator.get("/admin/connect", params={"base": base})
        assert refused.status_code == 400 and "without credentials" in refused.text, base
        assert "javascript:" not in refused.text


@requirement("ops.console", "ops.bulk-end")
async def test_the_form_ends_what_the_page_has_counted_and_one_that_names_no_sessions_ends_none(
    operator: httpx.AsyncClient, ending: FakeEnding
) -> None:
    for form in ("", "client=", "client=a&principal=", "client=a&client=b", "client=a&sessions=b"):
        answer = await operator.post("/admin/sessions/end", content=form)
        assert answer.status_code == 400 and ("give" in answer.text or "Give" in answer.text), form
    page = await operator.get("/admin/sessions", params={"client": HOSTILE})
    assert "1 session of client \\u202e&lt;script&gt;" in page.text and HOSTILE not in page.text
    assert 'name="client" value="\u202e&lt;script&gt;' in page.text, "the form sends the name as it is"
    assert "0 sessions of client" in (await operator.get("/admin/sessions?client=no")).text
    assert (await operator.get("/admin/sessions?client=a&client=b")).status_code == 400
    assert ending.ended == []
    done = await operator.post("/admin/sessions/end", data={"client": HOSTILE})
    assert (done.status_code, done.headers["location"]) == (303, "/admin/events")
    assert [session for session, _ in ending.ended] == [SESSION]


@requirement("ops.console")
async def test_no_page_is_compiled_on_the_event_loop(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    compile_ = Environment.compile

    def compiled(environment: Environment, *given: Any, **more: Any) -> Any:
        threads.add(threading.get_ident())
        return compile_(environment, *given, **more)

    monkeypatch.setattr(Environment, "compile", compiled)
    console._environment.cache_clear()
    for path, compiles in (("/admin/sessions", True), ("/admin/servers", False)):  # all are compiled at once
        threads.clear()
        assert (await operator.get(path)).status_code == 200
        assert bool(threads) is compiles and threading.get_ident() not in threads


# -- Who is let in: by which names of the gateway, by the link of the terminal, and after how many wrong keys


ALWAYS = ("127.0.0.1:8080", "localhost:9092", "LOCALHOST", "[::1]:8080", "10.1.2.3", "192.0.2.7:9090", "[fe80::1]")
NAMED = ("admin.example:9090", "ADMIN.example", "a.b.example")
OTHERS = (
    *("", "attacker.example", "admin.example.attacker.test", "b.example", "localhost.attacker.test", "[::1", "a@b:x"),
    *("attacker.example@localhost", "localhost/attacker.example", "127.0.0.1?x", "127.0.0.1#x"),
    "x" * 10_000 + ".b.example",
)


@requirement("ops.console-host")
@pytest.mark.parametrize(
    ("allowed", "passing", "refused"),
    [
        (["admin.example", "*.b.example"], (*ALWAYS, *NAMED), OTHERS),
        (["*"], (*ALWAYS, *NAMED, *OTHERS), ()),
        ([], ALWAYS, NAMED),
    ],
    ids=["names", "all", "none"],
)
def test_addresses_pass_and_names_that_are_allowed(
    allowed: list[str], passing: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    hosts = OperatorHosts(allowed)
    for host in passing:
        hosts.check(host)
    for host in refused:
        with pytest.raises(HostNotAllowed, match=r"gateway\.admin\.allowed_hosts"):
            hosts.check(host)


def test_a_link_opens_once_and_for_ten_minutes() -> None:
    clock = FakeClock()
    link = SignInLink(clock)
    assert len(link.token) >= 43 and not link.opens_with("") and not link.use_up(link.token + "x")
    assert not link.use_up("\ud800")
    assert link.opens_with(link.token) and link.use_up(link.token) and not link.use_up(link.token)
    late = SignInLink(clock)
    clock.pass_time(VALID_S)
    assert not late.use_up(late.token)


OTHER = "http://127.0.0.1:8081"


class ConsoleWithLink:
    """A console that no key opens, and clients of it."""

    def __init__(self, ring: KeyRing | None = None) -> None:
        self.link = SignInLink()
        backend = MemoryBackend(clock=FakeClock(time()))
        operations = operations_of(backend, FakeReplicas(), time)
        audit, ring = Audit(backend.audit, time), ring or KeyRing.ephemeral()
        self.access = Access({}, ring, guard=Guard(), flags=backend.flags, audit=audit, link=self.link)
        self.app = Starlette(routes=Console(operations, self.access).routes)

    def client(self, other: "ConsoleWithLink | None" = None) -> httpx.AsyncClient:
        """A browser. The other console is at `OTHER`."""
        transport, mounts = httpx.ASGITransport(self.app), {OTHER: httpx.ASGITransport((other or self).app)}
        return httpx.AsyncClient(transport=transport, mounts=mounts, base_url="http://127.0.0.1:8080")

    @property
    def path(self) -> str:
        return f"/admin/sign-in/{self.link.token}"


@pytest.fixture
async def linked() -> ConsoleWithLink:
    return ConsoleWithLink()


@requirement("first.link")
async def test_the_link_signs_one_browser_in(linked: ConsoleWithLink) -> None:
    async with linked.client() as browser, linked.client() as other:
        assert (await browser.get("/admin")).headers["location"].endswith("/admin/sign-in")
        page = await browser.get("/admin/sign-in")
        assert page.status_code == 200 and "gateway.admin.keys" in page.text and 'name="key"' not in page.text
        answers = await asyncio.gather(browser.get(linked.path), other.get(linked.path))
        [signed_in] = [answer for answer in answers if answer.status_code == 200]
        assert signed_in.headers["refresh"] == "0; url=/admin"
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and linked.link.token not in cookie
        if signed_in is answers[1]:
            browser, other = other, browser
        assert (await browser.get("/admin")).status_code == 200 and (await other.get("/admin")).status_code == 303
        for again in (other, browser):
            refused = await again.get(linked.path)
            assert refused.status_code == 403 and "has been used" in refused.text
            assert "set-cookie" not in refused.headers
        await browser.post("/admin/sign-out")
        assert (await browser.get("/admin")).status_code == 303


@requirement("first.link")
async def test_what_only_looks_at_the_link_does_not_use_it(linked: ConsoleWithLink) -> None:
    async with linked.client() as browser:
        prefetch = {"Sec-Purpose": "prefetch;prerender"}
        for looked in (await browser.head(linked.path), await browser.get(linked.path, headers=prefetch)):
            assert looked.status_code == 503 and "set-cookie" not in looked.headers
        assert (await browser.get(f"{linked.path}x")).status_code == 403
        assert "set-cookie" in (await browser.get(linked.path)).headers


@requirement("first.link")
async def test_a_sign_in_by_link_ends_with_the_process_that_made_the_link(linked: ConsoleWithLink) -> None:
    async with linked.client() as browser:
        await browser.get(linked.path)
        linked.access._proofs.clear()  # as in a new process, whose link has another proof
        assert (await browser.get("/admin")).status_code == 303


@requirement("ops.console")
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_another_site_signs_nobody_out(linked: ConsoleWithLink, headers: dict[str, str]) -> None:
    async with linked.client() as browser:
        await browser.get(linked.path)
        refused = await browser.post("/admin/sign-out", headers=headers)
        assert "set-cookie" not in refused.headers
        assert (await browser.get("/admin")).status_code == 200


async def seen_by(browser: httpx.AsyncClient) -> list[int]:
    """How the console and the one at `OTHER` answer the browser."""
    return [(await browser.get(f"{host}/admin")).status_code for host in ("", OTHER)]


@requirement("ops.console")
async def test_gateways_on_other_ports_of_a_host_leave_a_browser_signed_in() -> None:
    """Cookies have no port: those of gateways with other keys have other names."""
    one, two = ConsoleWithLink(), ConsoleWithLink()
    async with one.client(two) as browser:
        await browser.get(one.path)
        await browser.get(f"{OTHER}{two.path}")
        assert await seen_by(browser) == [200, 200]
        await browser.post(f"{OTHER}/admin/sign-out")
        assert await seen_by(browser) == [200, 303]


@requirement("ops.console")
async def test_replicas_know_the_cookie_while_keys_are_replaced() -> None:
    """The one that has the new key already and the one that has it as its second one."""
    old, new = generate_key(), generate_key()
    before, after = ConsoleWithLink(KeyRing([old, new])), ConsoleWithLink(KeyRing([new, old]))
    after.access._proofs, after.access._flags = before.access._proofs, before.access._flags  # one store
    async with before.client(after) as browser:
        await browser.get(before.path)
        assert await seen_by(browser) == [200, 200]
        await browser.post(f"{OTHER}/admin/sign-out")
        assert await seen_by(browser) == [303, 303]


@requirement("wall.memory")
def test_attempts_wait_longer_and_longer_and_are_forgotten() -> None:
    clock = FakeClock()
    attempts = SignInAttempts(clock)
    waits = []
    for _ in range(FREE + 8):
        attempts.wrong("192.0.2.1")
        try:
            attempts.check("192.0.2.1")
        except TooManyAttempts as error:
            waits.append(error.wait_s)
    assert waits == sorted(waits) and waits[0] == 1.0 and waits[-1] == LONGEST_S and len(waits) == 9
    clock.pass_time(LONGEST_S)
    attempts.check("192.0.2.1")
    for number in range(10_000):
        attempts.wrong(f"10.0.{number // 250}.{number % 250}")
    assert len(attempts._wrong) <= 4_096


# -- `gateway.admin.rest`: streams of events end with the sign-in of their operator


ACCEPT = {"Accept": "text/event-stream"}


class SignedIn:
    """An operator who is signed in for that many requests and looks."""

    def __init__(self, times: int) -> None:
        self.times = times

    def check_host(self, request: Any) -> None:
        """Every host is allowed."""

    async def operator(self, request: Any) -> str | None:
        self.times -= 1
        return "ann" if self.times >= 0 else None


class Happening:
    """Three events, and then the session is gone."""

    async def follow(self, session: str = "") -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"number": number}
        raise NoSuch("the session has ended")


async def heard(times: int, headers: dict[str, str]) -> list[str]:
    operations: Any = Happening()
    access: Any = SignedIn(times)
    transport = httpx.ASGITransport(Starlette(routes=Rest(operations, access).routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        answer = await client.get("/admin/api/events")
    return [line for line in answer.text.splitlines() if line.startswith("data: ")]


@requirement("ops.console")
async def test_a_stream_ends_with_the_sign_in_of_its_operator_or_with_what_it_is_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(await heard(1, ACCEPT)) == 3, "what it was about is gone"
    monkeypatch.setattr(rest, "_CHECKED_EVERY_S", 0.0)
    assert await heard(3, ACCEPT) == ['data: {"number":0}'], "the request, the greeting, and one event"
    with_key = ACCEPT | {"Authorization": "Bearer key"}
    assert await heard(3, with_key) == ['data: {"number":0}'], "a reload may have removed the key"
