"""Patterns of names match as shell patterns do, in linear time."""

import contextlib
import fnmatch
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.patterns import matches, sample_of
from tests.requirements import requirement


@requirement("wall.decoded")
def test_names_are_compared_in_linear_time() -> None:
    began = time.process_time()
    assert not matches("*a" * 100 + "*b", "a" * 256)
    assert time.process_time() - began < 0.5


@requirement("wall.decoded")
@settings(max_examples=500)
@given(pattern=st.text("ab*?[]!-^\\.|\n", max_size=7), name=st.text("ab[]!-^\\.\n", max_size=4))
def test_patterns_of_names_mean_what_they_mean_in_shells(pattern: str, name: str) -> None:
    with contextlib.suppress(ValueError):  # a range that ends before it begins: said when the configuration is read
        assert matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


@requirement("pol.explain")
@settings(max_examples=300)
@given(pattern=st.text("ab*?[]!-", max_size=7))
def test_a_pattern_matches_its_sample(pattern: str) -> None:
    with contextlib.suppress(ValueError):  # a range that ends before it begins
        assert matches(pattern, sample_of(pattern))
