"""How many lines the log has about a server."""

from collections.abc import Callable

from tests.requirements import requirement
from transports.upstream.line_budget import EVERY_S, MOST_KINDS, LineBudget


@requirement("proc.ends")
def test_an_end_like_one_before_has_a_line_a_minute_which_counts_the_others() -> None:
    budget = LineBudget()
    assert budget.add("end", "exited with code 3", "no database", now=100.0) == 0
    told = [budget.add("end", "exited with code 3", "no database", now=100.0 + each) for each in (1, 2, EVERY_S - 1)]
    assert told == [None] * 3
    assert budget.add("end", "exited with code 3", "no database", now=100.0 + EVERY_S) == 3
    assert budget.add("end", "exited with code 3", "no database", now=100.0 + 2 * EVERY_S) == 0, "they are counted once"


@requirement("proc.ends", "proc.noise")
def test_lines_of_other_kinds_are_told_at_once_and_of_each_topic_a_bounded_number() -> None:
    kinds: dict[str, Callable[[int], tuple[str, ...]]] = {
        "end": lambda each: (f"exited with code {each}", ""),
        "signal": lambda each: ("ended", f"at {each} s"),
        "stdout": lambda each: (f"at {each} s",),
    }
    budget = LineBudget()
    for topic, kind in kinds.items():
        told = [budget.add(topic, *kind(each), now=1.0) for each in range(MOST_KINDS + 3)]
        assert told == [0] * MOST_KINDS + [None] * 3, topic
    assert budget.add("stdout", "later", now=1.0 + EVERY_S) == 3
