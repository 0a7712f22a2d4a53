"""JSON-RPC with one server over the present link: ids, the gateway's own requests, notifications, answers.

Knows nothing of clients and their calls.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.calls.backoff import Backoff
from gateway.calls.link_lifecycle import LinkLifecycle
from gateway.calls.link_source import LinkSource
from gateway.calls.lists import Lists
from gateway.calls.log_level import is_lower
from gateway.calls.owned_tasks import OwnedTask, OwnedTasks
from gateway.calls.patience import Patience
from gateway.calls.pending import PendingRequests
from gateway.calls.watched_link import WatchedLink
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import capabilities_json, server_info_of
from transports.era import Era
from transports.jsonrpc import (
    Message,
    encode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    splice,
)
from transports.tasks import Tasks
from transports.upstream_port import ConnectOptions, Link, LinkClosed

__all__ = ["Peer"]

logger = logging.getLogger(__name__)


_EXIT_S: Final = 1.0
"""How long after its input a process may end, so that errors say how it has ended."""


class _Greeting(NamedTuple):
    """What is read of the server's answer to a handshake."""

    result: bytes | None
    declared: Declared
    server_info: bytes


_NOTHING: Final = _Greeting(None, Declared(), server_info_of(None))
"""Before the first handshake."""


class Peer(WatchedLink):
    """Sends messages to one server, and waits for the answers to the gateway's own requests.

    `known_lists` are the lists received from the server; None if none was.
    """

    # Without a dictionary each: there are as many as there are sessions.
    __slots__ = (
        "_background",
        "_greeting",
        "_holds",
        "_last_number",
        "_own",
        "_source",
        "_task_link",
        "_tasks",
        "era",
        "known_lists",
    )

    def __init__(self, source: LinkSource, links: LinkLifecycle) -> None:
        super().__init__(source, links)
        self.era: Era = source.era  # the era of the protocol that is used with the server
        self._source = source
        self.known_lists: Lists | None = None
        self._own = PendingRequests()
        self._last_number = 0
        self._greeting = _NOTHING
        self._holds = 0
        self._background: Tasks | None = None
        self._tasks: OwnedTasks | None = None
        self._task_link: Link | None = None  # whose tasks these are

    def turned(self) -> None:
        """Something has changed that calls of the server's sessions are decided on: its link, or what it lists."""

    @property
    def lists(self) -> Lists:
        """The pages of the server's lists that were received, to be extended."""
        self.known_lists = self.known_lists or Lists(self.turned)
        return self.known_lists

    @property
    def link(self) -> Link | None:
        """The present link, even while it is shaking hands."""
        return self._links.link

    @property
    def initialize_result(self) -> bytes | None:
        """The server's answer to the last handshake."""
        return self._links.initialize_result

    @property
    def declared(self) -> Declared:
        """The extensions that the server declared in the last handshake."""
        return self._greeted.declared

    @property
    def server_info(self) -> bytes:
        """The `serverInfo` of a legacy server, as JSON."""
        return self._greeted.server_info

    @property
    def _greeted(self) -> _Greeting:
        """The last handshake. It is read once."""
        result = self._links.initialize_result
        if self._greeting.result is not result:
            self._greeting = _Greeting(result, Declared.of(capabilities_json(result)), server_info_of(result))
        return self._greeting

    @property
    def is_open(self) -> bool:
        """Whether a message can be sent now."""
        return self._links.is_open

    @property
    def failures(self) -> Backoff | None:
        """The starts that have failed since the last one that did not."""
        return self._links.failures

    @property
    def restarts(self) -> int:
        """How many links have replaced an earlier one."""
        return self._links.restarts

    def stop_idle_after(self, idle_stop_s: float | None) -> None:
        """Close the link after that long without calls, from now on. None: never."""
        self._links.stop_idle_after(idle_stop_s)

    @property
    def given(self) -> ConnectOptions | None:
        """What the present link was opened with, in addition to the configuration of its server; None if there is
        none."""
        return None if self._links.link is None else self._links.resources.given

    @property
    def is_process(self) -> bool:
        """Whether the link is a process, so that what the server works on ends with it."""
        link = self._links.link
        return link is not None and link.pid is not None

    @property
    def is_remote(self) -> bool:
        """Whether the link leads to a URL, so that what the server works on does not end with the gateway."""
        link = self._links.link
        return link is not None and link.may_forget

    @property
    def known_tasks(self) -> OwnedTasks | None:
        """The tasks that the server has made over the present link; None if none are known."""
        if self._tasks is not None and self._task_link is not self._links.link:
            tasks, self._tasks, self._task_link = self._tasks, None, None
            for task in tasks:
                task.lost()
        return self._tasks

    def own_task(self, own_id: str, task: OwnedTask) -> None:
        """Record a task that the server has made over the present link."""
        if self.known_tasks is None:
            self._tasks, self._task_link = OwnedTasks(), self._links.link
        assert self._tasks is not None
        self._tasks.add(own_id, task)

    def hold_link(self) -> None:
        """Keep the link open without calls, until `free_link` is called as often: the server works on a task."""
        self._holds += 1

    def free_link(self) -> None:
        """Undo one `hold_link`."""
        self._holds -= 1
        self._links.rest()

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines on stderr of a process that has ended."""
        return self._links.last_words

    @property
    def patience(self) -> Patience:
        """How long the server's first answer is waited for."""
        return self._links.patience

    def noise(self) -> None:
        """The server has written a line that is no message (LinkEvents)."""
        self._links.patience.noise()

    async def ready(self) -> None:
        """Wait until the link is open.

        Raises:
            UpstreamUnavailable, HandshakeRefused: the server cannot be used.
        """
        await self._links.ready()

    def next_number(self) -> int:
        """A number that no other request to the server has."""
        self._last_number += 1
        return self._last_number

    async def ask(self, method: str, params: bytes | None) -> Message:
        """Send a request of the gateway's own, and return the answer. Raises `LinkClosed` if the link ends first."""
        try:
            answer = self.answer_to(method, params)
        except LinkClosed as closed:
            raise await self._end_of(closed) from None
        return await answer

    async def _end_of(self, closed: LinkClosed) -> LinkClosed:
        """How a process has ended whose input was found closed: its exit says more, and is reported a moment later."""
        link = self._links.link
        if link is None or link.pid is None:
            return closed
        end = self._own.expect(self.next_number())
        try:
            async with asyncio.timeout(_EXIT_S):
                await end
        except LinkClosed as ended:
            return ended
        except TimeoutError:  # it has only closed its input
            pass
        return closed

    def answer_to(self, method: str, params: bytes | None) -> asyncio.Future[Message]:
        """Send a request of the gateway's own at once. The future gets the answer, or `LinkClosed` if the link ends
        first. Raises `LinkClosed`."""
        self._links.require()
        number = self.next_number()
        answer = self._own.expect(number)
        try:
            self.put(encode_request(number, method, params))
        except BaseException:
            answer.cancel()
            raise
        return answer

    def in_background(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in a task that ends with the conversation."""
        if self._background is None:
            self._background = Tasks(f"calls to server {self.name!r}")
        self._background.spawn(work)

    def request(self, method: str, params: bytes) -> None:
        """Send a request of the gateway's own without waiting for its answer."""
        self._send_or_drop(encode_request(self.next_number(), method, params))

    def _send_or_drop(self, frame: bytes) -> None:
        with contextlib.suppress(LinkClosed):
            self.put(frame)

    def want_log_level(self, level: str) -> None:
        """Set the log level of a legacy server on behalf of a modern client (`gateway.calls.log_level`)."""
        if is_lower(level, self._links.log_level, self.initialize_result):
            self._links.log_level_is(level)
            self.request("logging/setLevel", encode({"level": level}))

    def notify(self, method: str, params: bytes | None) -> None:
        """Send a notification, if there is a link and its handshake is complete."""
        if self._links.greeted is None:
            return
        try:
            self.put(splice(encode_notification(method, params)))
        except LinkClosed:
            logger.debug("%s is not sent to server %s, which is closed", method, self.name)

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send the client's answer to a request of the server's; `request_id` is the server's own id, as JSON."""
        if (tasks := self.known_tasks) is not None:
            message = tasks.answer_for_server(message)
        if isinstance(message.result, msgspec.Raw):
            frame = encode_result(request_id, splice(message.result))
        else:
            assert isinstance(message.error, msgspec.Raw)
            frame = encode_error(request_id, splice(message.error))
        self._send_or_drop(frame)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Answer a request of the server's with an error of the gateway's."""
        self._send_or_drop(encode_error(request_id, {"code": code, "message": reason}))

    def acknowledge(self, request_id: bytes) -> None:
        """Answer a ping."""
        self._send_or_drop(encode_result(request_id, b"{}"))
