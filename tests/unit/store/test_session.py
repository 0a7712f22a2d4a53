"""The session record: ids, and principals as keys."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from session_store import Principal
from session_store.session import new_session_id, new_task_id
from tests.requirements import requirement


@requirement("wall.authority")
@example([("a:b", "c"), ("a", "b:c")])
@given(st.lists(st.tuples(st.text('a:"\\,[ ]', max_size=4), st.text('a:"\\,[ ]', max_size=4)), unique=True, max_size=8))
def test_no_two_principals_have_one_key(names: list[tuple[str, str]]) -> None:
    keys = {Principal(issuer=issuer, subject=subject).key for issuer, subject in names}
    assert len(keys) == len(names)


@requirement("task.operators")
@pytest.mark.parametrize("new_id", [new_session_id, new_task_id])
def test_an_id_can_be_typed_in_a_command_line(new_id: Callable[[], str]) -> None:
    ids = {new_id() for _ in range(2_000)}  # one random text in 64 starts with a hyphen
    assert len(ids) == 2_000 and not [made for made in ids if made.startswith("-")]
