"""Our side of the talk with one upstream in one era: handshake, ids, calls in flight, and what happens when it dies.

A conversation outlives its link: when the upstream's process is gone, the next call opens a new link, replays the
handshake, and the first result of every session that had used the old one says so.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import Calls, framed, look_after
from gateway.calls.log_level import want_log_level
from gateway.calls.pending import PendingRequests
from gateway.context.link_resources import LinkResources
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.protocol.handshake import HandshakeRefused
from session_store.context import bound_session
from transports.era import Era
from transports.jsonrpc import (
    Message,
    Object,
    encode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    splice,
)
from transports.turns import at_once, in_turns, is_large
from transports.upstream_port import Link, LinkClosed, Upstream, UpstreamUnavailable

if TYPE_CHECKING:
    from gateway.calls.live_session import LiveSession
    from gateway.calls.server_messages import Router
    from gateway.upstreams.inventory import Lists

__all__ = ["LOSSES", "Conversation"]

logger = logging.getLogger(__name__)

TICK_S: Final = 0.25
"""How often calls in flight are looked at: whether they are late, or their client should hear something."""

STOPPED, CRASHED, FORGOTTEN = "idle_stop", "crash", "upstream_session"
LOSSES: Final = frozenset({STOPPED, CRASHED, FORGOTTEN})


class Conversation:
    """Calls, notifications and answers over one link at a time.

    `grant` gives what a link is given of its session, `handshake` the `initialize` params of a legacy conversation,
    `restore` what to send after the handshake was replayed (log level, subscriptions); all are asked anew at every
    opening. `record_use` remembers that a session uses this upstream, and says whether it did so in an earlier process;
    `remote_session_changed` remembers what a later link can go on with; `known` is then the handshake's result.
    """

    # Without a dictionary each: there are as many as there are sessions.
    __slots__ = """__weakref__ _closing _ended _grant _granted _handshake _idle _idle_stop_s _known
        _last_number _record_use _loss _opening _own _resending _restarts _restore _retired _router
        _start_timeout_s _tick_s _ticking _to_tell _upstream _was_open _remote_session_changed call_timeout_s calls era
        initialize_result last_words link lists log_level name suspend_s restarts users""".split()

    def __init__(
        self,
        upstream: Upstream,
        era: Era,
        *,
        name: str,
        router: "Router",
        grant: Callable[[], Awaitable[LinkResources]],
        handshake: Callable[[], bytes] | None,
        restore: Callable[[], list[bytes]],
        record_use: Callable[["LiveSession"], Awaitable[bool]],
        remote_session_changed: Callable[[str], Awaitable[None]],
        known: Callable[[], bytes | None],
        start_timeout_s: float,
        call_timeout_s: float,
        idle_stop_s: float | None,
        suspend_s: float,
        restarts: Counter[str],
    ) -> None:
        self.name = name
        self.era = era
        self.initialize_result: bytes | None = None
        self.calls = Calls()
        self._upstream = upstream
        self._router = router
        self._grant = grant
        self._granted = LinkResources()
        self._handshake = handshake
        self._restore = restore
        self._record_use = record_use
        self._remote_session_changed = remote_session_changed
        self._known = known
        self._retired: list[Link] = []
        self._restarts = restarts
        self._start_timeout_s = start_timeout_s
        self.call_timeout_s = call_timeout_s
        self._idle_stop_s = idle_stop_s
        self.suspend_s = suspend_s  # how long a call of a modern client waits for it
        self.log_level = ""  # what a legacy server was asked for, on behalf of modern clients
        self.lists: Lists | None = None
        self._own = PendingRequests()
        self.link: Link | None = None
        self.restarts = 0
        self.last_words: list[str] = []  # of a process that is gone
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_s = min(TICK_S, call_timeout_s / 4)
        self._last_number = 0
        self.users: set[LiveSession | None] = set()  # who has used the present link or one before it
        self._to_tell: dict[LiveSession | None, str] = {}
        self._was_open = False
        self._loss = ""
        self._ended = False
        self._resending: set[asyncio.Task[None]] = set()

    # -- opening

    async def ready(self) -> None:
        """Have an open link. Concurrent callers share one opening.

        Raises:
            UpstreamUnavailable, HandshakeRefused: it cannot be had.
        """
        if self.link is not None and self._opening is None:
            return
        if self._ended:
            raise UpstreamUnavailable(f"the session with server {self.name!r} has ended")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        try:
            # Shielded: one impatient client must not spoil the start for the others.
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # by `close`, not by whoever waits here
                raise UpstreamUnavailable(f"the session with server {self.name!r} has ended") from None
            raise

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # every waiter may have left; the failure has been told to those that stayed

    async def _open(self) -> None:
        if self._closing is not None:
            await self._closing
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._granted = await self._grant()
                given = self._granted.given if self._loss != FORGOTTEN else replace(self._granted.given, resume="")
                with bound_session(self._granted.session):
                    self.link = await self._upstream.connect(given, self)
                if self._handshake is not None and given.resume:
                    self.initialize_result = self.initialize_result or self._known()
                elif self._handshake is not None:
                    await self._initialize(self._handshake())
                    self.log_level = ""
                    for frame in self._restore():
                        self._link_or_fail().send(frame)
                    await self._remote_session_changed(self._link_or_fail().resume)
        except TimeoutError:
            await self._drop()
            late = f"server {self.name!r} did not start within {self._start_timeout_s:g} s"
            raise UpstreamUnavailable(late) from None
        except LinkClosed as error:
            await self._drop()
            raise UpstreamUnavailable(f"server {self.name!r} ended while it was starting: {error}") from None
        except BaseException:
            await self._drop()
            raise
        if self._loss:
            self._to_tell = dict.fromkeys(self.users, self._loss)
            self._restarts[self._loss] += 1
            self.restarts += 1
            logger.info("server %s was started again after %s", self.name, self._loss)
        self._loss = ""
        self._was_open = True
        self._rest()

    def request(self, method: str, params: bytes) -> None:
        """A request whose answer nobody waits for."""
        self._tell(encode_request(self._next_number(), method, params))

    def _tell(self, frame: bytes) -> None:
        with contextlib.suppress(LinkClosed):  # it is gone before it heard
            self._link_or_fail().send(frame)

    def _link_or_fail(self) -> Link:
        if self.link is None:
            raise LinkClosed("it exited")
        return self.link

    async def _initialize(self, params: bytes) -> None:
        answer = await self.ask("initialize", params)
        if isinstance(answer.error, msgspec.Raw):
            raise HandshakeRefused(answer.error)
        assert isinstance(answer.result, msgspec.Raw)
        self.initialize_result = splice(answer.result)

    async def _drop(self) -> None:
        link, self.link = self.link, None
        granted, self._granted = self._granted, LinkResources()
        try:
            if link is not None:
                await link.close()
        finally:
            granted.close()

    def _discard(self) -> None:
        """Be rid of a link that is of no more use. The next opening waits for its end, so two never overlap."""
        if self.link is not None:
            self._closing = asyncio.create_task(self._drop())
            self._closing.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        if self._closing is task:
            self._closing = None

    # -- talking

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    async def ask(self, method: str, params: bytes | None) -> Message:
        """A request of our own. Raises `LinkClosed` when the link ends before the answer."""
        link, number = self._link_or_fail(), self._next_number()
        answer = self._own.expect(number)
        try:
            link.send(encode_request(number, method, params))
        except BaseException:
            answer.cancel()
            raise
        return await answer

    async def start(self, exchange: Exchange, params: Object, meta: Object, *, again: bool = False) -> None:
        """Send a client's request upstream, opening the link if need be.

        A link that turns out to be closed before it took the message is opened again, once: nothing was executed.

        Raises:
            UpstreamUnavailable, HandshakeRefused: nothing reached the upstream.
        """
        await self.join(exchange.live)
        for last in (False, True):
            await self.ready()
            framing = framed(exchange, self._next_number(), params, meta)
            number, frame = await in_turns(framing) if is_large(params) else at_once(framing)
            if exchange.replies.abandoned or exchange.replies.is_closed:
                self.calls.end(exchange)  # nobody waits for it any more
                return
            if self.era is Era.LEGACY and exchange.caller is not None and exchange.caller.log_level:
                want_log_level(self, exchange.caller.log_level)
            try:
                self._write(exchange, number, frame, None if again else (params, meta))  # twice is enough
                return
            except LinkClosed as error:
                if last:
                    raise UpstreamUnavailable(f"server {self.name!r} takes no message: {error}") from None
                self._discard()

    def is_open_to(self, live: "LiveSession") -> bool:
        """Whether a call of that session can be written at once."""
        return self.link is not None and self._opening is None and live in self.users

    def start_now(self, exchange: Exchange, params: Object, meta: Object) -> bool:
        """As `start`, where nothing has to be waited for; else False, and nothing was done."""
        try:
            self._write(exchange, *at_once(framed(exchange, self._next_number(), params, meta)), (params, meta))
        except LinkClosed:
            return False
        return True

    def _write(self, exchange: Exchange, number: int, frame: bytes, sent: tuple[Object, Object] | None) -> None:
        link = self._link_or_fail()
        link.send(frame)
        exchange.number = number
        exchange.conversation = self
        exchange.sent = sent if link.may_forget else None
        self.calls.send(exchange)
        self._watch(exchange)
        exchange.written_at = exchange.heard_at

    def wait(self, exchange: Exchange) -> None:
        """The server needs more before it answers: the call stays in flight, with a deadline and signs of life."""
        self.calls.wait(exchange)
        self._watch(exchange)

    def end(self, exchange: Exchange) -> bool:
        """Remove a call, and withdraw what its client was asked for it. False when it was not in flight."""
        if not self.calls.end(exchange):
            return False
        if exchange.live is not None:
            exchange.live.unask(exchange)
        self._rest()
        return True

    async def join(self, live: "LiveSession | None") -> None:
        """The first call of a session. Remembered before it is sent: what is not remembered could be lost silently."""
        if live in self.users:
            return
        self.users.add(live)
        if live is None:
            return
        try:
            if await self._record_use(live):
                self._to_tell.setdefault(live, live.new_process)
        except BaseException:
            self.users.discard(live)
            raise

    def notify(self, method: str, params: bytes | None) -> None:
        """Pass a notification on, if there is anyone to hear it."""
        if self.link is None:
            return
        try:
            self.link.send(splice(encode_notification(method, params)))
        except LinkClosed:
            logger.debug("server %s no longer hears %s", self.name, method)

    def answer(self, request_id: bytes, message: Message) -> None:
        """The client's answer to a request of the server's; `request_id` is the server's own id."""
        if isinstance(message.result, msgspec.Raw):
            frame = encode_result(request_id, splice(message.result))
        else:
            assert isinstance(message.error, msgspec.Raw)
            frame = encode_error(request_id, splice(message.error))
        self._tell(frame)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Answer a request of the server's with an error of ours."""
        self._tell(encode_error(request_id, {"code": code, "message": reason}))

    def acknowledge(self, request_id: bytes) -> None:
        """Answer a ping."""
        self._tell(encode_result(request_id, b"{}"))

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        """The client gave a call up: tell the server, and answer what is still waiting."""
        if not self.end(exchange):
            return
        self.notify("notifications/cancelled", encode({"requestId": exchange.number, "reason": reason}))
        exchange.fail(code, f"Cancelled: {reason}")

    def fail(self, exchange: Exchange, code: int, reason: str) -> None:
        """Answer a call with an error of ours; the server hears nothing of it."""
        self.end(exchange)
        exchange.fail(code, reason)

    # -- hearing (LinkEvents)

    def message(self, message: Message) -> None:
        if message.is_response:
            self._settle(message)
        elif message.is_request:
            self._router.asked(self, message)
        else:
            self._router.told(self, message)

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        for exchange in [e for number, e in self.calls.sent.items() if request_id in (None, number)]:
            self.fail(exchange, OUTCOME_UNKNOWN, reason)
        self._own.fail(request_id, LinkClosed(reason))

    def refused(self, request_id: int | str, reason: str) -> None:
        self._own.fail(request_id, UpstreamUnavailable(reason))
        if isinstance(request_id, int) and request_id in self.calls.sent:
            self.fail(self.calls.sent[request_id], UPSTREAM_UNAVAILABLE, reason)

    def unsent(self, link: Link, request_id: int | str | None, reason: str) -> None:
        if link is self.link:
            # What else is on its way may still be answered; whatever comes now goes over another link.
            self.link = None
            self._retired = [*self._retired[-7:], link]
            self._granted = LinkResources()
            self._loss = FORGOTTEN
        if request_id is not None:
            self._own.fail(request_id, LinkClosed(reason))
        exchange = self.calls.sent.get(request_id) if isinstance(request_id, int) else None
        if exchange is not None and exchange.sent is not None:
            again, exchange.sent = exchange.sent, None
            self.calls.wait(exchange)
            task = asyncio.create_task(self._send_again(exchange, *again))
            self._resending.add(task)
            task.add_done_callback(self._resending.discard)
        elif exchange is not None:
            self.fail(exchange, UPSTREAM_UNAVAILABLE, reason)

    async def _send_again(self, exchange: Exchange, params: Object, meta: Object) -> None:
        try:
            await self.start(exchange, params, meta, again=True)
        except UpstreamUnavailable as error:
            self.fail(exchange, UPSTREAM_UNAVAILABLE, str(error))
        except HandshakeRefused as error:
            self.end(exchange)
            exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))

    def closed(self, reason: str) -> None:
        self.last_words = [] if self.link is None else self.link.last_words[-10:]
        self.link = None
        self._granted.close()
        self._granted = LinkResources()
        if self._was_open and not self._loss:
            self._loss = CRASHED
        if self.calls.sent or self._own:
            logger.warning("%s with %d calls in flight", reason, len(self.calls.sent))
        unknown = f"{reason} before it answered; whether the call took effect is unknown"
        for exchange in list(self.calls.sent.values()):  # the others need no more than a link for their next round
            self.fail(exchange, OUTCOME_UNKNOWN, unknown)
        self._own.fail(None, LinkClosed(reason))
        self._router.lost(self)

    def _settle(self, message: Message) -> None:
        if self._own.settle(message):
            return
        exchange = self.calls.take(message.id, is_alone=not self._own)
        if exchange is None:
            logger.debug("server %s answered a request nobody waits for", self.name)
            return
        restarted = None if message.result is msgspec.UNSET else self._to_tell.pop(exchange.live, None)
        try:
            exchange.finish(message, restarted)
        except Exception as error:  # whatever it is that the server has sent, its call must not wait for ever
            if not isinstance(error, msgspec.MsgspecError | ValueError):
                logger.exception("an answer of server %s could not be passed on", self.name)
            self.end(exchange)
            exchange.fail(OUTCOME_UNKNOWN, f"server {self.name!r} answered with a result that cannot be read")
        self._rest()

    # -- time

    def _watch(self, exchange: Exchange) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        exchange.heard_at = monotonic()
        # One timer for all calls: one for each would cost more than writing the call.
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(self._tick_s, self._tick) if self.calls else None
        look_after(self, monotonic())

    def _rest(self) -> None:
        if self._idle_stop_s is None or self.calls or self.link is None:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_stop_s, self._stop_idle)

    def _stop_idle(self) -> None:
        self._idle = None
        if self.calls or self._own or self.link is None:
            return
        self._loss = STOPPED
        self._discard()

    # -- ending

    def forget(self, live: "LiveSession") -> None:
        """That session is over."""
        self.users.discard(live)
        self._to_tell.pop(live, None)

    async def close(self) -> None:
        """End for good: nothing of it is left when this returns. Idempotent."""
        self._ended = True
        for timer in (self._idle, self._ticking):
            if timer is not None:
                timer.cancel()
        self._ticking = None
        for exchange in self.calls:
            self.fail(exchange, UPSTREAM_UNAVAILABLE, "The session has ended.")
        if self._opening is not None:
            self._opening.cancel()
        waiting = [task for task in (self._opening, self._closing, *self._resending) if task is not None]
        for task in self._resending:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(self._drop(), *(link.close() for link in self._retired))
