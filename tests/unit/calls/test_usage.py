"""The uses of a session are counted in one place."""

import pytest

from gateway.calls.usage import Usage


def test_a_use_counts_until_it_is_released_and_no_longer() -> None:
    live = Usage()
    call, stream = live.in_use(held=100), live.in_use(is_stream=True)
    assert (live.busy, live.held_bytes, live.open_streams, live.is_busy) == (2, 100, 1, True)
    call.release()
    call.release()
    assert (live.busy, live.held_bytes, live.open_streams) == (1, 0, 1)
    stream.release()
    assert (live.busy, live.open_streams, live.is_busy) == (0, 0, False)


def test_a_use_ends_with_its_block_when_that_fails() -> None:
    live = Usage()
    with pytest.raises(KeyError), live.in_use():
        raise KeyError
    assert not live.is_busy


def test_the_idle_time_restarts_once_after_the_last_use() -> None:
    live = Usage()
    assert not live.take_use()
    with live.in_use():
        assert live.take_use()
        assert live.take_use()
    assert live.take_use()
    assert not live.take_use()


def test_a_restart_of_the_idle_time_that_failed_is_tried_again() -> None:
    live = Usage()
    with live.in_use():
        pass
    assert live.take_use()
    live.keep_use()
    assert live.take_use()


def test_a_task_is_a_use_and_counts_as_work() -> None:
    live = Usage()
    call, task = live.in_use(), live.at_work()
    assert (live.busy, live.tasks) == (2, 1)
    call.release()
    task.release()
    task.release()
    assert (live.busy, live.tasks, live.is_busy) == (0, 0, False)
    assert live.take_use()
