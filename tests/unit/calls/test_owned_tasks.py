"""What is known of the tasks of one link, and how messages about them are renamed."""

from typing import Any, cast

import msgspec

from gateway.calls.owned_tasks import RELATED, OwnedTask, OwnedTasks, related_id, with_related
from tests.requirements import requirement
from tests.support.fake_upstream import a_call
from transports.jsonrpc import Message, Object


def related(task_id: object, more: str = "") -> str:
    return f'"_meta":{{"{RELATED}":{{"taskId":{msgspec.json.encode(task_id).decode()}{more}}}}}'


def task(handle: str, lost: list[str]) -> OwnedTask:
    return OwnedTask(cast("Any", None), handle, seen=lambda _: None, lost=lambda: lost.append(handle))


def params(text: str) -> Object:
    return msgspec.json.decode(text, type=Object)


@requirement("task.relay")
def test_an_id_belongs_to_who_has_it_last() -> None:
    tasks, lost = OwnedTasks(), list[str]()
    tasks.add("1", task("first", lost))
    tasks.add("1", task("second", lost))
    assert lost == ["first"]
    tasks.discard("1", "first")
    found = tasks.get("1")
    assert found is not None and found.handle == "second" and tasks.own_id("second") == "1"
    tasks.discard("1", "second")
    assert tasks.get("1") is None and tasks.own_id("second") is None


def test_messages_go_to_the_call_that_waits_for_the_result_until_it_is_done() -> None:
    owned, first, second = task("h", []), a_call(), a_call()
    assert owned.stream is None
    owned.await_result(first)
    assert owned.stream is first
    owned.await_result(second)
    first.done()
    assert owned.stream is second
    second.abandon()
    assert owned.stream is None, "it has ended"
    second.done()
    assert owned.result_call is None


@requirement("task.relay")
def test_the_server_gets_its_own_id_in_an_answer() -> None:
    tasks = OwnedTasks()
    tasks.add("own", task("h", []))

    def answered(result: str) -> str:
        raw = tasks.answer_for_server(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(result.encode()))).result
        assert isinstance(raw, msgspec.Raw)
        return bytes(raw).decode()

    assert answered("{" + related("h", ',"y":2') + "}") == "{" + related("own", ',"y":2') + "}"
    for other in ("{" + related("another") + "}", '{"action":"accept"}', '{"_meta":3}', "[]", "{" + related(1) + "}"):
        assert answered(other) == other
    error = Message(jsonrpc="2.0", id=1, error=msgspec.Raw(b"{}"))
    assert tasks.answer_for_server(error) is error


def test_a_relation_is_renamed_and_nothing_else() -> None:
    found = with_related(params('{"a":[1],' + related("1", ',"more":2') + "}"), "2")
    assert {key: msgspec.json.decode(raw) for key, raw in found.items()} == {
        "a": [1],
        "_meta": {RELATED: {"taskId": "2", "more": 2}},
    }
    for text in ("{}", '{"_meta":{}}', "{" + related([]) + "}", "{" + related(1) + "}"):
        assert related_id(params(text)) == "", "it names no task"
