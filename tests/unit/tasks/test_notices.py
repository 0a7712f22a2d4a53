"""Streams are notified of made tasks until these are over, or nobody can read them."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.identity.request_context import RequestContext
from gateway.tasks.handles import TaskHandle
from gateway.tasks.notices import TaskNotices
from session_store import Task
from session_store.memory import MemoryBackend
from tests.requirements import requirement
from tests.unit.tasks.test_listening import ACK, stream
from tests.unit.tasks.test_recovery import Store

pytestmark = pytest.mark.anyio


async def nothing(*_: object) -> None:
    """Any task may be followed."""


@requirement("task.relay")
async def test_a_stream_of_tasks_that_cannot_be_read_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    task = await store.task()
    backend: MemoryBackend = store.backend

    async def get(session_id: str, task_id: str) -> Task | None:
        raise ValueError("a record of another version")

    monkeypatch.setattr(backend.tasks, "get", get)
    made = cast("Any", SimpleNamespace(count=nothing, find=nothing))
    notices = TaskNotices(made, backend.tasks, backend.bus)
    client, _ = stream()
    client.about_nothing_else()
    client.emit(ACK)
    handle = TaskHandle("made", task.session_id, task.endpoint, task.server, task.id)
    client.accept(await notices.follow(client, {"h": handle}, RequestContext(task.principal, None, "c")))
    async with asyncio.timeout(5):
        await notices._tasks.settled()
    assert client.is_over and "is notified of the tasks of a session no more" in caplog.text
