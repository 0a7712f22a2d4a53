"""Connections that are made on sockets of others, whatever those do with them meanwhile."""

import errno
import os
import select
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener
from transports.upstream.walls.pending_connections import PendingConnections

pytestmark = requirement("box.network")

CALL = InterceptedCall(1, 1, 1, ())


@pytest.fixture
def answers() -> list[int]:
    """The errors that a filter's listener would answer."""
    return []


@pytest.fixture
def connections(answers: list[int]) -> PendingConnections:
    def answer(made: InterceptedCall, error: int = 0) -> None:
        answers.append(error)

    return PendingConnections(cast(Listener, SimpleNamespace(is_valid=lambda made: True, answer=answer)), select.poll())


def raising(error: Exception) -> Callable[[], int]:
    def attempt() -> int:
        raise error

    return attempt


@pytest.mark.parametrize("blocking", [True, False])
def test_a_socket_is_as_it_was_where_no_attempt_can_be_made(connections: PendingConnections, blocking: bool) -> None:
    with socket.socket() as theirs:
        theirs.setblocking(blocking)
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        with ours, pytest.raises(OSError, match="no address"):
            connections.make(CALL, ours, raising(OSError(errno.EADDRNOTAVAIL, "no address")))
        assert os.get_blocking(theirs.fileno()) == blocking


def test_a_server_that_makes_its_waiting_socket_block_holds_up_nobody(
    connections: PendingConnections, answers: list[int]
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
    assert (blocked, answers) == ([False] * 3, [0])


def test_a_retry_that_raises_is_the_answer(connections: PendingConnections, answers: list[int]) -> None:
    with socket.socket(socket.AF_UNIX) as theirs:
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        steps = iter((lambda: errno.EAGAIN, raising(OSError(errno.ENOENT, "gone"))))
        connections.make(CALL, ours, lambda: next(steps)())
        connections.sweep()
        assert answers == [errno.ENOENT]
        assert os.get_blocking(theirs.fileno())
