"""Names of principals: which can be used, and how a header has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.subjects import MAX_SUBJECT_CHARS, named_in_header, unusable
from tests.requirements import requirement


@requirement("wall.authority")
@pytest.mark.parametrize("subject", ["ada", "CN=ada,O=x", "\u0141ucja", "a b", "x" * MAX_SUBJECT_CHARS, "7", "../x"])
def test_a_name_that_people_can_read_is_usable(subject: str) -> None:
    assert unusable(subject) == ""


@requirement("wall.authority")
@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("", "empty"),
        (" ", "empty"),
        (None, "empty"),
        (7, "empty"),
        ("x" * (MAX_SUBJECT_CHARS + 1), "longer than 256"),
        ("a\nb", "nobody sees"),
        ("a\x00", "nobody sees"),
        ("a\u2028b", "nobody sees"),
        ("a\u202eb", "nobody sees"),
        (" ada", "nobody sees"),
        ("ada\u00a0", "nobody sees"),
    ],
)
def test_a_name_that_deceives_its_reader_is_not(subject: object, why: str) -> None:
    assert why in unusable(subject)


@given(st.text())
def test_a_header_has_a_name_in_utf_8(name: str) -> None:
    name = name.encode("utf-8", "replace").decode("utf-8")
    assert named_in_header(name.encode("utf-8").decode("latin-1")) == name
