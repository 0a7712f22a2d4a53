"""Manage the link of a conversation, which is a connection to a server: open it when needed, close it when idle,
replace it when lost.

A conversation has one link at a time: a process, an HTTP session or an object (`transports.upstream_port.Link`). Links
are made by a `LinkSource`, which differs for sessions, shared servers and trials. This module does not know calls."""

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from time import monotonic
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from gateway.calls.lifecycles import LINK, Deadlines, LinkEvent, LinkState, Loss, step
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.calls.server_start_failures import Backoff, FirstAnswerTimeout, newest, with_output_tail
from gateway.context.resources_for_links import NO_RESOURCES, LinkResources
from gateway.errors import ConsentNeeded, StartRefused
from gateway.observability.logs import CORRELATION
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import HandshakeRefused, capabilities_json, server_info_of
from session_store import Session
from session_store.current_tool_session import bound_session
from transports.background_tasks import Tasks, TasksClosed
from transports.era import Era
from transports.jsonrpc import Message, splice
from transports.upstream_port import ConnectOptions, Link, LinkClosed, LinkEvents, LinkFull, UpstreamUnavailable

logger = logging.getLogger(__name__)

_OPENING: Final = "opening"
_MAX_RETIRED: Final = 8
_FEW: Final = 4

UNREACHED: Final = (UpstreamUnavailable, HandshakeRefused, LinkClosed)
"""Errors that say that a server cannot be reached: it does not start, refuses the handshake, or was lost."""

FULL_S: Final = 0.02
"""Seconds between two tries to send a message over a link that is full."""

JUST_S: Final = 1.0
"""Seconds after a failed start during which callers get the same error, and no new start is tried."""


class _Greeting(NamedTuple):
    """The parts of a server's answer to `initialize` that the gateway uses."""

    result: bytes | None
    declared: Declared
    server_info: bytes


_NOTHING: Final = _Greeting(None, Declared(), server_info_of(None))
"""The value of `_Greeting` before the first handshake."""


class LinkSession(Protocol):
    """The parts of a session (`gateway.calls.live_session.LiveSession`) that the connections to its servers use."""

    @property
    def session(self) -> Session: ...
    @property
    def used_before(self) -> Collection[str]: ...
    @property
    def new_process(self) -> str: ...
    def replace_record(self, session: Session) -> None: ...
    def free_memory(self) -> None: ...
    def changed(self) -> None: ...


class LinkSource(Protocol):
    """Opens links (connections) to one server in one protocol era. A conversation calls the methods anew for each of
    its links."""

    @property
    def name(self) -> str:
        """Return the server's name in the configuration."""

    @property
    def era(self) -> Era:
        """Return the era that all links of this source speak. It never changes."""

    @property
    def session(self) -> str:
        """Return the redacted id of the session that the links belong to; empty if they belong to none or to
        several."""

    @property
    def principal(self) -> str:
        """Return the principal of the links' session, as logs show it; empty if they belong to none or to several."""

    @property
    def recorder(self) -> MessageRecorder | None:
        """Return the recorder of messages for an operator; None if no operator watches, or the links serve several
        sessions."""

    @property
    def is_gateway(self) -> bool:
        """Return True if the server is itself a gateway like this one. Its own `_meta` entries in results are then
        passed to clients."""

    def secrets(self, given: ConnectOptions) -> set[str]:
        """Return the secret values that are to be hidden in all output: those in the link's options `given`, and those
        in the server's configuration."""

    async def resources(self) -> LinkResources:
        """Return the options and folders for the session's next link. Raises `UpstreamUnavailable`."""

    async def connect(self, options: ConnectOptions, events: LinkEvents) -> Link:
        """Return a new link. Raises `UpstreamUnavailable`."""

    def handshake(self) -> bytes | None:
        """Return the params of `initialize`; None in the modern era, which has no handshake."""

    def known_handshake(self) -> bytes | None:
        """Return the `initialize` result of an earlier link, for a link that resumes a session at a remote server; None
        if there is none."""

    def replay(self) -> list[bytes]:
        """Return the messages to send after a handshake: `notifications/initialized`, the log level and the
        subscriptions."""

    async def record_use(self, live: LinkSession) -> bool:
        """Record that a session uses the server, before the session's first message is sent. A later gateway process
        then knows that it must report a restart of the server. Return True if the session has lost an earlier link to
        the server. For a server behind a URL, record nothing and return False.

        Raises:
            StoreUnavailable: the store does not answer.
        """

    async def remote_session_changed(self, resume: str) -> None:
        """Store `resume`, the id of the session at the remote server, which later links resume. It is empty if there is
        no such session. Raises `StoreUnavailable`."""

    def started(self, pid: int | None, took_s: float, correlation: str) -> None:
        """Log that a link was opened. `pid` is its process, if it has one. `took_s` is how many seconds the opening
        took. `correlation` is the correlation id of the request that needed the link."""

    def answered(self) -> None:
        """Count a link whose server has answered for the first time."""

    def failed(self, why: str) -> None:
        """Count a link that could not be opened, or that was lost before its server answered."""

    def restarted(self, reason: str) -> None:
        """Count a link that replaces an earlier one."""


class LinkUser(LinkEvents, Protocol):
    """The methods of a conversation (`gateway.calls.conversation.Conversation`) that its connection to the server
    calls."""

    @property
    def has_calls(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    async def ask(self, method: str, params: bytes | None) -> Message: ...
    def put(self, frame: bytes) -> None: ...

    def restarted(self, reason: str) -> None:
        """Handle the opening of a new link in place of one that was lost or closed. `reason` says why that one was."""

    def stopped(self) -> None:
        """Handle the closing of a link that was idle."""

    def link_changed(self) -> None:
        """Handle the opening or closing of the link."""


class LinkLifecycle:
    """Opens, replaces and closes the connection to a server (link) of one conversation."""

    # Slots save one dictionary for each: there are as many as there are conversations.
    __slots__ = """_closing _deadlines _greeted _greeting _idle _idle_stop_s _loss _retired _source _tasks _user
        _idle_since _was_open failures has_answered initialize_result is_open output_tail link log_level opened_for
        first_answer resources restarts state""".split()

    def __init__(self, source: LinkSource, user: LinkUser, deadlines: Deadlines, *, idle_stop_s: float | None) -> None:
        self.state = LinkState.ABSENT
        self.is_open = False  # True if a call can be sent now
        self.link: Link | None = None
        self.initialize_result: bytes | None = None
        self.opened_for = ""  # the correlation id of the request that a link is being opened for
        self.restarts = 0
        """How many links have replaced an earlier one."""
        self.failures: Backoff | None = None  # starts that have failed since the last success
        self.output_tail: Sequence[str] = ()  # the last lines on stderr of a process that has ended
        self.log_level = ""  # the level that a legacy server was set to on behalf of modern clients
        self._source = source
        self._user = user
        self.first_answer = FirstAnswerTimeout(deadlines.noise_s)
        self._deadlines = deadlines
        self._idle_stop_s = idle_stop_s
        self.resources = NO_RESOURCES  # of the present link
        self._greeting = _NOTHING
        self._greeted: Link | None = None  # the link whose handshake is complete
        self._loss: Loss | None = None  # why the next link replaces the one before
        self._was_open = self.has_answered = False
        self._retired: tuple[Link, ...] = ()  # links that take no message, but may still answer
        self._closing: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since = 0.0  # when calls last ended, by the monotonic clock
        self._tasks = Tasks(sys.intern(f"link to server {source.name!r}"))

    def _step(self, event: LinkEvent) -> None:
        self.state, was_open = step(LINK, self.state, event), self.is_open
        self.is_open = self.state is LinkState.OPEN
        if self.is_open is not was_open:
            self._user.link_changed()

    def require(self) -> Link:
        """Return the present link, even during its handshake. Raises `LinkClosed` if there is none."""
        if self.link is None:
            raise LinkClosed("it exited")
        return self.link

    @property
    def greeted(self) -> Link | None:
        """Return the link if its handshake is complete, so that notifications may be sent; else None."""
        return self.link if self.link is self._greeted else None

    @property
    def greeting(self) -> _Greeting:
        """Return the server's answer to the last handshake, decoded."""
        if self._greeting.result is not (result := self.initialize_result):
            self._greeting = _Greeting(result, Declared.of(capabilities_json(result)), server_info_of(result))
        return self._greeting

    def secrets(self) -> set[str]:
        """Return the secret values in the options of the present or next link, to be hidden in all output."""
        return self._source.secrets(self.resources.given) | self.resources.file_values

    @property
    def renews_tokens(self) -> bool:
        """Return True if `ready` has to renew access tokens for the process before each call."""
        return self.resources.files is not None and bool(self.resources.files.renewed)

    # -- opening

    async def ready(self) -> None:
        """Wait until the link is open, and the files for its process have current access tokens. If there is no link,
        open one, once for all callers. A cancelled caller does not stop the opening.

        Raises:
            UpstreamUnavailable, HandshakeRefused: the server cannot be used.
        """
        if self.state is not LinkState.OPEN:
            await self._opened()
        if (files := self.resources.files) is not None:
            await files.renew()

    async def _opened(self) -> None:
        ended = f"the session with server {self._source.name!r} has ended"
        if self.state is LinkState.ENDED:
            raise UpstreamUnavailable(ended)
        failed = self.failures
        if failed is not None and self.state is LinkState.ABSENT and monotonic() - failed.failed_at < JUST_S:
            raise UpstreamUnavailable(failed.reason)
        try:
            await self._tasks.share(_OPENING, self._open)
        except TasksClosed:
            raise UpstreamUnavailable(ended) from None

    async def _open(self) -> None:
        try:
            await self._try_to_open()
        except StartRefused:  # it costs nothing to ask again, and the next one gets the refusal too
            raise
        except UpstreamUnavailable as error:
            self.failures = self.failures or Backoff()
            self.failures.fail(str(error), monotonic())
            raise
        self.failures = None

    async def _try_to_open(self) -> None:
        if self._closing is not None:
            await asyncio.wait((self._closing,))
        self._step(LinkEvent.OPEN)
        # The link reads in the context of this task for its whole life. Lines of later calls must not get the
        # correlation id of this one.
        correlation, began = CORRELATION.get(), monotonic()
        CORRELATION.set("")
        self.opened_for = correlation
        try:
            async with self.first_answer.within(self._deadlines.start_s):
                await self._connect()
                self.require()  # it may have been lost since its handshake
            self._step(LinkEvent.OPENED)
        except TimeoutError:
            self._source.failed(late := self.first_answer.late(self._source.name, self._deadlines.start_s))
            await self._fail()
            raise UpstreamUnavailable(self.quoted(late)) from None
        except LinkClosed as error:
            ended = f"server {self._source.name!r} ended while it was starting: {error}"
            self._source.failed(ended)
            await self._fail()
            raise UpstreamUnavailable(ended) from None
        except BaseException as error:
            # Who has not consented is no fault of the server, and the link to do so is not for operators.
            if isinstance(error, UpstreamUnavailable | HandshakeRefused) and not isinstance(error, ConsentNeeded):
                self._source.failed(str(error))
            await self._fail()
            raise
        finally:
            self.opened_for = ""
        pid = None if self.link is None else self.link.pid
        self._source.started(pid, monotonic() - began, correlation)
        if self.has_answered:
            self._source.answered()
        loss, self._loss, self._was_open = self._loss, None, True
        if loss is not None:
            self.restarts += 1
            self._source.restarted(loss)
            self._user.restarted(loss)
            fields = {"server": self._source.name, "session": self._source.session, "correlation": correlation}
            logger.info("server %s was started again after %s", self._source.name, loss, extra=fields)
        self.start_idle_timer()

    def answered(self) -> None:
        """Record the first answer over this link. For a server without a handshake, it proves that the server works."""
        self.has_answered = True
        self._source.answered()

    async def _connect(self) -> None:
        self.has_answered = False
        self.resources = await self._source.resources()
        if (files := self.resources.files) is not None:
            # While the process starts, it may read them, too.
            files.renew_while(lambda: self.state is not LinkState.OPEN or not self._user.is_idle)
        options = self.resources.given
        if self._loss is Loss.FORGOTTEN:
            options = replace(options, resume="")
        with bound_session(self.resources.session):
            self.link = await self._source.connect(options, self._user)
        # Nothing else of the options is read from now on, by `secrets` and for operators. There are many links.
        read = ConnectOptions(env=options.env, headers=options.headers, walls=options.walls, cwd=options.cwd)
        self.resources = dataclasses.replace(self.resources, given=read)
        params = self._source.handshake()
        if params is None or options.resume:
            if params is not None:
                self.initialize_result = self.initialize_result or self._source.known_handshake()
            self._greeted = self.link
            return
        answer = await self._user.ask("initialize", params)
        self.has_answered = True
        if isinstance(answer.error, msgspec.Raw):
            raise HandshakeRefused(answer.error)
        assert isinstance(answer.result, msgspec.Raw)
        result, known = splice(answer.result), self._source.known_handshake()
        self.initialize_result = known if known == result else result  # mostly equal: all links share one object
        self.log_level = ""
        await self._replay()
        self._greeted = self.link  # no pause since the last replay: what the client says from now on is not part of it
        await self._source.remote_session_changed(self.require().resume)

    async def _replay(self) -> None:
        """Send the messages that follow a handshake (`LinkSource.replay`), also those that are added while this runs.
        If the server cannot take all subscriptions at once, wait until it has read some."""
        sent = set[bytes]()
        while rest := [frame for frame in self._source.replay() if frame not in sent]:
            try:
                for frame in rest:
                    self._user.put(frame)
                    sent.add(frame)
            except LinkFull:
                await asyncio.sleep(FULL_S)

    async def _fail(self) -> None:
        try:
            await _end(self._detach())
        finally:
            self._step(LinkEvent.FAILED)

    def log_level_is(self, level: str) -> None:
        """Record the log level that was set at the server. A new link to the server has none at first."""
        self.log_level = level

    # -- losing

    def lost(self, reason: str = "") -> str:
        """Record that the link was lost or closed. Return the text for clients: `reason`, perhaps with the last output
        of the server's process (`quoted`)."""
        self._keep_output_tail()
        if self.link is not None and self.is_open and not self.has_answered:
            self._source.failed(f"server {self._source.name!r} ended before its first answer")
        self.link = self._greeted = None
        self.resources.close()
        self.resources = NO_RESOURCES
        if self._was_open and self._loss is None:
            self._loss = Loss.CRASHED
        self._step(LinkEvent.LOST)
        return self.quoted(reason)

    def forgotten(self, link: Link) -> None:
        """Send nothing more over this link, because the remote server no longer knows the link's session. Answers to
        earlier calls may still arrive over it."""
        if link is not self.link:
            return
        self.link = self._greeted = None
        self._retired = (*self._retired[1 - _MAX_RETIRED :], link)
        self.resources = NO_RESOURCES
        self._loss = Loss.FORGOTTEN
        self._step(LinkEvent.LOST)

    def discard(self, error: LinkClosed | None = None) -> None:
        """Close an open link in the background. `error` is what it has raised, if that is the reason. If `error` says
        only that the server reads slowly, keep a link that sessions share: otherwise one session could end the calls of
        all others."""
        if self.state is not LinkState.OPEN or (isinstance(error, LinkFull) and not self._source.session):
            return
        self._step(LinkEvent.DISCARD)
        self._closing = self._tasks.spawn(self._discarded(self._detach()))

    async def _discarded(self, detached: "_Detached") -> None:
        try:
            await _end(detached)
        finally:
            self._closing = None
            self._step(LinkEvent.CLOSED)
            if self._loss is Loss.STOPPED:
                self._user.stopped()

    def quoted(self, reason: str) -> str:
        """Return `reason`, the reason of a failure, as text for clients. Add the last output of the server's process,
        unless sessions share the process: then the output may be about other clients."""
        return with_output_tail(reason, self.output_tail) if self._source.session else reason

    def _keep_output_tail(self) -> None:
        if self.link is not None:
            self.output_tail = tuple(newest(self.link.output_tail))

    def _detach(self) -> "_Detached":
        self._keep_output_tail()
        link, self.link, self._greeted = self.link, None, None
        resources, self.resources = self.resources, NO_RESOURCES
        return link, resources

    # -- idling

    def stop_idle_after(self, idle_stop_s: float | None) -> None:
        """Set the seconds without calls after which the link is closed. None: never."""
        self._idle_stop_s = idle_stop_s
        self._end_timer()
        self.start_idle_timer()

    def start_idle_timer(self) -> None:
        """Start or restart the idle time, after which the link is closed. Do nothing while a call is in flight."""
        if self._idle is not None:  # a running timer goes on and checks this time when it ends: cheaper for each call
            self._idle_since = monotonic()
        elif self._idle_stop_s is not None and self.link is not None and not self._user.has_calls:
            self._idle_since = monotonic()
            self._idle = asyncio.get_running_loop().call_later(self._idle_stop_s, self._stop)

    def _end_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _stop(self) -> None:
        self._idle = None
        if self._idle_stop_s is None:
            return
        left_s = self._idle_since + self._idle_stop_s - monotonic()
        if left_s > 0:
            self._idle = asyncio.get_running_loop().call_later(left_s, self._stop)
        elif self.state is LinkState.OPEN and self._user.is_idle:
            self._loss = Loss.STOPPED
            self.discard()
        else:
            self.start_idle_timer()

    def stop_early(self, share: float) -> None:
        """Close the link in the background if it has been idle for this share (0 to 1) of its idle time."""
        if self._idle is None or self._idle_stop_s is None or self.state is not LinkState.OPEN:
            return
        if self._user.is_idle and monotonic() - self._idle_since >= share * self._idle_stop_s:
            self._end_timer()
            self._loss = Loss.STOPPED
            self.discard()

    # -- ending

    async def close(self) -> None:
        """Close the link for good, and wait until it is closed. Idempotent."""
        self._step(LinkEvent.END)
        self._end_timer()
        if (opening := self._tasks.running(_OPENING)) is not None:
            opening.cancel()
        await self._tasks.settled()
        await self._tasks.close()
        await asyncio.gather(_end(self._detach()), *(link.close() for link in self._retired))


_Detached = tuple[Link | None, LinkResources]


async def _end(detached: _Detached) -> None:
    link, resources = detached
    try:
        if link is not None:
            await link.close()
    finally:
        resources.close()


class LinkUsers:
    """The sessions that use a conversation, and the server restarts that their next results still have to report. In
    place of a session, None stands for all requests without a session."""

    # A tuple while there are few: most conversations have one user, and there are as many conversations as sessions.

    __slots__ = ("_notices", "_users")

    def __init__(self) -> None:
        self._users: tuple[LinkSession | None, ...] | set[LinkSession | None] = ()
        self._notices: dict[LinkSession | None, str] | None = None

    def __contains__(self, live: LinkSession | None) -> bool:
        return live in self._users

    def __iter__(self) -> Iterator[LinkSession | None]:
        return iter(self._users)

    def add(self, live: LinkSession | None) -> None:
        """Record that a session uses the conversation."""
        if live in self._users:
            return
        if isinstance(self._users, set):
            self._users.add(live)
        elif len(self._users) < _FEW:
            self._users = (*self._users, live)
        else:
            self._users = {*self._users, live}

    def discard(self, live: LinkSession | None) -> None:
        """Forget a session that no longer uses the conversation."""
        if isinstance(self._users, set):
            self._users.discard(live)
        else:
            self._users = tuple(user for user in self._users if user is not live)
        self.take_notice(live)

    def restarted(self, reason: str) -> None:
        """Record that the server was restarted. The next result of every session reports it."""
        self._notices = dict.fromkeys(self._users, reason)
        self.changed()

    def notify(self, live: LinkSession, reason: str) -> None:
        """Report `reason` with the next result of one session, unless another reason is waiting to be reported."""
        if self._notices is None:
            self._notices = {}
        self._notices.setdefault(live, reason)
        live.changed()

    def changed(self) -> None:
        """Invalidate the decisions on calls that are cached for these sessions."""
        for live in self._users:
            if live is not None:
                live.changed()

    def free_memory(self) -> None:
        """Free the memory that earlier calls of these sessions have left."""
        for live in self._users:
            if live is not None:
                live.free_memory()

    def has_notice(self, live: LinkSession | None) -> bool:
        """Return True if the session's next result has to report a restart of the server."""
        return self._notices is not None and live in self._notices

    def take_notice(self, live: LinkSession | None) -> str | None:
        """Return and delete the reason of a restart that the session's next result must report; None if there is
        none."""
        if self._notices is None:
            return None
        reason = self._notices.pop(live, None)
        self._notices = self._notices or None
        return reason
