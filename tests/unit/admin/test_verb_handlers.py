"""`gateway.admin.verb_handlers`: pages, names that are never guessed, and what is recorded."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from gateway.admin import session_list
from gateway.admin.query_types import (
    Ambiguous,
    NoSuch,
    OperatorError,
    SessionFilter,
    SessionQuery,
    TaskQuery,
    TooLate,
    TooShort,
    UnknownHere,
)
from gateway.admin.replica_queries import ASK, Answers, PeerQueries, Replicas
from gateway.admin.report_types import (
    FrameQuery,
    ReplicaReport,
    ServerEnvironment,
    ServerPart,
    SessionEnvironment,
    SessionPart,
    row_of,
)
from gateway.admin.session_list_selection import ListingPage, ListingRow, Selection
from gateway.admin.verb_handlers import Operations, operations_on, task_row
from gateway.observability.observed_call import Failure
from session_store import AuditEvent, ClientFacts, Context, MemoryBackend, Principal, Session, StoreUnavailable, Task
from session_store.session import redact
from session_store.testing import BOB, FakeClock, a_session, a_task
from tests.requirements import requirement


def an_environment(session: Session, *servers: ServerEnvironment, why: str = "") -> SessionEnvironment:
    return SessionEnvironment(
        session=redact(session.id), replica="abc", held=True, endpoint="/mcp", principal="ann", trust="direct",
        why=[why], servers=list(servers),
    )  # fmt: skip


class FakeReplicas:
    """One gateway, which knows these sessions."""

    are_known = True
    is_draining = False

    def __init__(self, *parts: SessionPart) -> None:
        self._parts = parts
        self.stored: dict[str, Session] = {}
        self.unanswered = 0
        self.cancelled: list[tuple[str, str]] = []
        self.known_servers: list[ServerPart] = []
        self.runs_tasks = True
        self.writes = 0
        self.environments: dict[str, SessionEnvironment] = {}

    def require(self, why: str) -> None:
        """A gateway can be asked."""

    async def ask(self, question: Callable[..., Any], *args: Any) -> Answers[Any]:
        return Answers({"abc": await getattr(self, f"answer_{question.__name__}")(*args)}, self.unanswered)

    async def reports(self) -> list[ReplicaReport]:
        return [ReplicaReport(replica="abc")]

    async def parts(self, session_ids: Iterable[str]) -> dict[str, SessionPart]:
        return {part.id: part for part in await self.answer_brief_parts(session_ids)}

    async def environment(self, session: Session) -> SessionEnvironment:
        return self.environments.get(session.id) or an_environment(session)

    async def order(self, order: Callable[..., Any], prefix: str) -> str:
        return "abc"

    async def answer_brief_parts(self, session_ids: Iterable[str]) -> list[SessionPart]:
        wanted = set(session_ids)
        return [part for part in self._parts if part.id in wanted]

    async def answer_serves(self, session_ids: list[str]) -> list[str]:
        return [part.id for part in await self.answer_brief_parts(session_ids)]

    async def answer_listing(self, query: SessionQuery) -> ListingPage:
        """The sessions of which parts are known, if they are in the store."""
        selection: Selection[SessionPart] = Selection(query)
        for part in self._parts:
            if (session := self.stored.get(part.id)) is not None:
                selection.add(session, part, part)
        rows = [
            ListingRow(id=part.id, place=place, row=row_of(self.stored[part.id], part, 0.0))
            for place, part in selection.first()
        ]
        return ListingPage(rows=rows, totals=selection.totals)

    async def answer_write_activity(self) -> None:
        self.writes += 1
        await asyncio.sleep(0)

    async def answer_unwritten(self, name: str) -> None:
        """All is in the store."""

    async def answer_frames(self, query: FrameQuery) -> None:
        """No session is live."""

    async def answer_servers(self) -> list[ServerPart]:
        return self.known_servers

    async def answer_cancel_task(self, name: str, reason: str) -> bool:
        self.cancelled.append((name, reason))
        return self.runs_tasks


class FakeEnding:
    """Notes what it is to end."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.calls: list[int | None] = []

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool:
        self.calls.append(calls)
        self.ended.append((session_id, reason))
        return True


def operations_of(backend: MemoryBackend, replicas: Any, clock: Any, **more: Any) -> Operations:
    """Operations on a store in memory, of which nothing is recorded."""
    given: dict[str, Any] = {"ending": FakeEnding(), "record": lambda reason, session="": None} | more
    return Operations(backend=backend, replicas=replicas, clock=clock, **given)


class Parts:
    """A model on a store in memory, and what it did."""

    def __init__(self, replicas: Any = None) -> None:
        self.clock = FakeClock()
        self.replicas = replicas
        self.backend = MemoryBackend(clock=self.clock)
        self.ending = FakeEnding()
        self.recorded: list[str] = []
        record = {"record": lambda reason, session="": self.recorded.append(reason)}
        replicas = Replicas(self.backend) if replicas is None else replicas
        self.operations = operations_of(self.backend, replicas, self.clock, ending=self.ending, **record)

    async def holding(self, *ids: str) -> list[Session]:
        sessions = [a_session(self.clock, id=one) for one in ids]
        for session in sessions:
            await self.store(session)
        return sessions

    async def store(self, session: Session) -> None:
        await self.backend.sessions.create(session)
        if isinstance(self.replicas, FakeReplicas):
            self.replicas.stored[session.id] = session


@pytest.fixture
async def parts() -> Parts:
    """A store without gateways."""
    return Parts()


async def test_pages_follow_each_other_in_order_of_id(parts: Parts) -> None:
    ids = [f"{letter * 4}-and-more-{n}" for n, letter in enumerate("abcde")]
    await parts.holding(*reversed(ids))
    first = await parts.operations.sessions(SessionQuery(limit=3))
    rest = await parts.operations.sessions(SessionQuery(limit=3, after=first.after))
    assert [row.session for row in (*first.sessions, *rest.sessions)] == [redact(one) for one in ids]
    assert len(first.sessions) == 3 and rest.after == ""


@pytest.mark.parametrize(
    ("prefix", "kind", "message"),
    [
        ("abc", TooShort, "give at least 4 characters of the session's id"),
        ("nothing", NoSuch, "no session begins with 'nothing': it has ended, or never existed"),
        ("same", Ambiguous, "more than one session begins with 'same': give more characters of the id"),
        ("", Ambiguous, "more than one session is live: give more characters of the id"),
    ],
)
async def test_a_session_is_never_guessed(parts: Parts, prefix: str, kind: type[Exception], message: str) -> None:
    await parts.holding("same-one-0", "same-two-0", "different")
    with pytest.raises(kind) as caught:
        await parts.operations.end(prefix)
    assert str(caught.value) == message and not parts.ending.ended
    if isinstance(caught.value, Ambiguous):
        assert "same-one" in [row.session for row in caught.value.candidates]


async def test_the_only_session_needs_no_name_and_a_whole_id_is_never_ambiguous(parts: Parts) -> None:
    with pytest.raises(NoSuch, match="no session is live"):
        await parts.operations.session("")
    await parts.holding("abcd")
    assert await parts.operations.end("", "ann") == "abcd"
    await parts.holding("abcd-longer")
    assert await parts.operations.end("abcd") == "abcd"
    assert parts.ending.ended == [("abcd", "the operator ann ended it"), ("abcd", "the operator ended it")]


async def test_rows_have_what_replicas_know_where_there_are_any() -> None:
    parts = Parts(FakeReplicas(SessionPart(id="busy-session", state="busy", calls=3, in_flight=2)))
    await parts.holding("busy-session", "idle-session")
    page = await parts.operations.sessions(SessionQuery(only="busy"))
    assert [(row.session, row.calls, row.in_flight) for row in page.sessions] == [("busy-ses", 3, 2)]
    assert (await parts.operations.session("idle")).calls == 0 and parts.operations.sees_calls


@requirement("task.operators")
async def test_a_task_that_works_is_cancelled_where_it_runs() -> None:
    replicas = FakeReplicas()
    parts = Parts(replicas)
    [working] = await hold(parts, "working-task")
    await hold(parts, "ended-task", status="completed")
    assert await parts.operations.cancel_task("working", "ann") == "working-"
    assert replicas.cancelled == [(working.name, "the operator ann cancelled the task")]
    which = f"task of session {redact(working.session_id)}: {working.tool}"
    assert parts.recorded == [f"the operator ann has cancelled a {which}"]
    replicas.runs_tasks = False
    for prefix, why in (("ended-", "over already: completed"), ("working", "no replica runs the task")):
        with pytest.raises(TooLate, match=why):
            await parts.operations.cancel_task(prefix, "ann")


async def test_several_views_of_one_range_have_the_replicas_write_once() -> None:
    replicas = FakeReplicas()
    operations = Parts(replicas).operations
    await asyncio.gather(operations.history("5m"), operations.usage("tool", "5m"), operations.usage("client", "5m"))
    assert replicas.writes == 1
    await asyncio.gather(operations.history("5m"), operations.history("1h"))
    assert replicas.writes == 3, "a later view reads anew, and each range for itself"


async def test_what_only_gateways_know_is_said_to_be_theirs(parts: Parts) -> None:
    operations = parts.operations
    for asked in (
        operations.replicas(),
        operations.drain("abc"),
        operations.admit("abc"),
        operations.sessions(SessionQuery(only="failing")),
        operations.end_all(SessionFilter(failing=True)),
    ):
        with pytest.raises(UnknownHere, match="--url"):
            await asked
    assert not operations.sees_calls and not parts.recorded


async def test_what_an_operator_does_to_a_replica_is_recorded() -> None:
    parts = Parts(FakeReplicas())
    assert await parts.operations.drain("a", "ann") == await parts.operations.admit("a", "ann") == "abc"
    assert parts.recorded == [
        "the operator ann has drained replica abc",
        "the operator ann has admitted replica abc again",
    ]


async def test_events_of_one_session_leave_out_what_they_do_not_say(parts: Parts) -> None:
    of_one = AuditEvent(at=1.0, event="created", session="aaaaaaaa")
    of_other = AuditEvent(at=2.0, event="ended", session="bbbbbbbb", reason="idle")
    await parts.backend.audit.record([of_one, of_other])
    assert await parts.operations.events(session="bbbbbbbb-and-the-rest") == [
        {"at": 2.0, "event": "ended", "session": "bbbbbbbb", "reason": "idle", "count": 1}
    ]
    assert [event["event"] for event in await parts.operations.events(1)] == ["ended"]


async def test_a_store_alone_ends_sessions_and_tells_the_gateways() -> None:
    clock = FakeClock()
    backend = MemoryBackend()
    session = a_session(clock, created_at=4e9, used_at=4e9)
    await backend.sessions.create(session)
    published: list[bytes | None] = []
    async with backend.bus.subscribed("mcp:ended", published.append):
        assert await operations_on(backend).end(session.id[:8]) == redact(session.id)
    assert published == [session.id.encode()] and await backend.sessions.peek(session.id) is None
    [event] = await backend.audit.recent(1)
    assert (event.event, event.reason, event.session) == ("ended", "the operator ended it", redact(session.id))


@requirement("ops.bulk-end")
async def test_all_sessions_of_somebody_are_ended_and_no_others() -> None:
    parts = Parts(FakeReplicas(SessionPart(id="a-one", calls=3, failed=1)))
    for one, principal, workspace, client in (
        ("a-one", "ann", "w-1", "agent"),
        ("a-two", "ann", "w-2", "agent"),
        ("a-three", "ann", "w-1", "agent-2"),
        ("b-one", "bob", "w-1", "agent"),
    ):
        who, context = Principal(issuer="api-key", subject=principal), Context(workspace=workspace)
        facts = ClientFacts(name=client, version="1")
        await parts.store(a_session(parts.clock, id=one, principal=who, context=context, client=facts))
    which = SessionFilter(principal="api-key:ann", workspace="w-1", client="agent")
    assert await parts.operations.end_all(which, "olga") == 1
    whose = "principal api-key:ann and client agent and workspace w-1"
    assert parts.ending.ended == [("a-one", f"the operator olga ended all of {whose}")] and parts.ending.calls == [3]
    assert parts.recorded == [f"the operator olga has ended all sessions of {whose}: 1"]
    for chosen, ended in (
        (SessionFilter(workspace="w-1"), ["a-one", "a-three", "b-one"]),
        (SessionFilter(client="nobody"), []),
        (SessionFilter(failing=True), ["a-one"]),
        (SessionFilter(state="detached", principal="api-key:bob"), ["b-one"]),
    ):
        parts.ending.ended.clear()
        assert await parts.operations.end_all(chosen) == len(ended)
        assert sorted(session for session, _ in parts.ending.ended) == ended


@requirement("ops.bulk-end")
async def test_what_a_silent_replica_may_serve_is_not_ended_as_detached() -> None:
    replicas = FakeReplicas()
    replicas.unanswered = 1
    parts = Parts(replicas)
    [session] = await parts.holding("served-by-the-silent-one")
    with pytest.raises(OperatorError, match="1 replicas did not answer"):
        await parts.operations.end_all(SessionFilter(state="detached"))
    assert parts.ending.ended == []
    assert await parts.operations.end_all(SessionFilter(client=session.client.name)) == 1, "what its record says"


@requirement("ops.find-request")
async def test_a_correlation_id_finds_the_session_of_its_request() -> None:
    failed, called, other = "a" * 32, "b" * 32, "c" * 32
    failure = Failure(at=1.0, server="s", name="t", outcome="error", why="", correlation=failed)
    parts = Parts(FakeReplicas(SessionPart(id="failing-session", failed=1, failures=[failure])))
    await parts.holding("failing-session", "calling-session", "other-session")
    event = AuditEvent(at=1.0, event="called", session="calling-", correlation=called)
    await parts.backend.audit.record([event])

    async def found(query: str, only: str = "all") -> list[str]:
        page = await parts.operations.sessions(SessionQuery(query=query, only=only))
        return [row.session for row in page.sessions]

    assert await found(failed) == await found(failed, "failing") == ["failing-"]
    assert await found(called) == ["calling-"] and await found(other) == await found(called, "failing") == []
    alone = Parts()
    await alone.holding("calling-session")
    await alone.backend.audit.record([event])
    page = await alone.operations.sessions(SessionQuery(query=called))
    assert [row.session for row in page.sessions] == ["calling-"], "a store alone has the audit trail"


async def hold(parts: Parts, *ids: str, **fields: Any) -> list[Task]:
    """Tasks of which each is a second younger than the one before."""
    tasks = []
    for one in ids:
        tasks.append(a_task(parts.clock, id=one, **fields))
        await parts.backend.tasks.create(tasks[-1])
        parts.clock.pass_time(1.0)
    return tasks


async def test_pages_of_tasks_follow_each_other_newest_first(parts: Parts) -> None:
    await hold(parts, *(f"{letter * 8}-rest" for letter in "abcde"))
    after, found = "", []
    for _ in range(3):
        page = await parts.operations.tasks(TaskQuery(limit=2, after=after))
        after = page.after
        found.append([row.task for row in page.tasks])
    assert (found, after) == ([["eeeeeeee", "dddddddd"], ["cccccccc", "bbbbbbbb"], ["aaaaaaaa"]], "")


async def test_tasks_are_found_by_status_and_by_their_facts(parts: Parts) -> None:
    await hold(parts, "one-of-alice")
    await hold(parts, "two-of-bobby", principal=BOB, tool="index", status="failed", message="Disk full")
    for query, found in [
        (TaskQuery(query="bob"), ["two-of-b"]),
        (TaskQuery(query="disk index"), ["two-of-b"]),
        (TaskQuery(query="disk search"), []),
        (TaskQuery(query="one-of"), ["one-of-a"]),
        (TaskQuery(status="failed"), ["two-of-b"]),
        (TaskQuery(status="completed"), []),
        (TaskQuery(), ["two-of-b", "one-of-a"]),
    ]:
        assert [row.task for row in (await parts.operations.tasks(query)).tasks] == found, query
    with pytest.raises(OperatorError, match="status: must be one of working, "):
        TaskQuery(status="lost")


async def test_a_task_is_never_guessed(parts: Parts) -> None:
    await hold(parts, "same-one", "same-two", "different")
    for prefix, kind in [("sam", TooShort), ("none", NoSuch), ("same", Ambiguous)]:
        with pytest.raises(kind):
            await parts.operations.task(prefix)
    assert (await parts.operations.task("same-o")).task == "same-one"


async def test_what_a_task_was_given_and_returned_is_not_shown(parts: Parts) -> None:
    error = msgspec.json.encode({"code": -32603, "message": "why it failed", "data": "private"})
    (task,) = await hold(parts, "a-task-with-all", result=b"private", request=b"private", error=error, asked=2)
    parts.clock.pass_time(9.0)
    row = task_row(task, parts.clock())
    assert (row.error_code, row.error, row.asked, row.age_s) == (-32603, "why it failed", 2, 10.0)
    assert b"private" not in msgspec.json.encode(row) and task.id.encode() not in msgspec.json.encode(row)
    assert (await parts.operations.task("a-task")).asked == 2


# -- `gateway.admin.session_list` and lists that have them: sessions of gateways that have ended


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> Parts:
    """A store that outlives gateways, and one gateway that serves one of its sessions. The first list waits."""
    monkeypatch.setattr(session_list, "_FIRST_S", 10.0)
    monkeypatch.setattr(session_list, "_REST", 0)
    replicas = FakeReplicas(SessionPart(id="held-session", state="busy", calls=2, in_flight=1))
    parts = Parts(replicas)
    parts.backend.is_durable = True
    return parts


async def names(parts: Parts, query: SessionQuery) -> list[tuple[str, str]]:
    return [(row.session, row.state) for row in (await parts.operations.sessions(query)).sessions]


@requirement("ops.session-list")
async def test_what_no_replica_serves_is_listed_and_counted(durable: Parts) -> None:
    await durable.holding("held-session", "left-session")
    page = await durable.operations.sessions(SessionQuery(sort="calls"))
    assert [(row.session, row.state) for row in page.sessions] == [("held-ses", "busy"), ("left-ses", "detached")]
    assert page.totals is not None and page.totals.states == {"busy": 1, "detached": 1}
    only = SessionQuery(which=SessionFilter(state="detached"))
    assert await names(durable, only) == [("left-ses", "detached")]
    await durable.backend.sessions.end("left-session")
    assert await names(durable, only) == [], "one that has ended since is left out"


@requirement("ops.session-list")
async def test_a_session_that_is_served_again_is_listed_once(durable: Parts) -> None:
    await durable.holding("left-session")
    query = SessionQuery(sort="created")
    assert await names(durable, query) == [("left-ses", "detached")]
    durable.replicas._parts = (SessionPart(id="left-session", calls=1),)
    assert await names(durable, query) == [("left-ses", "idle")]


@requirement("ops.session-list")
async def test_of_many_the_last_used_are_known(durable: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_list, "_KEPT", 3)
    monkeypatch.setattr(session_list, "_DETACHED_AT_ONCE", 2)
    for n in range(8):
        await durable.store(a_session(FakeClock(), id=f"{n}-session", used_at=durable.clock() - n))
    listed = await names(durable, SessionQuery(sort="used"))
    assert [name for name, _ in listed] == [redact(f"{n}-session") for n in range(3)]


@requirement("ops.session-list")
async def test_a_store_that_lives_as_long_as_its_gateway_is_not_read() -> None:
    parts = Parts(FakeReplicas())
    await parts.holding("left-session")
    assert await names(parts, SessionQuery(sort="used")) == []


@requirement("ops.session-list")
async def test_replicas_that_do_not_answer_are_counted() -> None:
    replicas = FakeReplicas()
    replicas.unanswered = 1
    for query in (SessionQuery(sort="used"), SessionQuery()):
        assert (await Parts(replicas).operations.sessions(query)).unanswered == 1


@requirement("ops.session-list")
@pytest.mark.parametrize("answer", [1, StoreUnavailable("gone")], ids=["a silent replica", "no store"])
async def test_what_may_be_served_elsewhere_is_not_listed_as_detached(
    durable: Parts, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serves(session_ids: list[str]) -> list[str]:
        if isinstance(answer, Exception):
            raise answer
        durable.replicas.unanswered = answer
        return []

    await durable.holding("left-session")
    monkeypatch.setattr(durable.replicas, "answer_serves", serves)
    page = await durable.operations.sessions(SessionQuery(sort="used"))
    assert (page.sessions, page.is_reading) == ([], True)


@requirement("ops.session-list")
async def test_a_list_says_that_the_store_is_still_being_read_and_shows_what_was_found(
    durable: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "_DETACHED_AT_ONCE", 1)
    await durable.holding("a-session", "b-session")
    serves, may_go_on = durable.replicas.answer_serves, asyncio.Event()

    async def slow(session_ids: list[str]) -> list[str]:
        if session_ids == ["b-session"]:
            await may_go_on.wait()
        found: list[str] = await serves(session_ids)
        return found

    monkeypatch.setattr(durable.replicas, "answer_serves", slow)
    monkeypatch.setattr(session_list, "_FIRST_S", 0)
    query = SessionQuery(sort="used")
    assert (await durable.operations.sessions(query)).is_reading
    for is_reading, count in ((True, 1), (False, 2)):
        for _ in range(20):
            await asyncio.sleep(0)
        page = await durable.operations.sessions(query)
        assert (page.is_reading, len(page.sessions)) == (is_reading, count)
        may_go_on.set()


# -- Questions between replicas: answered by those who live and understand, and by nobody else's leave


async def test_who_is_silent_or_of_another_version_is_not_waited_for() -> None:
    def answering(name: str) -> Any:
        async def answer(what: str, args: Any) -> Any:
            if what != "who":
                raise LookupError(what)
            return [name, args]

        return answer

    bus = MemoryBackend().bus
    a, b = (PeerQueries(bus, name, answering(name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        listening = [group.create_task(one.listen()) for one in (a, b)]
        await asyncio.sleep(0)  # each listens before anybody asks
        assert await a.ask("who", 1, ["a", "b", "gone"], patience_s=0.05) == {"a": ["a", 1], "b": ["b", 1]}
        assert await a.ask("what", None, ["b"], patience_s=0.05) == {}
        await bus.publish(ASK, b"not a question")
        await bus.publish(ASK, b'{"number": 1}')
        assert await a.ask("who", 2, ["b"]) == {"b": ["b", 2]}
        for task in listening:
            task.cancel()
