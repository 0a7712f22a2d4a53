"""What the tasks of servers keep alive, and for how long."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.server_task_owners import RELATED
from gateway.errors import SESSION_UNKNOWN, TOO_OFTEN
from gateway.identity.request_context import RequestContext
from gateway.tasks.gateway_tasks.task_requests import found_session, session_of
from gateway.tasks.notifications import TaskNotices, TaskStream, task_notification
from gateway.tasks.relayed_tasks import MAX_KEPT, MAX_KNOWN, RelayedTasks
from session_store import Task
from tests.requirements import requirement
from tests.support.fake_upstream import a_live
from tests.unit.calls.parts import until
from tests.unit.tasks.parts import HANDLES, Server, Store, handle_of
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, encode
from transports.reply_queue import ReplyQueue

pytestmark = requirement("task.relay")


class Parts:
    def __init__(self, *, is_process: bool = True) -> None:
        self.live = a_live(era="modern")
        self.server = Server(is_process=is_process)
        self.tasks = RelayedTasks(HANDLES, cast("Any", None), {}, result_meta=False)

    @property
    def kept(self) -> tuple[int, int, int]:
        """How many uses keep the session, how many of them a drain waits for, and how many keep the link."""
        return self.live.busy, self.live.busy - self.live.movable, self.server.holds

    def is_reachable(self, live: LiveSession, handle: str, *, shared: bool = True) -> bool:
        found = HANDLES.read(handle)
        assert found is not None
        server = cast("Any", SimpleNamespace(settings=SimpleNamespace(shared=shared)))
        return self.tasks.known.is_reachable(server, live, found)

    def exchange(self, method: str = "tools/call") -> Exchange:
        exchange = Exchange(method=method, client_id=1, live=self.live, replies=ReplyQueue())
        exchange.sent_as(cast("Any", self.server), 1, None, 1.0)
        return exchange

    def made(
        self, task_id: object, ttl_ms: int | None = None, *, declared: bool = True, method: str = "tools/call"
    ) -> str:
        result = task(task_id, "working", ttl_ms)
        shaped = self.tasks.created(self.exchange(method), result, "/mcp", is_declared=declared)
        return str(msgspec.json.decode(shaped["taskId"]))

    def told(self, handle: str, status: str, ttl_ms: int | None = None) -> None:
        found = HANDLES.read(handle)
        assert found is not None
        self.tasks.answer_shape(found, handle)(self.exchange("tasks/get"), task(found.id, status, ttl_ms))


def task(task_id: object, status: str, ttl_ms: int | None) -> Object:
    body = {"resultType": "task", "taskId": task_id, "status": status, "ttlMs": ttl_ms}
    return {key: msgspec.Raw(encode(value)) for key, value in body.items()}


@pytest.mark.parametrize("status", ["cancelled", "completed", "failed"])
async def test_a_task_keeps_its_session_and_its_link_until_it_is_over(status: str) -> None:
    parts = Parts()
    handle = parts.made("1")
    parts.told(handle, "input_required")
    assert parts.kept == (1, 1, 1)
    parts.told(handle, status)
    parts.told(handle, status)
    assert parts.kept == (0, 0, 0)


async def test_a_task_that_nobody_asks_for_keeps_nothing_after_its_time() -> None:
    parts = Parts()
    parts.made("1", ttl_ms=1)
    assert parts.kept == (1, 1, 1)
    await until(lambda: parts.kept == (0, 0, 0))


async def test_what_a_server_behind_a_url_works_on_does_not_end_with_the_gateway() -> None:
    parts = Parts(is_process=False)
    parts.made("1")
    assert parts.kept == (1, 0, 1)


async def test_a_task_is_kept_with_the_process_that_knows_it_until_its_session_is_closed() -> None:
    parts = Parts()
    handle, before = parts.made("1"), parts.server
    parts.server = Server(is_process=True)
    parts.told(handle, "working")
    assert (before.holds, parts.server.holds, parts.live.busy) == (0, 1, 1)
    await parts.live.close()
    parts.tasks.known.forget(parts.live)
    parts.told(handle, "working")
    assert (parts.live.busy, parts.server.holds) == (0, 0)


@requirement("wall.memory")
async def test_what_is_known_and_kept_of_many_tasks_is_bounded() -> None:
    parts = Parts()
    handles = [parts.made(str(number)) for number in range(MAX_KEPT + 5)]
    assert (parts.live.busy, parts.server.holds) == (MAX_KEPT, MAX_KEPT)
    parts.told(handles[0], "completed")
    assert parts.live.busy == MAX_KEPT, "the last ones keep their session"
    parts.told(handles[-1], "completed")
    assert parts.live.busy == MAX_KEPT - 1
    for number in range(MAX_KNOWN + 5):
        parts.told(parts.made(f"more {number}"), "completed")
    assert parts.server.known_tasks is not None
    assert len([*parts.server.known_tasks]) == MAX_KNOWN


@pytest.mark.parametrize(
    ("task_id", "kind", "refused", "is_cancelled"),
    [
        ("own", {"declared": False}, None, True),
        ("own", {"method": "prompts/get"}, None, True),
        ("", {}, "an id that cannot be used", False),
        ("x" * 513, {}, "an id that cannot be used", True),
        (7, {}, "an id that cannot be used", False),
        (None, {}, "an id that cannot be used", False),
    ],
)
async def test_a_task_that_the_client_cannot_have_is_an_error_and_cancelled_where_it_has_an_id(
    task_id: object, kind: dict[str, Any], refused: str | None, is_cancelled: bool
) -> None:
    parts = Parts()
    with pytest.raises(Refused, match=refused) as told:
        parts.made(task_id, **kind)
    assert (told.value.code == -32021) is bool(kind)
    cancelled = [(method, params["taskId"]) for method, params in parts.server.requested]
    assert cancelled == ([("tasks/cancel", task_id)] if is_cancelled else []), "nobody else could cancel it"
    assert parts.live.busy == 0


async def test_an_id_that_a_shared_server_gives_again_leads_its_first_session_nowhere() -> None:
    """The server was started anew and begins to count: its first task is another session's now."""
    parts, other = Parts(), Parts()
    first = parts.made("1")
    assert parts.is_reachable(parts.live, first)
    other.tasks, other.server = parts.tasks, parts.server
    second = other.made("1")
    assert parts.is_reachable(other.live, second) and not parts.is_reachable(parts.live, first)
    parts.server.known_tasks = None
    assert not parts.is_reachable(other.live, second) and parts.is_reachable(other.live, second, shared=False)


async def test_the_task_of_a_legacy_server_gets_a_handle_wherever_its_id_stands() -> None:
    parts = Parts()
    own = {"taskId": "own", "status": "working", "ttl": None, "more": [1]}
    meta = {RELATED: {"taskId": "own"}, "x": 1}
    result = {"task": msgspec.Raw(encode(own)), "_meta": msgspec.Raw(encode(meta))}
    shaped = msgspec.json.decode(encode(parts.tasks.created_legacy(parts.exchange(), result, "/mcp")))
    handle = shaped["task"]["taskId"]
    assert HANDLES.read(handle) is not None
    assert shaped == {"task": own | {"taskId": handle}, "_meta": {RELATED: {"taskId": handle}, "x": 1}}
    plain = {"content": msgspec.Raw(b"[]")}
    assert parts.tasks.created_legacy(parts.exchange(), plain, "/mcp") is plain


@pytest.mark.parametrize(("code", "told"), [(SESSION_UNKNOWN, INVALID_PARAMS), (TOO_OFTEN, TOO_OFTEN)])
async def test_only_an_unknown_session_makes_its_task_unknown(code: int, told: int) -> None:
    async def refuses(*_: object) -> None:
        raise Refused(400, code, "no")

    handle, who, resolver = cast("Any", (SimpleNamespace(session_id="s"), None, SimpleNamespace(resume_by_id=refuses)))
    with pytest.raises(Refused) as refused:
        await session_of(handle, who, resolver, Era.MODERN)
    assert refused.value.code == told
    if code == SESSION_UNKNOWN:
        assert await found_session("s", who, resolver, Era.MODERN) is None
    else:
        with pytest.raises(Refused):
            await found_session("s", who, resolver, Era.MODERN)


# -- a stream about tasks names them in its first frame, whatever comes first


ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class Read(ReplyQueue):
    """Keeps what the client gets."""

    def got(self) -> list[Any]:
        return [json.loads(frame.data) for frame in self._frames]


def stream() -> tuple[TaskStream, Read]:
    replies = Read()
    return TaskStream(method="subscriptions/listen", client_id="s", live=None, replies=replies), replies


def frame(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


ACK = frame(ACKNOWLEDGED, notifications={"toolsListChanged": True}, _meta={"x": 1})


def test_the_first_frame_says_what_servers_honour_and_which_tasks_are_followed() -> None:
    for comes_late in (True, False):
        client, replies = stream()
        client.emit(frame("notifications/tasks", taskId="early"))
        if comes_late:
            client.accept(["a", "b"])
            client.emit(ACK)
        else:
            client.emit(ACK)
            client.emit(frame("notifications/tools/list_changed"))
            assert replies.got() == []
            client.accept(["a", "b"])
        client.emit(frame("notifications/tasks", taskId="late"))
        first, second, *_, last = replies.got()
        assert first["method"] == ACKNOWLEDGED and first["params"]["_meta"] == {"x": 1}
        assert first["params"]["notifications"] == {"toolsListChanged": True, "taskIds": ["a", "b"]}
        assert (second["params"]["taskId"], last["params"]["taskId"]) == ("early", "late")


@pytest.mark.parametrize("is_all", [False, True])
def test_a_stream_about_tasks_alone_ends_once_nobody_notifies_of_them(is_all: bool) -> None:
    client, _ = stream()
    if is_all:
        client.about_nothing_else()
    client.followed()  # a made task
    client.followed()  # the server of a relayed one
    client.accept(["made", "relayed"])
    client.emit(ACK)
    client.unfollowed()
    assert not client.is_over
    client.unfollowed()
    assert client.is_over is is_all


def test_a_stream_about_tasks_that_are_over_ends_after_its_first_frame() -> None:
    client, replies = stream()
    client.about_nothing_else()
    client.followed()
    client.emit(frame("notifications/tasks", taskId="early"))
    client.unfollowed()
    client.accept(["early"])
    assert not client.is_over
    client.emit(ACK)
    assert [message.get("method") for message in replies.got()] == [ACKNOWLEDGED, "notifications/tasks", None]


@requirement("wall.memory")
def test_what_comes_before_the_acknowledgement_is_bounded() -> None:
    client, _ = stream()
    assert isinstance(client, Exchange) and client.is_subscription, "it stays open"
    taken = [client.emit(frame("notifications/tasks", taskId=str(number))) for number in range(300)]
    assert taken.count(True) == 256


def test_a_notification_is_the_whole_task_under_its_handle_and_the_clients_own_stream() -> None:
    task: Object = {"taskId": msgspec.Raw(b'"own"'), "x": msgspec.Raw(b" [1]"), "_meta": msgspec.Raw(b'{"y":2}')}
    meta = {"y": 2, "io.modelcontextprotocol/subscriptionId": 7}
    told = json.loads(frame("notifications/tasks", taskId="h", x=[1], _meta=meta))
    assert json.loads(task_notification(task, "h", 7)) == told


async def test_a_stream_of_tasks_that_cannot_be_read_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    task = await store.task()

    async def get(session_id: str, task_id: str) -> Task | None:
        raise ValueError("a record of another version")

    async def may_be_followed(*_: object) -> None: ...

    monkeypatch.setattr(store.tasks, "get", get)
    made = cast("Any", SimpleNamespace(count=may_be_followed, find=may_be_followed))
    notices = TaskNotices(made, store.tasks, store.backend.bus)
    client, _ = stream()
    client.about_nothing_else()
    client.emit(ACK)
    client.accept(await notices.follow(client, {"h": handle_of(task)}, RequestContext(task.principal, None, "c")))
    async with asyncio.timeout(60):
        await notices._tasks.settled()
    assert client.is_over and "gets no more notifications of a session's tasks" in caplog.text
