"""When the part of a client's stream at a server is opened again, whose process or connection is gone."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.calls.starts import MOST_S, Backoff
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era
from transports.upstream_port import UpstreamUnavailable

__all__ = ["LostSubscriptions"]


class LostSubscriptions:
    """The parts of one stream that are gone. `listen` subscribes at a server in a conversation of the session.

    A process is not started for that: it has nothing to notify of until it is used. Its part is opened again with its
    next start. A server behind a URL goes on without the connection, and is asked again after a `Backoff`.
    """

    def __init__(
        self,
        live: LiveSession,
        correlation: str,
        listen: Callable[[ConfiguredUpstream, Conversation], Coroutine[Any, Any, None]],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._live = live
        self._correlation = correlation
        self._listen = listen
        self._clock = clock
        self._stop: dict[str, Callable[[], None]] = {}  # to wait no more, by the name of the server
        self._failures: dict[str, Backoff] = {}

    def lost(self, upstream: ConfiguredUpstream) -> None:
        """The part at that server is gone."""
        name, again = upstream.name, partial(self._again, upstream)
        self._forget(name)
        if not upstream.settings.url:
            self._stop[name] = upstream.when_started(self._live, again)
            return
        failures, now = self._failures.get(name), self._clock()
        if failures is None or now - failures.failed_at - failures.delay_s >= MOST_S:  # it has lasted
            failures = self._failures[name] = Backoff()
        failures.fail("", now)
        self._stop[name] = asyncio.get_running_loop().call_later(failures.delay_s, again).cancel

    def _again(self, upstream: ConfiguredUpstream) -> None:
        self._stop.pop(upstream.name, None)
        try:
            conversation = upstream.conversation(self._live, Era.MODERN, self._correlation)
        except UpstreamUnavailable:
            return  # the session has ended, and the stream with it
        conversation.in_background(self._listen(upstream, conversation))

    def _forget(self, name: str) -> None:
        if (stop := self._stop.pop(name, None)) is not None:
            stop()

    def end(self) -> None:
        """The stream has ended: nothing is opened again."""
        for name in tuple(self._stop):
            self._forget(name)
