"""`run --workers N`: a kept-alive connection goes to the worker that owns its session."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.support.mcp_clients import modern_body
from tests.support.redis_server import running_redis
from tests.support.waiting import descendants, eventually
from tests.support.wire import PipeliningClient
from tests.support.worker_processes import Workers, call, running_workers, worker_processes

pytestmark = requirement("rep.workers")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with running_redis() as redis, running_workers(redis, 2) as running:
        yield running


REMEMBER = modern_body("tools/call", {"name": "remember", "arguments": {"key": "k", "value": "kept"}})

RECALL = modern_body("tools/call", {"name": "recall", "arguments": {"key": "k"}})


class Since:
    """What has been counted since then."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._forwarded = workers.total("forwarded")
        self._moved = workers.total("connection_hand_overs")

    @property
    def forwarded(self) -> int:
        return (self._workers.total("forwarded") - self._forwarded).total()

    @property
    def moved(self) -> dict[str, int]:
        return dict(self._workers.total("connection_hand_overs") - self._moved)


def texts(client: PipeliningClient, number: int) -> list[str]:
    """The texts of the next tool results."""
    answers = client.answers(number)
    assert [status for status, _ in answers] == [200] * number, answers
    return [answer["result"]["content"][0]["text"] for _, answer in answers]


def test_after_its_first_call_a_connection_is_with_the_owner_of_its_session(workers: Workers) -> None:
    token, since = workers.session(1), Since(workers)
    with workers.connected(0) as client:
        for number in range(2, 12):
            client.write(call(client, token))
            assert texts(client, 1) == [str(number)]
    assert (since.forwarded, since.moved) == (1, {"given": 1, "taken": 1})


@requirement("wall.framing")
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_requests_that_come_together_are_all_answered_in_order(workers: Workers, cut: int) -> None:
    """Also if the last one is complete only after the others have their answers."""
    token, since = workers.session(1), Since(workers)
    with workers.connected(0) as client:
        calls = b"".join(call(client, token) for _ in range(5))
        client.write(calls[: len(calls) - cut])
        assert texts(client, 4) == ["2", "3", "4", "5"]
        client.write(calls[len(calls) - cut :])
        assert texts(client, 1) == ["6"]
        client.write(call(client, token) * 3)
        assert texts(client, 3) == ["7", "8", "9"]
    assert (since.forwarded, since.moved) == (5, {"given": 1, "taken": 1})


def test_a_large_answer_is_complete_before_the_connection_moves(workers: Workers) -> None:
    token, since = workers.session(1), Since(workers)
    giant = modern_body("tools/call", {"name": "giant", "arguments": {"size": 3_000_000}})
    with workers.connected(0) as client:
        client.write(call(client, token, giant, path="/servers/probe/mcp"))
        assert len(texts(client, 1)[0]) == 3_000_000
        for number in (2, 3):
            client.write(call(client, token))
            assert texts(client, 1) == [str(number)]
    assert since.moved == {"given": 1, "taken": 1} and since.forwarded <= 2


@requirement("proc.isolated")
def test_no_server_has_a_descriptor_of_the_workers(workers: Workers) -> None:
    token = workers.session(1)
    with workers.connected(0) as client:
        for _ in range(2):
            client.write(call(client, token))
        assert texts(client, 2) == ["2", "3"]
        workers.session(0), workers.session(1)  # servers that are started while the connection is there
        own = {process.pid for process in workers.processes}
        servers = [p for p in descendants(workers.gateway.pid) if p.pid not in own]
        inherited = set().union(*(sockets(process.pid) for process in servers))
        assert len(servers) >= 3
        of_workers = {pid: sockets(pid) for pid in (workers.gateway.pid, *own)}
        assert all(len(found) >= 4 for found in of_workers.values())
        assert inherited & set().union(*of_workers.values()) == set()


def sockets(pid: int) -> set[str]:
    """The sockets that a process has open."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return {link for link in links if re.match(r"socket:", link)}


LIMITS = {"connections": 16, "idle_timeout_s": 60}


@pytest.fixture
def limited() -> Iterator[Workers]:
    """Workers with few connections. This machine is a client like any other."""
    options = {"limits": LIMITS, "auth": {"proxies": {"networks": ["192.0.2.0/24"]}}}
    with running_redis() as redis, running_workers(redis, 2, options) as running:
        yield running


def test_a_connection_that_has_moved_may_be_idle_like_any_other(limited: Workers) -> None:
    """Not only as long as one whose first request is due."""
    token, since = limited.session(1), Since(limited)
    place = limited.gateway.base.removeprefix("http://").split(":")
    with limited.connected(0) as client, socket.create_connection((place[0], int(place[1])), 30) as silent:
        client.write(call(client, token))
        assert texts(client, 1) == ["2"]
        silent.sendall(b"POST /mcp HTTP/1.1\r\n")
        assert silent.recv(100).startswith(b"HTTP/1.1 408 "), "that time is over"
        client.write(call(client, token))
        assert texts(client, 1) == ["3"]
    assert since.moved == {"given": 1, "taken": 1}


@requirement("rep.takeover")
def test_the_connections_of_a_worker_that_dies_are_reset_and_its_sessions_live_on(limited: Workers) -> None:
    token, since = limited.session(1), Since(limited)
    with limited.connected(0) as client:
        client.write(call(client, token, REMEMBER))
        texts(client, 1)
        client.write(call(client, token))
        assert texts(client, 1) == ["2"] and since.moved == {"given": 1, "taken": 1}
        limited.processes[1].kill()
        limited.processes[1].wait()
        with pytest.raises(OSError):
            client.write(call(client, token))
            client.answers(1)
    with PipeliningClient(limited.gateway.url) as again:
        again.write(call(again, token, RECALL))
        assert texts(again, 1) == ["kept"]
    assert eventually(lambda: len(worker_processes(limited.gateway)) == 2), "it is started again"
