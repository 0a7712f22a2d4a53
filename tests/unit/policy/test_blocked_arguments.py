"""Blocked expressions in arguments."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.patterns import expression
from gateway.policy.blocked_arguments import TooMuchText, contains
from tests.requirements import requirement


@requirement("wall.decoded")
@settings(max_examples=200, deadline=2_000)
@given(arguments=st.recursive(st.one_of(st.text(), st.integers(), st.floats(), st.none()), st.lists, max_leaves=20))
def test_any_arguments_can_be_looked_through(arguments: Any) -> None:
    try:
        contains(arguments, (expression("x", "y+"),))
    except TooMuchText as error:
        assert str(error)
