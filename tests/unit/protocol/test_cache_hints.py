"""How long a result may be kept, and for whom."""

import json
from typing import Any

import pytest

from gateway.protocol.cache_hints import (
    PRIVATE,
    PUBLIC,
    Hints,
    hints_of,
    is_answer_to_input,
    most_private,
    of_one_session,
    ttl_ms,
    with_ttl,
)
from tests.requirements import requirement
from tests.unit.protocol.parts import raw

pytestmark = requirement("cache.hints")


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, [0, -5, None, "60000", True, [], float("nan")]),
        (1, [1, 1.9]),
        (60_000, [60_000]),
        (3_600_000, [10**400, float("inf")]),
    ],
)
def test_a_time_that_cannot_be_one_is_no_time(ms: int, said: list[Any]) -> None:
    assert [ttl_ms(each) for each in said] == [ms] * len(said)


@pytest.mark.parametrize(
    ("result", "hints"),
    [
        *(({"ttlMs": 5, "cacheScope": "public"}, Hints(5, True)), ({}, Hints(0, False)), ([], Hints(0, False))),
        *(({"ttlMs": 5} | scope, Hints(5, False)) for scope in ({}, {"cacheScope": "Public"}, {"cacheScope": 7})),
        ({"ttlMs": 5, "cacheScope": "public", "resultType": "input_required"}, Hints(0, True)),
    ],
)
def test_what_is_not_said_is_private_and_stale(result: Any, hints: Hints) -> None:
    assert hints_of(json.dumps(result).encode()) == hints


def test_what_is_made_of_several_is_as_private_as_the_most_private() -> None:
    public, private = {"cacheScope": "public"}, {"cacheScope": "private"}
    assert most_private([public, public]) == PUBLIC
    assert most_private([public, private]) == most_private([public, {}]) == most_private([]) == PRIVATE


def test_a_result_with_a_fact_of_one_session_is_for_nobody_else() -> None:
    plain = raw(tools=[])
    assert of_one_session(plain | raw(ttlMs=5, cacheScope="public")) == plain | raw(ttlMs=0, cacheScope="private")
    assert of_one_session(plain) is plain, "results of other methods have no hints"
    assert with_ttl(b'{"big": 1e400, "ttlMs":5}', 3) == b'{"big":1e400,"ttlMs":3}', "nothing else changes"


def test_answers_to_questions_are_known() -> None:
    assert is_answer_to_input({"requestState": b'"x"'}) and is_answer_to_input({"inputResponses": b"{}"})
    assert not is_answer_to_input({"uri": b'"x"'})
