"""How many lines the log has about a server."""

import pytest

from tests.requirements import requirement
from transports.upstream.line_budget import EVERY_S, MOST_KINDS, LineBudget


@requirement("proc.ends")
def test_an_end_like_one_before_has_a_line_a_minute_which_counts_the_others() -> None:
    budget = LineBudget()
    assert budget.add("end", "exited with code 3", "no database", now=100.0) == 0
    assert [
        budget.add("end", "exited with code 3", "no database", now=100.0 + each) for each in (1, 2, EVERY_S - 1)
    ] == [None] * 3
    assert budget.add("end", "exited with code 3", "no database", now=100.0 + EVERY_S) == 3
    assert budget.add("end", "exited with code 3", "no database", now=100.0 + 2 * EVERY_S) == 0, "they are counted once"


@requirement("proc.ends")
@pytest.mark.parametrize("differs", ["how", "words"])
def test_an_end_of_another_kind_has_its_line_at_once_and_their_number_has_a_bound(differs: str) -> None:
    budget = LineBudget()
    told = [
        budget.add(
            "end", *((f"exited with code {each}", "") if differs == "how" else ("ended", f"at {each} s")), now=1.0
        )
        for each in range(50)
    ]
    assert told == [0] * MOST_KINDS + [None] * (50 - MOST_KINDS)


@requirement("proc.noise")
def test_what_a_server_prints_takes_no_line_of_what_becomes_of_it() -> None:
    budget = LineBudget()
    printed = [budget.add("stdout", f"at {each} s", now=1.0) for each in range(MOST_KINDS + 3)]
    assert printed == [0] * MOST_KINDS + [None] * 3
    assert budget.add("end", "exited with code 3", now=1.0) == 0
    assert budget.add("stdout", "later", now=1.0 + EVERY_S) == 3
