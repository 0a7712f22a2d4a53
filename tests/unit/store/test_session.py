"""The session record: principals as keys."""

from hypothesis import example, given
from hypothesis import strategies as st

from session_store import Principal
from tests.requirements import requirement


@requirement("wall.authority")
@example([("a:b", "c"), ("a", "b:c")])
@given(st.lists(st.tuples(st.text('a:"\\,[ ]', max_size=4), st.text('a:"\\,[ ]', max_size=4)), unique=True, max_size=8))
def test_no_two_principals_have_one_key(names: list[tuple[str, str]]) -> None:
    keys = {Principal(issuer=issuer, subject=subject).key for issuer, subject in names}
    assert len(keys) == len(names)
