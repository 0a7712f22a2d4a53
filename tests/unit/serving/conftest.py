"""Workers of one parent."""

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from gateway.serving.sibling_workers import Inboxes, SiblingWorkers, inherited_siblings

VARIABLE = "MCP_GATEWAY_WORKER_SIBLINGS"
Worker = Callable[[int], SiblingWorkers]


@pytest.fixture
def inboxes() -> Iterator[Inboxes]:
    made = Inboxes(3)
    yield made
    made.close()


@pytest.fixture
def worker(inboxes: Inboxes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker by its number, as a process that inherits copies of the descriptors."""
    made = []

    def start(number: int) -> SiblingWorkers:
        given, descriptors = inboxes.for_worker(number)
        copies = [os.dup(descriptor) for descriptor in descriptors]
        assert given == {VARIABLE: ",".join(map(str, [number, *descriptors]))}
        monkeypatch.setenv(VARIABLE, ",".join(map(str, [number, *copies])))
        found = inherited_siblings(Counter())
        assert found is not None and VARIABLE not in os.environ
        assert not any(os.get_inheritable(copy) for copy in copies)
        made.append(found)
        return found

    yield start
    for each in made:
        each.close()
