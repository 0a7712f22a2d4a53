"""Names of principals: which can be used, and how a header has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.subjects import MAX_SUBJECT_CHARS, named_in_header, unusable
from tests.requirements import requirement


@requirement("wall.authority")
def test_a_name_that_people_can_read_is_usable() -> None:
    for subject in ("ada", "CN=ada,O=x", "\u0141ucja", "a b", "x" * MAX_SUBJECT_CHARS, "7", "../x"):
        assert unusable(subject) == "", subject


@requirement("wall.authority")
@pytest.mark.parametrize(
    ("why", "subjects"),
    [
        ("empty", ["", " ", None, 7]),
        ("longer than 256", ["x" * (MAX_SUBJECT_CHARS + 1)]),
        ("nobody sees", ["a\nb", "a\x00", "a\u2028b", "a\u202eb", " ada", "ada\u00a0"]),
    ],
)
def test_a_name_that_deceives_its_reader_is_not(why: str, subjects: list[object]) -> None:
    for subject in subjects:
        assert why in unusable(subject), repr(subject)


@given(st.text())
def test_a_header_has_a_name_in_utf_8(name: str) -> None:
    name = name.encode("utf-8", "replace").decode("utf-8")
    assert named_in_header(name.encode("utf-8").decode("latin-1")) == name
