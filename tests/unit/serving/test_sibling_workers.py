"""Workers of one parent: they know each other, and sockets travel between them."""

import os
import socket
from collections import Counter

from gateway.serving.sibling_workers import Inboxes, inherited_siblings
from tests.requirements import requirement
from tests.unit.serving.conftest import Worker

pytestmark = requirement("rep.workers")


def test_a_process_that_is_no_worker_has_no_siblings() -> None:
    assert inherited_siblings(Counter()) is None


def test_each_finds_the_others_by_their_replica(worker: Worker) -> None:
    first, second = worker(0), worker(2)
    first.join("aaaaaaaaaaaa")
    assert second.place_of("bbbbbbbbbbbb") is None
    second.join("bbbbbbbbbbbb")
    assert (first.place_of("bbbbbbbbbbbb"), second.place_of("aaaaaaaaaaaa")) == (2, 0)
    assert first.place_of("aaaaaaaaaaaa") is None, "itself"
    assert first.place_of("") is None, "the row of a worker that has not started"
    worker(2).join("cccccccccccc")
    assert (first.place_of("bbbbbbbbbbbb"), first.place_of("cccccccccccc")) == (None, 2)


def test_a_connection_arrives_with_what_its_client_has_sent(worker: Worker) -> None:
    giver, taker = worker(0), worker(1)
    client, accepted = socket.socketpair()
    with client, accepted:
        client.sendall(b"early")
        assert giver.give(accepted.fileno(), 1, 2)
        accepted.close()
        client.sendall(b" and late")
        received = taker.receive()
        assert received is not None and (received.sender, received.moves) == (0, 2)
        assert not received.connection.get_inheritable()
        assert received.connection.recv(100) == b"early and late"
        assert taker.give_back(received, 4) and taker.receive() is None
        back = giver.receive()
        assert back is not None and (back.sender, back.moves) == (1, 4)
        back.connection.sendall(b"answer")
        assert client.recv(100) == b"answer"
        back.connection.close()
        assert client.recv(100) == b"", "nobody else holds it"
    assert (giver.counts, taker.counts) == ({"given": 1}, {"returned": 1})


def test_what_was_sent_to_a_worker_that_dies_is_received_by_the_next(worker: Worker) -> None:
    giver, dying = worker(0), worker(1)
    client, accepted = socket.socketpair()
    with client, accepted:
        assert giver.give(accepted.fileno(), 1, 1)
        dying.inbox.close()
        accepted.close()
        received = worker(1).receive()
        assert received is not None
        received.connection.close()
        assert client.recv(100) == b""


def test_a_full_inbox_takes_nothing_more_and_loses_nothing(worker: Worker) -> None:
    giver, taker = worker(0), worker(1)
    client, accepted = socket.socketpair()
    with client, accepted:
        given = 0
        while giver.give(accepted.fileno(), 1, 1):
            given += 1
            assert given < 10_000
        assert giver.counts == {"given": given, "kept": 1} and given >= 16
        taken = 0
        while (received := taker.receive()) is not None:
            received.connection.close()
            taken += 1
        assert taken == given and giver.give(accepted.fileno(), 1, 1)


def test_a_message_without_a_connection_is_skipped(inboxes: Inboxes, worker: Worker) -> None:
    taker = worker(1)
    _, descriptors = inboxes.for_worker(0)
    with socket.socket(fileno=os.dup(descriptors[2 + 1])) as outlet:
        outlet.send(b"\0\0\1")
    assert taker.receive() is None
