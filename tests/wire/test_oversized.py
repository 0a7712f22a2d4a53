"""Whose answer a line was that was too long to keep: told from its ends, and never guessed."""

import pytest

from tests.requirements import requirement
from transports.upstream.stdio import answered_by


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
        (b"xxxx", b"xxxx", (True, None)),
    ],
)
def test_an_answer_is_found_by_its_own_id_only(head: bytes, tail: bytes, told: tuple[bool, int | None]) -> None:
    assert answered_by(head, tail) == told
