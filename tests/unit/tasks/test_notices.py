"""A stream about tasks names them in its first frame, whatever comes first."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.identity.request_context import RequestContext
from gateway.tasks.notices import TaskNotices, TaskStream, task_notification
from session_store import Task
from tests.requirements import requirement
from tests.unit.tasks.parts import Store, handle_of
from transports.jsonrpc import Object
from transports.reply_queue import ReplyQueue

pytestmark = [pytest.mark.anyio, requirement("task.relay")]

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
    async with asyncio.timeout(5):
        await notices._tasks.settled()
    assert client.is_over and "is notified of the tasks of a session no more" in caplog.text
