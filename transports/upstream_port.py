"""Define the interface to a server (upstream): how links to it are opened, and what they report. No I/O of its own."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from transports.jsonrpc import Message
from transports.upstream.walls.wall_specification import Walls

STANDALONE: Final = ""
"""The value in place of a request id for messages on the server's own stream, which belong to no request."""

_NOT_ABOUT_CONTENT: Final = frozenset({401, 402, 403, 407, 408, 421, 423, 425, 429, 451})
_REFUSALS: Final = frozenset({307, 308, 501, 503, 505})


class UpstreamUnavailable(Exception):
    """A link could not be opened, or the upstream refused a request. The message says why, for the person who called
    the tool, without secrets. `status` is the HTTP status of the refusal; 0 if there was none."""

    def __init__(self, reason: str = "", *, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


def is_about_content(status: int) -> bool:
    """Return True if this HTTP status means that the content of the request was refused. With any other status, the
    server is busy or broken, a proxy has answered, or the request needs credentials."""
    return 400 <= status < 500 and status not in _NOT_ABOUT_CONTENT


def is_refusal(status: int) -> bool:
    """Return True if an HTTP status says that the request was not executed; 0 stands for a request that was not sent. A
    server that answers 500 may have failed in the middle of its work; behind a proxy that answers 502 or 504, it may
    have finished (RFC 9110 §15)."""
    return not status or 400 <= status < 500 or status in _REFUSALS


def too_large(most_bytes: int) -> str:
    """Return the end of a sentence about an upstream that has sent a message beyond the operator's limit: "sent a
    message of more than ... bytes"."""
    return (
        f"sent a message of more than {most_bytes} bytes (four times gateway.limits.body_bytes, 16 MiB at least), "
        "which was thrown away: ask it for less, or raise the limit"
    )


class LinkClosed(Exception):
    """The link has ended, or takes no more messages. If sending a message raises it, the upstream has got no part of
    the message. If the wait for an answer raises it, the link has ended before the answer."""


class LinkFull(LinkClosed):
    """The link takes no message now: too many wait until the upstream reads them."""


async def _nothing() -> None:
    """Do nothing before a request: the link has no credentials that are renewed."""


async def _never(sent: Collection[str]) -> bool:
    """Return False: there are no other header values to try after the values `sent` were answered 401."""
    return False


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a link for its session, in addition to the operator's configuration of the server. Each kind of
    upstream (process, URL, object) uses those that concern it.
    """

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Variables for the environment of the process. The operator's configuration wins over them."""
    overriding: frozenset[str] = frozenset()
    """The names of those variables in `env` that win over the operator's configuration."""
    launcher: tuple[str, ...] = ()
    """The words in front of the command, by which another program starts it."""
    argv: tuple[str, ...] = ()
    """The command to start instead of the configured one; empty: the configured one."""
    path: tuple[str, ...] = ()
    """Folders to put in front of the PATH of the process."""
    walls: Walls | None = None
    """The sandbox around the launcher and the process."""
    cwd: str | None = None
    """The working directory instead of the configured one; None: the configured one."""
    hide: Callable[[str], str] = str
    """Removes secrets that are not in `env` from what the process writes."""
    headers: Callable[[], Mapping[str, str]] = dict
    """Returns headers for every HTTP request."""
    renew: Callable[[], Awaitable[None]] = _nothing
    """Awaited before each HTTP request, to renew credentials. May raise `UpstreamUnavailable`."""
    rejected: Callable[[Collection[str]], Awaitable[bool]] = _never
    """Awaited with the header values of a request that was answered 401. Returns True if other values may be
    accepted."""
    schemas: Callable[[], Mapping[str, Any]] = dict
    """Returns the input schemas, by tool, of the tools that mirror arguments in headers."""
    resume: str = ""
    """The `Link.resume` of an earlier link of the same session; empty: there is none."""
    keep: Callable[[], bool] = lambda: False
    """Returns True if a later link will resume this one, so that the server's session must not be ended."""
    started: Any = None
    """A link that the same upstream has prestarted with these options; None: there is none."""
    began: Callable[[int | None], None] = lambda pid: None
    """Called with the id of a started process, or with None if processes that are not its descendants may do its
    work."""
    in_context: Callable[[], Context] = copy_context
    """Returns the context variables with which an object in this process handles the message that is sent."""
    scope: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Members of the ASGI scope that the tools of an object in this process find in the request of their context."""


class LinkEvents(Protocol):
    """Receive the reports of a link. The methods are called on the event loop, one at a time, and must not block. A
    `reason` is a text for people."""

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields (`extra`) for a log line about what the upstream has just sent or done."""

    def message(self, message: Message, stream: int | str | None = None) -> None:
        """Handle a message of the upstream. `stream` is the id of the request on whose stream the message came, or
        `STANDALONE`; None if the transport has one stream for all messages."""

    def noise(self) -> None:
        """Handle a line of the upstream's output that is not a message."""

    @property
    def stderr(self) -> Callable[[str], None] | None:
        """Return the function that gets the upstream's lines on stderr, redacted and cut; None to discard them."""

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        """Handle an unreadable message. `request_id` is the request that it answers; None if unknown."""

    def refused(self, request_id: int | str, reason: str, status: int = 0, cause: Exception | None = None) -> None:
        """Handle a request that got no answer. `status` is the HTTP status that the upstream sent instead; 0 if it sent
        none. If `is_refusal(status)` is False, the request may have been executed. `cause` is the exception because of
        which the request was not sent, if there is one."""

    def unsent(self, link: "Link", request_id: int | str | None, reason: str) -> None:
        """Handle a request that was not executed, because the upstream no longer knows this link's session (HTTP 404).

        `request_id` is None if the request is unknown. The link takes no more messages. Earlier requests may still be
        answered.
        """

    def closed(self, reason: str) -> None:
        """Handle the end of the link. Called exactly once, after the last message, also if `Link.close` ended the link.

        After `unsent`, this may come late: only `Link.close` ends such a link.
        """


class Link(Protocol):
    """One live connection to one upstream."""

    @property
    def pid(self) -> int | None:
        """Return the id of the link's process; None if it has none."""

    @property
    def output_tail(self) -> Sequence[str]:
        """Return the last lines that the link's process wrote to stderr, and the first lines of its stdout that are no
        messages; empty without a process. Lines are redacted, then cut."""

    def stderr_tail(self) -> list[str]:
        """Return the last lines that the link's process wrote to stderr, as many as are kept. Lines are redacted, then
        cut."""

    @property
    def resume(self) -> str:
        """Return the value for `ConnectOptions.resume` with which a later link continues the server's session; empty if
        no link can."""

    @property
    def may_forget(self) -> bool:
        """Return True if the server may forget its sessions, so that a message may later be reported as `unsent`."""

    def send(self, frame: bytes) -> None:
        """Send one message (a JSON object without line breaks). Never blocks. Raises `LinkClosed` if the link takes no
        messages."""

    async def close(self) -> None:
        """End the link as its transport prescribes. Return when all its resources are released. Idempotent."""


@runtime_checkable
class Upstream(Protocol):
    """Open links to one server."""

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> Link:
        """Open a link. Raises `UpstreamUnavailable`."""

    async def close(self) -> None:
        """Release the resources that links share. Idempotent."""
