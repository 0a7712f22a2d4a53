"""Whose answer a line was that was too long to keep or could not be read: told from what stands there, not guessed."""

from collections.abc import Callable

import pytest

from tests.requirements import requirement
from tests.support.too_deep import TOO_DEEP
from transports.upstream.invalid_output_lines import (
    EVERY_S,
    MOST_KINDS,
    LineBudget,
    meaning_of_excerpt,
    probable_meaning,
)


@requirement("proc.noise")
@pytest.mark.parametrize(
    ("head", "tail", "told"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"id":3', b'"id":4}}', (True, 7)),
        (b'{ "id" : 7 , "jsonrpc": "2.0", "result": {', b"}}", (True, 7)),
        (b'{"result":{"id":3,', b'"id":4},"jsonrpc":"2.0"}', (True, None)),
        (b'{"result":{"id":3,', b'"x"},"id":7,"jsonrpc":"2.0"}', (True, 7)),
        (b'{"result":{"id":3,', b'"x"}, "id": 7}', (True, 7)),
        (b'{"jsonrpc":"2.0","result":{"id":3,', b'"text":"\\"id\\":4}', (True, None)),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7', b'"id":7}}', (False, None)),
        (b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{', b"}}", (False, None)),
        (b'{"jsonrpc":"2.0","id":"seven","result":{', b"}}", (True, None)),
        (b'{"jsonrpc":"2.0","id":7,"error":{"id":3', b'"id":4}}', (True, 7)),
        (b'{"result":[{"id":3},', b'{"id":5}],"jsonrpc":"2.0","id":7}', (True, 7)),
        (b'{"result":[{"id":3},', b'{"x":1,"id":5}', (None, None)),
        (b'{"jsonrpc":"2.0","params":{"id":7', b'"id":7},"method":"notifications/message"}', (False, None)),
        (b'{"level":"error","id":7,"error":"', b'"}', (None, None)),
        (b"xxxx", b"xxxx", (None, None)),
    ],
)
def test_an_answer_is_found_by_its_own_id_only(head: bytes, tail: bytes, told: tuple[bool | None, int | None]) -> None:
    assert meaning_of_excerpt(head, tail) == told


@requirement("proc.noise")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(b'{"jsonrpc":"2.0","id":7,"result":' + TOO_DEEP + b"}", (True, 7), id="too deep 1"),
        pytest.param(b'{"result":' + TOO_DEEP + b',"jsonrpc":"2.0","id":7}', (True, 7), id="too deep 2"),
        pytest.param(b'{"result":' + TOO_DEEP + b',"id":7,"jsonrpc":"2.0"}', (True, 7), id="too deep 3"),
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":NaN}}', (True, 7)),
        (b'{"jsonrpc":"2.0","id":7,"result":{"text":"\xff"}}', (True, 7)),
        (b'{"jsonrpc":"2.0","id":7,"result":{},"\xff":0}', (True, 7)),
        (b'{"jsonrpc":"2.0","id":7,"result":{"cut', (True, 7)),
        (b'{"jsonrpc":"2.0","id":7}', (True, 7)),
        (b'{"jsonrpc":"1.0","id":7,"result":{}}', (True, 7)),
        (b'{"id":7,"result":{}}', (True, 7)),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', (True, None)),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', (False, None)),
        (b'{"level":"error","id":7,"error":"no route"}', (None, None)),
        (b'{"neither":"is this a message"}', (None, None)),
        (b"this is no JSON", (None, None)),
        (b"null", (None, None)),
        (b"[" + b'{"jsonrpc":"2.0","id":7,"result":{}}' + b"]", (None, None)),
    ],
)
def test_a_line_that_is_no_message_harms_the_call_it_answers_and_no_other(
    line: bytes, told: tuple[bool | None, int | None]
) -> None:
    assert probable_meaning(line) == told


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
