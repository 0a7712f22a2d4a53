"""Pytest classes that test whether a class fulfils the contract of an `Upstream` and its links. Other packages can
inherit from them.

A subclass defines the fixture `upstream`: an `Upstream` for an MCP server of the legacy era that answers `ping`."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from transports.jsonrpc import Message
from transports.upstream_port import ConnectOptions, Link, LinkClosed, Upstream, UpstreamUnavailable

_WAIT_S: Final = 30.0
_INITIALIZE: Final = (
    b'{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"contract","version":"1"}}}'
)
_INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class RecordedEvents:
    """Record all reports of a link in their order (`LinkEvents`), for a test."""

    stderr: Callable[[str], None] | None = None

    def __init__(self) -> None:
        self.answered: list[int | str] = []
        self.failed: list[int | str | None] = []
        self.unsent_ids: list[int | str | None] = []
        self.ends: list[str] = []
        self.after_end = 0
        self._changed = asyncio.Event()

    def message(self, message: Message, stream: int | str | None = None) -> None:
        self._note()
        if message.is_response and isinstance(message.id, int | str):
            self.answered.append(message.id)

    def log_fields(self) -> Mapping[str, Any]:
        return {}

    def noise(self) -> None:
        self._note()

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        self._note()
        self.failed.append(request_id)

    def refused(self, request_id: int | str, reason: str, status: int = 0, cause: Exception | None = None) -> None:
        self._note()
        self.failed.append(request_id)

    def unsent(self, link: Link, request_id: int | str | None, reason: str) -> None:
        self._note()
        self.failed.append(request_id)
        self.unsent_ids.append(request_id)

    def closed(self, reason: str) -> None:
        self.ends.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises `TimeoutError` after 30 s."""
        async with asyncio.timeout(_WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _note(self) -> None:
        self.after_end += len(self.ends)
        self._changed.set()


def ping(request_id: int | str) -> bytes:
    """Return a `ping` request, which every server answers."""
    return b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % (
        b"%d" % request_id if isinstance(request_id, int) else b'"%s"' % request_id.encode()
    )


async def handshaken(upstream: Upstream) -> tuple[Link, RecordedEvents]:
    """Open a link, make the handshake of the legacy era, and return the link and the recorded events."""
    events = RecordedEvents()
    async with asyncio.timeout(_WAIT_S):
        link = await upstream.connect(ConnectOptions(), events)
    link.send(_INITIALIZE)
    await events.until(lambda: "init" in events.answered)
    link.send(_INITIALIZED)
    return link, events


@pytest.mark.anyio
class UpstreamContract:
    """Test that an `Upstream` and its links do what their protocols say."""

    @pytest.fixture
    def upstream(self) -> Upstream:
        raise NotImplementedError

    async def test_every_request_is_answered_once_under_its_id(self, upstream: Upstream) -> None:
        link, events = await handshaken(upstream)
        ids: list[int | str] = [*range(5), "a", "b-\u00fc"]
        for request_id in ids:
            link.send(ping(request_id))
        await events.until(lambda: len(events.answered) > len(ids))
        assert sorted(events.answered, key=str) == sorted([*ids, "init"], key=str)
        assert not events.failed and not events.ends
        await link.close()

    async def test_links_are_apart(self, upstream: Upstream) -> None:
        (one, one_events), (two, two_events) = await handshaken(upstream), await handshaken(upstream)
        one.send(ping("one"))
        await one_events.until(lambda: "one" in one_events.answered)
        await one.close()
        assert not two_events.ends, "the end of a link is the end of no other"
        two.send(ping("two"))
        await two_events.until(lambda: "two" in two_events.answered)
        assert two_events.answered == ["init", "two"]
        await two.close()

    async def test_a_closed_link_says_so_once_and_then_nothing(self, upstream: Upstream) -> None:
        link, events = await handshaken(upstream)
        await asyncio.gather(link.close(), link.close())
        await events.until(lambda: bool(events.ends))
        await link.close()
        assert len(events.ends) == 1 and events.ends[0] and not events.after_end

    async def test_a_closed_link_takes_nothing(self, upstream: Upstream) -> None:
        link, events = await handshaken(upstream)
        await link.close()
        with pytest.raises(LinkClosed):
            link.send(ping("late"))
        assert "late" not in events.answered

    async def test_requests_in_flight_end_with_the_link(self, upstream: Upstream) -> None:
        link, events = await handshaken(upstream)
        for request_id in range(20):
            link.send(ping(request_id))
        await link.close()
        await events.until(lambda: bool(events.ends))
        seen = len(events.answered)
        await asyncio.sleep(0)
        assert len(events.ends) == 1 and not events.after_end and len(events.answered) == seen

    async def test_a_link_says_what_it_is(self, upstream: Upstream) -> None:
        link, _ = await handshaken(upstream)
        assert link.pid is None or link.pid > 1
        assert isinstance(link.resume, str) and isinstance(link.may_forget, bool)
        assert all(isinstance(line, str) for line in [*link.output_tail, *link.stderr_tail()])
        await link.close()

    async def test_an_upstream_can_be_closed_again(self, upstream: Upstream) -> None:
        link, _ = await handshaken(upstream)
        await link.close()
        await upstream.close()
        await upstream.close()


@pytest.mark.anyio
class UnreachableUpstreamContract:
    """Test an `Upstream` whose server cannot be reached. The fixture `unreachable` returns one."""

    @pytest.fixture
    def unreachable(self) -> Upstream:
        raise NotImplementedError

    async def test_it_is_unavailable_or_its_link_fails_the_request(self, unreachable: Upstream) -> None:
        events = RecordedEvents()
        try:
            link = await unreachable.connect(ConnectOptions(), events)
        except UpstreamUnavailable as error:
            assert str(error)
            return
        try:
            link.send(_INITIALIZE)
        except LinkClosed:
            pass
        else:
            await events.until(lambda: bool(events.failed or events.ends))
        await link.close()
        assert not events.answered and len(events.ends) == 1


@pytest.mark.anyio
class ForgetfulUpstreamContract:
    """Test an `Upstream` whose server forgets its sessions (`Link.may_forget`).

    The fixture `forgetful` returns an `Upstream`, and a function that makes the server forget all sessions.
    """

    @pytest.fixture
    def forgetful(self) -> tuple[Upstream, Callable[[], object]]:
        raise NotImplementedError

    async def test_a_link_whose_session_is_forgotten_takes_nothing_and_is_closed_once(
        self, forgetful: tuple[Upstream, Callable[[], object]]
    ) -> None:
        upstream, forget = forgetful
        link, events = await handshaken(upstream)
        link.send(ping("before"))
        await events.until(lambda: "before" in events.answered)
        assert link.may_forget
        forget()
        with contextlib.suppress(LinkClosed):  # the link may have noticed before it is asked to send
            link.send(ping("after"))
        await events.until(lambda: bool(events.unsent_ids))
        with pytest.raises(LinkClosed):
            link.send(ping("late"))
        await asyncio.gather(link.close(), link.close())
        await events.until(lambda: bool(events.ends))
        await link.close()
        assert len(events.ends) == 1 and events.ends[0] and not events.after_end
        assert not {"after", "late"} & set(events.answered)
