"""Which errors of Redis a further try may get past."""

import pytest

from session_store import StoreUnavailable
from session_store.redis.connection import ServerError
from session_store.redis.refusals import refuses_always
from tests.requirements import requirement

pytestmark = requirement("spec.stream-log")


def refused(text: str) -> StoreUnavailable:
    failure = StoreUnavailable(f"Redis: {text}")
    failure.__cause__ = ServerError(text)
    return failure


@pytest.mark.parametrize(
    "text",
    [
        "ERR The ID specified in XADD must be greater than 0-0",
        "ERR Error running script (call to f_0a): @user_script:9: WRONGTYPE Operation against a key",
        "ERR Protocol error: invalid bulk length",
        "ERR hash value is not an integer script: 0a, on @user_script:20.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
    ],
)
def test_what_is_wrong_with_the_call_or_its_keys_stays_wrong(text: str) -> None:
    assert refuses_always(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "-no healthy upstream",
        "ERR Error running script (call to f_0a): @user_script:9: @user_script: 9: -OOM command not allowed",
        "ERR max number of clients reached",
        "LOADING Redis is loading the dataset in memory",
        "NOPERM this user has no permissions to run the 'xadd' command script: 0a, on @user_script:9.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica. script: 0a, on @user_script:9.",
    ],
)
def test_what_a_server_cannot_do_now_is_tried_again(text: str) -> None:
    assert not refuses_always(refused(text))


def test_a_server_that_did_not_answer_has_refused_nothing() -> None:
    assert not refuses_always(StoreUnavailable("Redis did not answer within 1 s: user_script"))
