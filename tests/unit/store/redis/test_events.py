"""Which errors of Redis a further try may get past."""

import pytest

from session_store import StoreUnavailable
from session_store.redis.connection import ServerError
from session_store.redis.events import refuses_always
from tests.requirements import requirement

pytestmark = requirement("spec.stream-log")


@pytest.mark.parametrize(
    ("text", "is_final"),
    [
        ("ERR The ID specified in XADD must be greater than 0-0", True),
        ("ERR Error running script (call to f_0a): @user_script:9: WRONGTYPE Operation against a key", True),
        ("ERR Protocol error: invalid bulk length", True),
        ("ERR hash value is not an integer script: 0a, on @user_script:20.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", True),
        ("-no healthy upstream", False),
        ("ERR Error running script (call to f_0a): @user_script:9: @user_script: 9: -OOM command not allowed", False),
        ("ERR max number of clients reached", False),
        ("LOADING Redis is loading the dataset in memory", False),
        ("NOPERM this user has no permissions to run the 'xadd' command script: 0a, on @user_script:9.", False),
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("READONLY You can't write against a read only replica. script: 0a, on @user_script:9.", False),
    ],
)
def test_what_is_wrong_with_the_call_or_its_keys_stays_wrong_and_anything_else_is_tried_again(
    text: str, is_final: bool
) -> None:
    failure = StoreUnavailable(f"Redis: {text}")
    failure.__cause__ = ServerError(text)
    assert refuses_always(failure) is is_final


def test_a_server_that_did_not_answer_has_refused_nothing() -> None:
    assert not refuses_always(StoreUnavailable("Redis did not answer within 1 s: user_script"))
