"""Connections that are made on sockets of others, whatever those do with them meanwhile."""

import errno
import os
import select
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.upstream.walls.connecting import Connections
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener

pytestmark = requirement("box.network")

CALL = InterceptedCall(1, 1, 1, ())


class Answers:
    """In place of a filter's listener: what would be answered."""

    def __init__(self) -> None:
        self.errors: list[int] = []

    def is_valid(self, made: InterceptedCall) -> bool:
        return True

    def answer(self, made: InterceptedCall, error: int = 0) -> bool:
        self.errors.append(error)
        return True


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def connections(answers: Answers) -> Connections:
    return Connections(cast(Listener, answers), select.poll())


def raising(error: Exception) -> Callable[[], int]:
    def attempt() -> int:
        raise error

    return attempt


@pytest.mark.parametrize("blocking", [True, False])
def test_a_socket_is_as_it_was_where_no_attempt_can_be_made(connections: Connections, blocking: bool) -> None:
    with socket.socket() as theirs:
        theirs.setblocking(blocking)
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        with ours, pytest.raises(OSError, match="no address"):
            connections.make(CALL, ours, raising(OSError(errno.EADDRNOTAVAIL, "no address")))
        assert os.get_blocking(theirs.fileno()) == blocking


def test_a_server_that_makes_its_waiting_socket_block_holds_up_nobody(
    connections: Connections, answers: Answers
) -> None:
    blocked: list[Any] = []
    with socket.socket(socket.AF_UNIX) as theirs:
        ours = socket.socket(fileno=os.dup(theirs.fileno()))

        def attempt() -> int:
            blocked.append(os.get_blocking(ours.fileno()))
            return errno.EAGAIN if len(blocked) < 3 else 0

        connections.make(CALL, ours, attempt)
        for _ in range(2):
            theirs.setblocking(True)
            connections.sweep()
    assert (blocked, answers.errors) == ([False] * 3, [0])


def test_a_retry_that_raises_is_the_answer(connections: Connections, answers: Answers) -> None:
    with socket.socket(socket.AF_UNIX) as theirs:
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        steps = iter((lambda: errno.EAGAIN, raising(OSError(errno.ENOENT, "gone"))))
        connections.make(CALL, ours, lambda: next(steps)())
        connections.sweep()
        assert answers.errors == [errno.ENOENT]
        assert os.get_blocking(theirs.fileno())
