"""How many lines of the log the ends of a server's processes are worth."""

import pytest

from tests.requirements import requirement
from transports.upstream.ends import EVERY_S, MOST_KINDS, Ends


@requirement("proc.ends")
def test_an_end_like_one_before_has_a_line_a_minute_which_counts_the_others() -> None:
    ends = Ends()
    assert ends.add("exited with code 3", "no database", 100.0) == 0
    assert [ends.add("exited with code 3", "no database", 100.0 + each) for each in (1, 2, EVERY_S - 1)] == [None] * 3
    assert ends.add("exited with code 3", "no database", 100.0 + EVERY_S) == 3
    assert ends.add("exited with code 3", "no database", 100.0 + 2 * EVERY_S) == 0, "they are counted once"


@requirement("proc.ends")
@pytest.mark.parametrize("differs", ["how", "words"])
def test_an_end_of_another_kind_has_its_line_at_once_and_their_number_has_a_bound(differs: str) -> None:
    ends = Ends()
    told = [
        ends.add(*((f"exited with code {each}", "") if differs == "how" else ("ended", f"at {each} s")), 1.0)
        for each in range(50)
    ]
    assert told == [0] * MOST_KINDS + [None] * (50 - MOST_KINDS)
