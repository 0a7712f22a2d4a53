"""The uses of a session are counted in one place."""

import pytest

from gateway.calls.open_call_counts import Usage


def test_a_use_counts_until_it_is_released_and_no_longer() -> None:
    live = Usage()
    call, stream, task = live.open_use(body_bytes=100), live.open_use(is_stream=True), live.open_use(is_movable=True)
    assert (live.busy, live.body_bytes, live.open_streams, live.movable, live.is_busy) == (3, 100, 1, 2, True)
    assert not live.is_movable, "its call ends here"
    for _ in range(2):
        call.release()
        task.release()
        assert live.is_movable
    assert (live.busy, live.body_bytes, live.open_streams, live.movable) == (1, 0, 1, 1)
    stream.release()
    assert (live.busy, live.open_streams, live.is_busy) == (0, 0, False)


def test_the_idle_time_restarts_once_after_the_last_use() -> None:
    live = Usage()
    assert not live.take_use()
    with live.open_use():
        assert live.take_use()
        assert live.take_use()
    assert live.take_use()
    assert not live.take_use()
    live.keep_use()
    assert live.take_use(), "a restart that failed is tried again"
    live.open_use(is_movable=True).release()
    assert live.take_use(), "a task is a use"
    with pytest.raises(KeyError), live.open_use():
        raise KeyError
    assert not live.is_busy, "a use ends with its block"
