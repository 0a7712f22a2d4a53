"""Whether the outcome of a task can be read by whoever asks for it, from any depth of the stack."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.tasks.answers import task_result
from gateway.tasks.legacy_answers import legacy_outcome, legacy_task
from gateway.tasks.messages import reason_of
from gateway.tasks.readable import can_be_read, error_text
from tests.requirements import requirement
from tests.unit.tasks.test_recovery import Replica, Store
from transports.jsonrpc import Message

pytestmark = pytest.mark.anyio

FRAMES = 60


def nested(levels: int) -> bytes:
    return b'{"isError":true,"content":[{"type":"text","text":"x","y":' + b"[" * levels + b"]" * levels + b"}]}"


def deeper(frames: int, call: Callable[[], Any]) -> Any:
    return deeper(frames - 1, call) if frames else call()


@requirement("task.durable")
def test_what_can_be_read_can_be_read_from_a_deeper_stack() -> None:
    last = max(levels for levels in range(1, 1_000) if can_be_read(nested(levels)))
    for frames in range(0, 150, 10):
        assert deeper(frames, lambda: reason_of(nested(last))) == "x"
    assert not can_be_read(nested(1_000)) and can_be_read(nested(300)), "clients send and get some depth"


@requirement("task.durable")
async def test_each_outcome_that_a_task_keeps_can_be_told() -> None:
    store = Store()
    first = await store.task()
    kept = 0
    for levels in range(500, 1_000, 3):
        task = replace(first, id=f"task-{levels}")
        await store.backend.tasks.create(task)
        replica = Replica(store)
        replica.running(task, store.session).exchange.settle(
            Message(jsonrpc="2.0", id=0, result=msgspec.Raw(nested(levels)))
        )
        await replica.table.settled()
        found = await store.read(task)
        for tell in (legacy_task, task_result, legacy_outcome):
            deeper(FRAMES, lambda tell=tell, found=found: tell(found, "h"))  # type: ignore[misc]
        kept += found.status == "completed"
        assert found.status == "completed" or "deeper" in found.message or "cannot be read" in found.message
    assert 20 < kept < 160, "the rest is refused before anybody is told of it"


@requirement("task.durable")
async def test_an_error_with_data_that_is_too_deep_keeps_its_code_and_message() -> None:
    store = Store()
    task = await store.task()
    replica = Replica(store)
    levels = next(levels for levels in range(500, 1_000) if not can_be_read(b"[" * levels + b"]" * levels)) + 20
    error = b'{"code":-5,"message":"boom","data":' + b"[" * levels + b"]" * levels + b"}"
    assert error_text(msgspec.Raw(error)) == "boom"
    replica.running(task, store.session).exchange.settle(Message(jsonrpc="2.0", id=0, error=msgspec.Raw(error)))
    await replica.table.settled()
    told = msgspec.json.decode((await store.read(task)).error)
    assert (told["code"], told["message"]) == (-5, "boom") and "data" not in told
