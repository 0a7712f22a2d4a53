"""`gateway.admin.console`: each page is shown, kept up to date and acted on in the same way, whatever it is about."""

import json
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from jinja2 import Environment
from starlette.applications import Starlette

from gateway.admin import console, pages
from gateway.admin.auth import Access, OperatorHosts
from gateway.admin.console import Console
from gateway.admin.pages import console_pages
from gateway.admin.reports import (
    HiddenTools,
    ProcessFacts,
    ReplicaReport,
    ServerEnvironment,
    ServerPart,
    SessionPart,
    Variable,
)
from gateway.admin.tried_calls import ToolCatalog
from gateway.config.settings import Settings
from gateway.observability.audit import Audit
from gateway.observability.figures import FigureRecord, ToolFigures, WhoFigures
from gateway.observability.observed import Failure
from gateway.protocol.listing import Tools
from gateway.sandbox.refusals import RefusedRow
from session_store import AuditEvent, HistoryRecord, KeyRing, MemoryBackend
from session_store.session import ClientFacts
from session_store.testing import FakeClock, a_session, a_task
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.unit.admin.test_operations import FakeEnding, FakeReplicas, an_environment, operations_of
from transports.inbound.http import Guard

pytestmark = [pytest.mark.anyio, requirement("ops.console")]

HOSTILE = "\u202e<script>alert(1)</script>"
SESSION = "abcdefgh-the-secret-rest"
TASK = "ijklmnop-the-secret-rest"
HOSTILE_TOOL = {"name": HOSTILE, "title": HOSTILE, "description": HOSTILE, "inputSchema": {"title": HOSTILE}}
HOSTILE_SERVER: Any = SimpleNamespace(name="hostile", probed_tools=Tools([HOSTILE_TOOL]))


class Draining(FakeReplicas):
    """Replicas that drain: each stream of a page ends after its first event."""

    is_draining = True

    async def reports(self) -> list[ReplicaReport]:
        return [ReplicaReport(replica="abc", address=HOSTILE), ReplicaReport(replica="def", draining=True)]


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
    tried: Any = SimpleNamespace(catalog=ToolCatalog([HOSTILE_SERVER], {}), where="any")
    replicas.known_servers = [ServerPart(server=HOSTILE, kind="command", state="failing", reason=HOSTILE)]
    settings = Settings.model_validate({"gateway": {"issuer": HOSTILE}})
    operations = operations_of(backend, replicas, clock, ending=ending, settings=settings, tried=tried)
    keys, audit, allowed = {"ann": [sha256("key")]}, Audit(backend.audit, time), OperatorHosts(["gateway"])
    access = Access(keys, KeyRing.ephemeral(), guard=Guard(), marks=backend.marks, audit=audit, hosts=allowed)
    transport = httpx.ASGITransport(Starlette(routes=Console(operations, access).routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=bearer("key")) as client:
        yield client


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


@requirement("ops.try-tools")
async def test_what_a_server_says_of_a_tool_is_text(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/admin/tools/hostile", params={"name": HOSTILE})
    assert page.status_code == 200 and "&lt;script&gt;" in page.text and HOSTILE not in page.text
    assert (await operator.get("/admin/tools/hostile/live")).status_code == 404
    assert (await operator.get("/admin/tools/hostile", params={"name": "other"})).status_code == 404


async def test_the_navigation_has_the_pages_in_order_and_marks_the_present_one(operator: httpx.AsyncClient) -> None:
    text = (await operator.get("/admin/sessions")).text
    links = ('href="/admin">', 'href="/admin/sessions" aria-current', 'href="/admin/events"')
    found = [text.index(link) for link in links]
    assert found == sorted(found)
    places = [page.position for page in console_pages().values() if page.label]
    assert len(set(places)) == len(places)


async def test_a_page_that_cannot_be_shown_says_why_once(operator: httpx.AsyncClient) -> None:
    for session, status, why in (("zzzzzzzz", 404, "No session"), ("a", 400, "Give at least 4")):
        page = await operator.get(f"/admin/sessions/{session}")
        assert page.status_code == status and page.text.count(why) == 1
        live = await operator.get(f"/admin/sessions/{session}/live")
        assert why in json.loads(live.text.removeprefix("data: "))


async def test_an_action_is_an_operators_and_leads_to_the_next_page(
    operator: httpx.AsyncClient, ending: FakeEnding
) -> None:
    form = "/admin/sessions/abcdefgh/end"
    assert (await operator.post(form, headers={"Authorization": ""})).status_code == 403 and not ending.ended
    done = await operator.post(form)
    assert (done.status_code, done.headers["location"]) == (303, "/admin/sessions")
    assert ending.ended == [(SESSION, "the operator ann ended it")]
    failed = await operator.post("/admin/sessions/zzzzzzzz/end")
    assert failed.status_code == 409 and "No session begins with" in failed.text
    assert (await operator.post("/admin/replicas/abc/drain")).headers["location"] == "/admin/replicas"


async def test_a_client_is_told_to_connect_where_the_browser_does(operator: httpx.AsyncClient) -> None:
    page = (await operator.get("/admin/connect")).text
    assert "claude mcp add --transport http gateway http://gateway/mcp" in page
    page = (await operator.get("/admin/connect?base=https://mcp.example.com/mcp&client=vscode")).text
    assert 'href="vscode:mcp/install?' in page and "https://mcp.example.com/mcp" in page
    for base in ("javascript:alert(1)", "https://ann:secret@a.example", "http://", "http://[", "x y"):
        refused = await operator.get("/admin/connect", params={"base": base})
        assert refused.status_code == 400 and "without credentials" in refused.text, base
        assert "javascript:" not in refused.text


TOY = """
from gateway.admin.pages.page import ConsolePage

async def _facts(operators, request):
    return {"count": len(await operators.replicas())}

PAGE = ConsolePage(
    path="/admin/toy", facts=_facts, label="Toy", position=99, title="Toy", live="{{ count }} replica"
)
"""


@pytest.fixture
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(pages, "__path__", [*pages.__path__, str(tmp_path)])


async def test_a_module_of_the_package_is_a_page_and_needs_no_other_change(
    _toy: None, operator: httpx.AsyncClient
) -> None:
    assert list(console_pages())[-1] == "toy"
    assert "2 replica" in (await operator.get("/admin/toy")).text
    assert 'href="/admin/toy"' in (await operator.get("/admin")).text


@requirement("ops.bulk-end")
async def test_a_form_that_says_no_sessions_ends_none(operator: httpx.AsyncClient, ending: FakeEnding) -> None:
    for form in ("", "client=", "client=a&principal=", "client=a&client=b", "client=a&sessions=b"):
        answer = await operator.post("/admin/sessions/end", content=form)
        assert answer.status_code == 409 and ("give" in answer.text or "Give" in answer.text), form
        assert ending.ended == []


@requirement("ops.bulk-end")
async def test_the_form_ends_what_the_page_has_counted(operator: httpx.AsyncClient, ending: FakeEnding) -> None:
    page = await operator.get("/admin/sessions", params={"client": HOSTILE})
    assert "1 session of client \\u202e&lt;script&gt;" in page.text and HOSTILE not in page.text
    assert 'name="client" value="\u202e&lt;script&gt;' in page.text, "the form sends the name as it is"
    assert "0 sessions of client" in (await operator.get("/admin/sessions", params={"client": "no"})).text
    assert (await operator.get("/admin/sessions?client=a&client=b")).status_code == 400
    assert ending.ended == []
    done = await operator.post("/admin/sessions/end", data={"client": HOSTILE})
    assert (done.status_code, done.headers["location"]) == (303, "/admin/events")
    assert [session for session, _ in ending.ended] == [SESSION]


async def test_no_page_is_compiled_on_the_event_loop(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    compile_ = Environment.compile

    def compiled(environment: Environment, *given: Any, **more: Any) -> Any:
        threads.add(threading.get_ident())
        return compile_(environment, *given, **more)

    monkeypatch.setattr(Environment, "compile", compiled)
    assert (await operator.get("/admin/sessions")).status_code == 200
    assert threads and threading.get_ident() not in threads
    threads.clear()
    assert (await operator.get("/admin/servers")).status_code == 200 and not threads, "all are compiled at once"


def test_a_rule_for_narrow_screens_is_not_that_for_all() -> None:
    css = re.sub(r"/\*.*?\*/", "", (Path(console.__file__).parent / "static/console.css").read_text(), flags=re.DOTALL)
    media = r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}"
    everywhere = css_rules(re.sub(media, "", css))
    narrow = [rule for block in re.findall(media, css) for rule in css_rules(block)]
    assert len(narrow) > 10 and not everywhere.intersection(narrow), "it would undo what stands before it"


def css_rules(text: str) -> set[str]:
    return {" ".join(rule.split()) for rule in re.findall(r"[^{}]+\{[^{}]*\}", text)}
