"""Blocked expressions in arguments."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.patterns import expression
from gateway.policy.blocked_arguments import TooMuchText, contains
from tests.requirements import requirement


@requirement("wall.decoded")
@settings(deadline=2_000)
@given(arguments=st.recursive(st.one_of(st.text(), st.integers(), st.floats(), st.none()), st.lists, max_leaves=20))
def test_any_arguments_can_be_looked_through(arguments: Any) -> None:
    try:
        contains(arguments, (expression("x", "y+"),))
    except TooMuchText as error:
        assert str(error)


@requirement("pol.lenient")
def test_a_string_that_spells_a_number_or_truth_value_is_searched_as_such() -> None:
    def found(text: str, rule: str) -> bool:
        return contains({"a": [text]}, (expression(rule),))

    assert contains({"a": False}, (expression("^false$"),)) and contains([True], (expression("^true$"),))
    assert all(found(text, "^true$") for text in ("true", " True", "TRUE\n"))
    assert found("1e3", "^1000$") and found("-0x10", "^-16$") and found("1_0.5", "^10\\.5$")
    assert not found("0x" + "f" * 4_000, "^1$"), "more digits than a server reads, and no reason to refuse it"
    assert not any(found(text, "^[0-9]+$") for text in ("", "-", "12 apples", "nan", "inf", "1" * 5_000 + "x", "1.5"))


@requirement("wall.decoded")
def test_names_are_searched_as_values_are() -> None:
    def found(name: str, rule: str) -> bool:
        answers = {contains({"a": [{name: 1}]}, (expression(rule),)) for _ in range(2)}  # also once it is remembered
        assert len(answers) == 1
        return answers.pop()

    assert found("drop table", r"drop\s+table") and not found("drop", r"drop\s+table")
    assert found("drop", "^drop$"), "what one expression did not find, another may"
    assert found("dr\u200bop", "^drop$") and found("drop\u00a0table", r"drop\s+table")
    assert found("x" * 5_000 + "drop", "drop$")
