"""Results that are there at once, or come later."""

import gc
import warnings
from collections.abc import Callable

import pytest

from transports.soon import Soon, arrived, if_there, is_there, then

pytestmark = pytest.mark.anyio


async def coming(value: str) -> str:
    return value


def shouted(value: str, mark: str) -> Soon[str]:
    return value.upper() + mark


async def shouted_later(value: str, mark: str) -> str:
    return value.upper() + mark


@pytest.mark.parametrize("go_on", (shouted, shouted_later))
@pytest.mark.parametrize("is_now", (True, False))
async def test_a_result_may_come_at_each_step(go_on: Callable[[str, str], Soon[str]], is_now: bool) -> None:
    first: Soon[str] = "it" if is_now else coming("it")
    result = then(first, go_on, "!")
    assert is_there(result) is (is_now and go_on is shouted)
    assert await arrived(result) == "IT!"


async def test_what_is_raised_comes_from_the_call_or_from_the_coroutine() -> None:
    def failing(value: str) -> Soon[str]:
        raise ValueError(value)

    with pytest.raises(ValueError, match="now"):
        then("now", failing)
    later = then(coming("later"), failing)
    with pytest.raises(ValueError, match="later"):
        await arrived(later)


def test_what_is_not_there_is_not_begun_at_any_depth() -> None:
    assert if_there("now") == "now"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        later: Soon[str] = coming("later")
        assert if_there(later) is None
        assert if_there(then(then(coming("later"), shouted, "!"), shouted, "!")) is None
        waiting: Soon[str] = arrived(coming("later"))
        assert if_there(then(waiting, shouted, "!")) is None
        gc.collect()
    assert [str(warning.message) for warning in told] == []
