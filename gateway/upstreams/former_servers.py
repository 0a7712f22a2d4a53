"""Keep servers whose configuration was changed or removed, until the sessions that use them have left them. A session
goes on with the process that it has. It leaves the process once it has not called the server for a while, or when a
deadline passes. Its next call then starts a process of the new configuration, and the first result reports that."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.upstreams.configured_upstream import ConfiguredUpstream

logger = logging.getLogger(__name__)

KEPT_S: Final = 600.0
"""Seconds for which a session goes on with its process at most. Calls may take as long without a word, by default."""

IDLE_S: Final = 60.0
"""A session leaves its process once it has not called it for so many seconds."""

_GRACE_S: Final = 5.0
"""Seconds for which a former server is kept in any case, because requests for it may be chosen but not sent yet."""

_REASON: Final = "the configuration of the server has changed"
_REMOVED: Final = "the server was removed from the configuration"


def _has_calls(live: LiveSession) -> bool:
    """Return True if the session has a request in progress that may still be sent to a server. Streams of notifications
    do not count."""
    listening = sum(exchange.is_subscription for exchange in live.exchanges)
    return live.busy > live.open_streams + listening


@dataclass(eq=False, repr=False)
class _Former:
    """A server with a former configuration, and how sessions use it."""

    upstream: ConfiguredUpstream
    is_removed: bool
    """True: the new configuration has no server of this name."""
    at: float
    """The monotonic time at which its configuration was replaced."""
    used: WeakKeyDictionary[Conversation, tuple[int, float]] = field(default_factory=WeakKeyDictionary)
    """For each conversation: the number of its last request, and the monotonic time since which there was no other."""

    @property
    def reason(self) -> str:
        return _REMOVED if self.is_removed else _REASON

    def is_over(self, now: float) -> bool:
        """Return True if the deadline has passed after which all sessions must leave the server."""
        return now - self.at >= KEPT_S

    def is_done(self, now: float) -> bool:
        """Return True if the server may be closed, with its conversations that belong to no session: they have no calls
        and a few seconds have passed, or the deadline has passed. `now`: monotonic time."""
        is_unused = all(conversation.is_unused for conversation in self.upstream.shared)
        return self.is_over(now) or (is_unused and now - self.at >= _GRACE_S)

    def may_leave(self, live: LiveSession, conversation: Conversation, now: float) -> bool:
        """Return True if the session has to leave its conversation with the server, because the deadline has passed, or
        can leave it: the session has no calls, and has not called the server for a while. It need not wait so long if
        the server was removed or the conversation is not open."""
        if self.is_over(now):
            return True
        if live.has_suspended or not conversation.is_unused or _has_calls(live):
            return False
        if self.is_removed or not conversation.is_open:
            return True
        sent, since = self.used.setdefault(conversation, (conversation.last_number, now))
        if sent != conversation.last_number:
            self.used[conversation] = (conversation.last_number, now)
            return False
        return now - since >= IDLE_S


class FormerServers:
    """The servers with former configurations that sessions still use. `sessions` are the live sessions of this
    replica."""

    def __init__(self, sessions: Iterable[LiveSession]) -> None:
        self._sessions = sessions
        self._former: list[_Former] = []

    def __len__(self) -> int:
        return len(self._former)

    def add(self, upstream: ConfiguredUpstream, successor: ConfiguredUpstream | None) -> None:
        """Keep a former server for its sessions. `successor` is the server of the same name in the new configuration;
        None if it was removed."""
        self._former.append(_Former(upstream, successor is None, monotonic()))
        if successor is not None:
            successor.succeed(upstream)

    async def sweep(self) -> None:
        """Close the conversations of sessions that have to or can leave a former server. Then close the former servers
        that no session uses. Called each second."""
        if not self._former:
            return
        now, used, leaving = monotonic(), set[_Former](), []
        for live in self._sessions:
            for conversation in live.every_conversation():
                former = next((each for each in self._former if each.upstream.owns(conversation)), None)
                if former is None:
                    continue
                used.add(former)
                is_present = conversation in live.conversations.values()  # else it only finishes its calls
                if former.may_leave(live, conversation, now) if is_present else former.is_over(now):
                    leaving.append(former.upstream.leave(live, conversation, former.reason))
        await asyncio.gather(*leaving)
        over = [each for each in self._former if each not in used and each.is_done(now)]
        self._former = [each for each in self._former if each not in over]
        await asyncio.gather(*(each.upstream.close() for each in over))
        for each in over:
            logger.info("the former server %s is not used any more", each.upstream.name)

    async def close(self) -> None:
        """Close all former servers. Sessions close their own conversations."""
        former, self._former = self._former, []
        await asyncio.gather(*(each.upstream.close() for each in former))
