"""The conversations with a server that belong to no session."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.calls.deadlines import Deadlines
from gateway.context.link_resources import LinkResources
from gateway.upstreams.shared import SharedConversations
from tests.requirements import requirement
from tests.support.fake_upstream import FakeLink
from transports.era import Era

pytestmark = [pytest.mark.anyio, requirement("proc.last-words")]


class Links:
    """Opens links to a server whose processes write what they are told to."""

    name = "fake"
    quotes = "none"

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.resources = SimpleNamespace(shared=self.given)

    async def given(self) -> LinkResources:
        return LinkResources()

    async def connect(self, _: Any, events: Any) -> FakeLink:
        self.links.append(FakeLink(events))
        return self.links[-1]

    def started(self, *_: Any) -> None: ...

    def failed(self, why: str) -> None: ...

    def known_handshake(self) -> None: ...


async def test_the_words_of_a_server_that_has_not_answered_are_known_while_it_runs_and_when_it_is_tried_again() -> None:
    links: Any = Links()
    shared = SharedConversations(links, Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None))
    assert shared.last_words == ()
    await shared.of(Era.MODERN).ready()
    links.links[0].last_words = [f"line {n}" for n in range(60)]
    assert shared.last_words == tuple(f"line {n}" for n in range(20, 60)), "while its process runs"
    await shared.discard(Era.MODERN)
    assert shared.last_words == tuple(f"line {n}" for n in range(20, 60)), "until the next process writes something"
    await shared.close()


async def test_the_words_of_a_server_are_known_while_its_process_ends() -> None:
    links: Any = Links()
    shared = SharedConversations(links, Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None))
    await shared.of(Era.MODERN).ready()
    link = links.links[0]
    link.last_words = ["waiting for a license"]
    end, known = link.close, []

    async def close() -> None:
        known.append(shared.last_words)
        await end()

    link.close = close
    await shared.discard(Era.MODERN)
    assert known == [("waiting for a license",)]
