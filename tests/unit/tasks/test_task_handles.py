"""A handle of a task names its session, endpoint and server, and nobody else can make one."""

import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tasks.errors import UnknownTask
from gateway.tasks.task_handles import MAX_ID_CHARS, TaskHandle, TaskHandles
from session_store import KeyRing, Purpose, TokenCodec
from session_store.session import new_session_id
from tests.requirements import requirement

OLD, NEW = "old-" * 10, "new-" * 10
ALPHABET = string.ascii_letters + string.digits + "-_."
HANDLES = TaskHandles(KeyRing([OLD]))
ids = st.text(min_size=1, max_size=MAX_ID_CHARS)


def handle(task_id: str = "task-1", kind: Any = "relayed") -> TaskHandle:
    return TaskHandle(kind, new_session_id(), "/mcp", "files", task_id)


@requirement("task.relay")
@settings(max_examples=40)
@given(st.builds(TaskHandle, st.sampled_from(["made", "relayed"]), ids, st.just("/mcp"), ids, ids))
def test_a_handle_is_read_as_it_was_signed_and_is_always_the_same_text(task: TaskHandle) -> None:
    text = HANDLES.sign(task)
    assert HANDLES.read(text) == task and HANDLES.sign(task) == text


@requirement("task.relay")
def test_a_handle_is_safe_in_headers_and_urls_and_bounded_and_as_in_earlier_versions() -> None:
    widest = TaskHandle("relayed", new_session_id(), "/mcp", "s" * 64, "\U0001f600" * MAX_ID_CHARS)
    text = HANDLES.sign(widest)
    assert re.fullmatch(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", text) and len(text) < 4_096
    assert HANDLES.read(text) == widest
    assert len(HANDLES.sign(handle("0" * 36))) < 256
    for no_id in ("", "x" * (MAX_ID_CHARS + 1)):
        with pytest.raises(ValueError, match="1 to 512 characters"):
            HANDLES.sign(handle(no_id))
    earlier = "laRtYWRlp3Nlc3Npb26kL21jcKZzZXJ2ZXKkdGFzaw.D9HHgfWcfbaVvBElFEFteB44mogG_HfuewnkMlOuMKY"
    handles, task = TaskHandles(KeyRing(["k" * 32])), TaskHandle("made", "session", "/mcp", "server", "task")
    assert handles.sign(task) == earlier and handles.read(earlier) == task
    later = HANDLES.sign(handle(kind="borrowed"))
    assert HANDLES.read(later) is None, "another version of the gateway has signed it: it knows another form"


@requirement("task.relay", "id.bound")
def test_a_handle_of_another_endpoint_is_unknown_as_a_forged_one_is() -> None:
    task = handle()
    text = HANDLES.sign(task)
    assert HANDLES.read_at(text, "/mcp") == task
    with pytest.raises(UnknownTask) as elsewhere:
        HANDLES.read_at(text, "/servers/files/mcp")
    with pytest.raises(UnknownTask) as forged:
        HANDLES.read_at("forged", "/mcp")
    assert elsewhere.value.error() == forged.value.error()
    assert elsewhere.value.log_facts == task.log_facts and not forged.value.log_facts, "only logs tell them apart"


@requirement("task.relay", "id.forged")
@given(st.data())
def test_a_handle_that_differs_in_one_character_names_nothing(data: st.DataObject) -> None:
    text = HANDLES.sign(handle())
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda c: c != text[place]))
    assert HANDLES.read(text[:place] + other + text[place + 1 :]) is None


@requirement("id.forged")
@given(st.text() | st.text(ALPHABET, min_size=52))
def test_any_other_text_names_nothing(text: str) -> None:
    assert HANDLES.read(text) is None


@requirement("id.purpose")
def test_no_other_signed_value_is_a_handle() -> None:
    for purpose in Purpose:
        signed = TokenCodec(KeyRing([OLD]), purpose).sign(new_session_id())
        assert HANDLES.read(signed) is None
        assert TokenCodec(KeyRing([OLD]), purpose).verify(HANDLES.sign(handle())) is None
