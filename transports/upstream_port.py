"""What an upstream is: how links to a server are opened, and what is heard of them. No I/O of its own."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from transports.jsonrpc import Message

__all__ = [
    "ConnectOptions",
    "Link",
    "LinkClosed",
    "LinkEvents",
    "PrestartedLink",
    "PrestartingUpstream",
    "Upstream",
    "UpstreamUnavailable",
]


class UpstreamUnavailable(Exception):
    """A link could not be opened. The message is for the person who called the tool: no secrets, what went wrong."""


class LinkClosed(Exception):
    """The link is gone or takes no more; nothing of this message reached the upstream."""


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a link gets for its session, in addition to what the operator configured for the server.

    `env` is the environment of a process, `launcher` a command that starts it. `headers` returns headers for every
    HTTP request. `schemas` returns the input schemas, by tool, of the tools that mirror arguments in headers. `resume`
    is the `Link.resume` of an earlier link of the same session, and `keep` tells whether a later link will resume this
    one. `started` is a link that the same upstream has prestarted with these options.
    """

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    headers: Callable[[], Mapping[str, str]] = dict
    schemas: Callable[[], Mapping[str, Any]] = dict
    resume: str = ""
    keep: Callable[[], bool] = lambda: False
    started: Any = None


class LinkEvents(Protocol):
    """Who hears a link. Called on the event loop, never concurrently, never blocking."""

    def message(self, message: Message) -> None:
        """The upstream sent this."""
        ...

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        """The upstream sent something that had to be thrown away; the request it answered, where that can be told."""
        ...

    def refused(self, request_id: int | str, reason: str) -> None:
        """The upstream did not take that request, and says why: nothing of it was executed."""
        ...

    def unsent(self, link: "Link", request_id: int | str | None, reason: str) -> None:
        """As `refused`, by an upstream that has forgotten the link's session; None: that is all we know. The link takes
        nothing more. What else it was given may still be answered."""
        ...

    def closed(self, reason: str) -> None:
        """The link has ended, after its last message. Called exactly once, also when we ended it."""
        ...


class Link(Protocol):
    """One live connection to one upstream."""

    @property
    def pid(self) -> int | None:
        """The process behind it, where there is one."""
        ...

    @property
    def last_words(self) -> list[str]:
        """The last lines its process has written for people (stderr), where there is one."""
        ...

    @property
    def resume(self) -> str:
        """What a later link to the same server could go on with; empty where there is no such thing."""
        ...

    @property
    def may_forget(self) -> bool:
        """Whether its server has sessions that it may forget, so that a message turns out to be `unsent` later."""
        ...

    def send(self, frame: bytes) -> None:
        """Send one message (a JSON object without line breaks). Never blocks. Raises `LinkClosed`."""
        ...

    async def close(self) -> None:
        """End it in the order the wire asks for and return when nothing is left. Idempotent."""
        ...


class PrestartedLink(Link, Protocol):
    """A link that was started before anybody asked for it."""

    @property
    def is_unheard(self) -> bool:
        """Whether it lives and has said nothing yet: nobody can tell it from a new one."""
        ...


class Upstream(Protocol):
    """A server that links can be opened to."""

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> Link:
        """Open a link. Raises `UpstreamUnavailable`."""
        ...

    async def close(self) -> None:
        """Give back what its links share."""
        ...


class PrestartingUpstream(Upstream, Protocol):
    """An upstream whose links can be started ahead."""

    async def start(self, given: ConnectOptions) -> PrestartedLink:
        """Start a link for somebody who comes later, with `ConnectOptions.started`. Raises `UpstreamUnavailable`."""
        ...
