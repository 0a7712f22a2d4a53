"""Keep the conversations with one server that belong to no single session: for lists, for the gateway's probe, and for
a server that sessions share."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.calls.conversation import Conversation
from gateway.calls.lifecycles import Deadlines
from gateway.calls.live_session import LiveSession
from gateway.calls.server_messages import SharedRouter
from gateway.calls.server_start_failures import newest
from gateway.protocol.methods import Method
from gateway.upstreams.link_opener import SharedLinks, UpstreamLinks
from transports.era import Era


@dataclass(eq=False, repr=False)
class SharedConversations:
    """Hold the conversations with one server that belong to no single session: one for each era, created when it is
    first needed. `on_change` is called when the server notifies of a change."""

    links: UpstreamLinks
    deadlines: Deadlines
    on_change: Callable[[Method], None] = lambda change: None

    def __post_init__(self) -> None:
        self._open: dict[Era, Conversation] = {}
        self._discarded_words: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Conversation]:
        return iter(tuple(self._open.values()))

    def of(self, era: Era) -> Conversation:
        """Return the shared conversation in `era`; create it if there is none."""
        conversation = self._open.get(era)
        if conversation is None:
            source = SharedLinks(
                self.links, era, users=lambda: () if (held := self._open.get(era)) is None else held.users
            )
            conversation = self._open[era] = Conversation(source, SharedRouter(self.on_change), self.deadlines)
        return conversation

    async def discard(self, era: Era) -> None:
        """Close the shared conversation in an era that the server does not speak."""
        conversation = self._open.pop(era, None)
        if conversation is not None:
            self._discarded_words = tuple(newest(conversation.output_tail))  # the process may take seconds to end
            await conversation.close()
            self._discarded_words = tuple(conversation.output_tail)

    @property
    def output_tail(self) -> tuple[str, ...]:
        """Return the last lines that the server's present process has written; if it has written none, those of the
        process that `discard` has ended. For operators, if the server has not answered."""
        for conversation in self:
            if words := newest(conversation.output_tail):
                return tuple(words)
        return self._discarded_words

    def trial(self) -> Conversation:
        """Return a new legacy conversation with its own link, to test if the server accepts a handshake. The caller
        must close it."""
        return Conversation(SharedLinks(self.links, Era.LEGACY, is_trial=True), SharedRouter(), self.deadlines)

    def forget(self, live: LiveSession) -> None:
        """Remove an ended session from the users of all conversations."""
        for conversation in self:
            conversation.users.discard(live)

    async def close(self) -> None:
        await asyncio.gather(*(conversation.close() for conversation in self))
