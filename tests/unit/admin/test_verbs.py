"""`gateway.admin.verbs`: parameters of requests, there and back, and the description in OpenAPI."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.admin.query_types import SORTS, OperatorError, PastQuery, SessionFilter, SessionQuery, TaskQuery
from gateway.admin.report_types import SessionPart, SessionState, detached
from gateway.admin.session_list_selection import Selection, cursor_of, matches
from gateway.admin.verbs import VERBS, Verb, openapi
from gateway.observability.observed_call import Failure
from session_store import ClientFacts, Principal, Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

BY_NAME = {one.name: one for one in VERBS}
BUSY = SessionQuery(
    query="a b", only="busy", which=SessionFilter(client="agent", failing=True), sort="used", limit=7, after="1.5~abc"
)


def read(verb: Verb, given: dict[str, str]) -> dict[str, Any]:
    return {one.at: one.read(given) for one in verb.takes}


@requirement("ops.console")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sessions", {"query": SessionQuery()}),
        ("sessions", {"query": BUSY}),
        ("end_all", {"which": SessionFilter(principal="api-key:ann")}),
        ("past_sessions", {"query": PastQuery(query="x", client="agent")}),
        ("tasks", {"query": TaskQuery(status="working", limit=2)}),
        ("usage", {"by": "client", "over": "6h"}),
        ("history", {"over": "15m", "server": "files", "tool": ""}),
        ("events", {"limit": 10_000, "session": "abcdefgh"}),
        ("stderr", {"prefix": "abcd", "after": 12_000, "limit": 500}),
        ("drain", {"prefix": "abc"}),
    ],
)
def test_arguments_come_back_from_the_parameters_of_a_request(name: str, arguments: dict[str, Any]) -> None:
    sent: dict[str, str] = {}
    for one in BY_NAME[name].takes:
        sent |= one.written(arguments[one.at])
    assert read(BY_NAME[name], sent) == arguments and all(sent.values())


@requirement("ops.console", "ops.session-list")
@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        *(("sessions", {"limit": limit}, "limit: must be a number from 1 to 1000") for limit in ("0", "1001", "٣")),
        ("sessions", {"only": "good"}, "only: must be one of all, failing, busy"),
        ("sessions", {"sort": "age"}, "sort: must be one of id, used, created"),
        ("sessions", {"state": "asleep"}, "state: must be one of idle, busy"),
        ("sessions", {"principal": ""}, "principal: is empty"),
        ("sessions", {"failing": "no"}, "failing: must be true"),
        ("end_all", {}, "name the sessions"),
        ("history", {"range": "2h"}, "range: must be one of 5m, 15m"),
        *(
            ("frames", {"session": "abcd", "after": after}, "after: must be a number, `after` of the previous page")
            for after in ("x", "9" * 30)
        ),
    ],
)
def test_a_wrong_parameter_is_answered_with_what_is_right(name: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        read(BY_NAME[name], given)


@requirement("ops.console")
def test_verbs_of_one_path_are_described_together_with_their_types() -> None:
    found = openapi("/api")
    ways = found["paths"]["/api/sessions/{session}"]
    assert found["openapi"] == "3.1.0" and ways.keys() == {"get", "delete"} and "requestBody" not in ways["get"]
    body = found["paths"]["/api/calls"]["post"]["requestBody"]
    schemas = [one["content"]["application/json"]["schema"] for one in (ways["get"]["responses"]["200"], body)]
    assert schemas == [{"$ref": "#/components/schemas/SessionRow"}, {"$ref": "#/components/schemas/Attempt"}]
    ended = ways["delete"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert ended == {"type": "object", "additionalProperties": {"type": "string"}}
    frames = found["paths"]["/api/sessions/{session}/frames"]["get"]["parameters"]
    told = [(one["name"], one["in"], one["required"], one["schema"]["type"]) for one in frames]
    expected = [("session", "path", True), ("after", "query", False)]
    assert told == [*((*one, "string") for one in expected), ("limit", "query", False, "integer")]
    assert all(one.summary and one.method in ("GET", "PUT", "POST", "DELETE") for one in VERBS)
    described = [one["description"] for one in found["components"]["schemas"].values() if "description" in one]
    assert described and not any("\n    " in words for words in described), "indented text is code in Markdown"


def test_each_verb_has_a_place_of_its_own() -> None:
    assert len({(one.method, one.path) for one in VERBS}) == len({one.name for one in VERBS}) == len(VERBS)


ELSEWHERE = {"frames", "stderr", "tools"}
"""The page of a session reads messages and lines at once (`SessionWatches.both`). `tools` is `usage` of tools, for
scripts."""


def test_each_verb_is_on_a_page_or_a_command() -> None:
    folders = (Path(__file__).parents[3] / "gateway" / name for name in ("admin/pages", "cli"))
    text = "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.py"))
    unseen = {one.name for one in VERBS if not re.search(rf"\b(operators|tried)\.{one.name}\(", text)}
    assert unseen == ELSEWHERE


# -- `gateway.admin.session_list_selection`: what matches, in which order, page by page, and what is counted


STATES: Final[tuple[SessionState, ...]] = ("idle", "busy", "waiting")
Key = Callable[[tuple[Session, SessionPart]], float]


def some(count: int) -> list[tuple[Session, SessionPart]]:
    """Sessions whose figures are by chance, many of them equal."""
    chance = random.Random(7)
    found = []
    for n in range(count):
        session = a_session(
            FakeClock(), id=f"{chance.randrange(16**10):010x}-{n}", used_at=float(chance.randrange(9)), created_at=0.0,
            endpoint=f"/servers/s{n % 3}/mcp", client=ClientFacts(name=f"agent-{n % 2}"),
            principal=Principal(issuer="api-key", subject=f"u{n % 5}"), links=(f"linked-{n % 4}/legacy",),
        )  # fmt: skip
        state = chance.choice(STATES)
        calls, failed = chance.randrange(4), chance.randrange(3)
        failures = [Failure(chance.random(), "t", "s", "tool error", "", "")]
        part = SessionPart(
            id=session.id, state=state, calls=calls, failed=failed, in_flight=int(state == "busy"),
            servers=[f"open-{n % 2}"], failures=failures,
        )  # fmt: skip
        found.append((session, part))
    return found


def ids(query: SessionQuery, sessions: list[tuple[Session, SessionPart]]) -> list[str]:
    return [place[1] for place, _ in selected(query, sessions).first()[: query.limit]]


def selected(query: SessionQuery, sessions: list[tuple[Session, SessionPart]]) -> Selection[None]:
    selection: Selection[None] = Selection(query)
    for session, facts in sessions:
        selection.add(session, facts, None)
        selection.first()  # forgets what no page can have
    return selection


@requirement("ops.session-list")
@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_every_order_have_each_session_once(sort: str) -> None:
    sessions, after, seen = some(60), "", []
    keys: dict[str, Key] = {
        "used": lambda one: -one[0].used_at, "calls": lambda one: -one[1].calls,
        "failures": lambda one: -one[1].failed, "last_failure": lambda one: -one[1].failed_at,
        "in_flight": lambda one: -one[1].in_flight,
    }  # fmt: skip
    key: Key = keys.get(sort, lambda _: 0.0)
    while True:
        first = selected(SessionQuery(sort=sort, limit=7, after=after), sessions).first()
        seen += [place[1] for place, _ in first[:7]]
        if len(first) <= 7:
            break
        after = cursor_of(first[6][0])
        assert first[6][0][1] not in after, "no id is whole"
    assert seen == [one[0].id for one in sorted(sessions, key=lambda one: (key(one), one[0].id))]


@requirement("ops.session-list")
def test_a_filter_is_exact_and_all_of_it_counts() -> None:
    sessions = some(60)

    def count(**which: Any) -> int:
        return selected(SessionQuery(which=SessionFilter(**which), limit=1), sessions).totals.sessions

    assert count(principal="api-key:u1") == 12 and count(principal="api-key:u") == 0
    assert count(client="agent-0") == 30 and count(client="agent-0", principal="api-key:u1") == 6
    assert count(server="s1") == 20 and count(server="linked-2") == 15 and count(server="open-1") == 30
    by_state = {state: count(state=state) for state in ("idle", "busy", "waiting")}
    totals = selected(SessionQuery(), sessions).totals
    assert totals.states == by_state and sum(by_state.values()) == totals.sessions == 60
    assert count(failing=True) == totals.failing == sum(facts.failed > 0 for _, facts in sessions)
    assert totals.failed == sum(facts.failed for _, facts in sessions)
    assert totals.calls == sum(facts.calls for _, facts in sessions) and totals.in_flight == by_state["busy"]


@requirement("ops.session-list")
def test_only_failing_and_only_busy_have_an_order_of_their_own() -> None:
    sessions = some(30)
    failing = ids(SessionQuery(only="failing", limit=30), sessions)
    at = {session.id: facts.failed_at for session, facts in sessions if facts.failed}
    assert failing == sorted(at, key=lambda one: -at[one])
    busy = ids(SessionQuery(only="busy", limit=30), sessions)
    assert {*busy} == {session.id for session, facts in sessions if facts.state in ("busy", "waiting")}
    assert ids(SessionQuery(query="agent-1", limit=30, sort="id"), sessions) == sorted(
        session.id for session, _ in sessions if session.client.name == "agent-1"
    )


@requirement("ops.session-list")
def test_cursors_and_orders_that_are_none_are_refused_and_a_filter_is_told_in_words() -> None:
    with pytest.raises(OperatorError, match="after: give the `after` of the previous page"):
        Selection(SessionQuery(after="x~abcd"))
    with pytest.raises(OperatorError, match="sort: must be one of id, used"):
        SessionQuery(sort="age")
    assert SessionFilter.of({"failing": "true", "state": "idle"}).given == {"state": "idle", "failing": "true"}
    assert str(SessionFilter(client="a", failing=True)) == "client a and failing calls"


@requirement("ops.session-list")
def test_all_words_of_a_query_have_to_stand_somewhere() -> None:
    session = a_session(FakeClock(), id="abcd", endpoint="/servers/demo/mcp", links=("files",))
    assert matches(session, "") and matches(session, "ab") and matches(session, "FILES demo")
    assert not matches(session, "files other")
    failed = SessionPart(id="abcd", failures=[Failure(1.0, "t", "s", "tool error", "", "c" * 32)])
    assert len(selected(SessionQuery(query="c" * 32), [(session, failed)]).first()) == 1
    assert not selected(SessionQuery(query="c" * 32), [(session, detached(session))]).first()
