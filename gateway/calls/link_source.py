"""Where the links of a conversation come from. Implemented for a session, for a shared server and for a trial."""

from typing import Protocol

from gateway.calls.session_frames import SessionFrames
from gateway.context.link_resources import LinkResources
from session_store import Session
from transports.era import Era
from transports.upstream_port import ConnectOptions, Link, LinkEvents

__all__ = ["LinkSession", "LinkSource"]


class LinkSession(Protocol):
    """A session that uses links."""

    @property
    def session(self) -> Session:
        """Its record."""
        ...

    @property
    def new_process(self) -> str:
        """Why its servers have new processes, if it has used them before."""
        ...

    def replace_record(self, session: Session) -> None:
        """Use this record from now on."""
        ...

    def rest(self) -> None:
        """Give back the memory that calls in flight have taken, if there are none."""
        ...

    def changed(self) -> None:
        """What was decided on a call of the session does not hold for the next one."""
        ...


class LinkSource(Protocol):
    """Opens links to one server in one era. Every method is called again for each link."""

    @property
    def name(self) -> str:
        """The server's name in the configuration."""
        ...

    @property
    def era(self) -> Era:
        """The era in which the links are used."""
        ...

    @property
    def session(self) -> str:
        """The session that the links belong to, as logs may show it; empty if they belong to none or to many."""
        ...

    @property
    def principal(self) -> str:
        """Whose session that is, as logs show it; empty if the links belong to none or to many."""
        ...

    @property
    def frames(self) -> SessionFrames | None:
        """Who watches the session that the links belong to; None if nobody does, or they belong to many."""
        ...

    def secrets(self, given: ConnectOptions) -> set[str]:
        """The values in what a link is given, and in the configuration of the server, that nobody may see."""
        ...

    @property
    def quotes_output(self) -> bool:
        """Whether errors quote the server's output to clients."""
        ...

    async def resources(self) -> LinkResources:
        """The resources of its session for the next link. Raises `UpstreamUnavailable`."""
        ...

    async def connect(self, options: ConnectOptions, events: LinkEvents) -> Link:
        """A new link. Raises `UpstreamUnavailable`."""
        ...

    def handshake(self) -> bytes | None:
        """The params of `initialize`; None in the modern era, which has no handshake."""
        ...

    def known_handshake(self) -> bytes | None:
        """The `initialize` result that an earlier link to the server had, for a link that resumes a session there."""
        ...

    def replay(self) -> list[bytes]:
        """The messages that follow a handshake: the notification, log level and subscriptions of the session."""
        ...

    async def record_use(self, live: LinkSession) -> bool:
        """Record that a session uses the server, before its first message is sent, so that a later process can report
        what was lost. True if an earlier process has recorded that already. Raises `StoreUnavailable`."""
        ...

    async def remote_session_changed(self, resume: str) -> None:
        """Record the id that a later link can resume with; empty if there is none. Raises `StoreUnavailable`."""
        ...

    def started(self, pid: int | None, took_s: float, correlation: str) -> None:
        """Count and log a link that has been opened for the request with that correlation id."""
        ...

    def failed(self, why: str) -> None:
        """Count a link that could not be opened."""
        ...

    def restarted(self, reason: str) -> None:
        """Count a link that replaces an earlier one."""
        ...
