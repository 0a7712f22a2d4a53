"""Text in NFKC, in bounded time."""

import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.normal_form import MOST_MARKS, TooManyMarks, normal


@given(st.text())
@example("\uff45vil e\u0301\u3000")
def test_any_text_is_normalised_or_has_too_many_marks(text: str) -> None:
    try:
        assert normal(text) == unicodedata.normalize("NFKC", text)
    except TooManyMarks:
        assert len(text) > MOST_MARKS


@pytest.mark.parametrize("mark", ["\u0301", "\u0316", "\u0f73", "\uff9e"])
def test_a_character_has_a_bounded_number_of_marks(mark: str) -> None:
    normal("a" + mark * MOST_MARKS)
    began = time.monotonic()
    with pytest.raises(TooManyMarks, match=str(MOST_MARKS)):
        normal("a" + mark * 100_000)
    assert time.monotonic() - began < 0.5
