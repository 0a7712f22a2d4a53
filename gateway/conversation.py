"""Our side of the talk with one upstream in one era: handshake, ids, calls in flight, and what happens when it dies.

A conversation outlives its link: when the upstream's process is gone, the next call opens a new link, replays the
handshake, and the first result of every session that had used the old one says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gateway.access import Grant
from gateway.errors import CALL_TIMED_OUT, CANCELLED, OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.exchange import Exchange
from session_store.context import bound_session
from transports.base import Era, Link, LinkClosed, Upstream, UpstreamUnavailable
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

if TYPE_CHECKING:
    from gateway.live import LiveSession

__all__ = ["Conversation", "HandshakeRefused", "Router"]

logger = logging.getLogger(__name__)

TICK_S: Final = 0.25
"""How often calls in flight are looked at: whether they are late, or their client should hear something."""

STOPPED: Final = "idle_stop"
CRASHED: Final = "crash"


class HandshakeRefused(Exception):
    """The upstream answered `initialize` with an error, which is passed on as it is."""

    def __init__(self, error: msgspec.Raw) -> None:
        super().__init__("the server refused the handshake")
        self.error = error


class Router(Protocol):
    """Finds the client for what a server sends on its own. On stdio a message does not say which call it belongs to."""

    def asked(self, conversation: "Conversation", message: Message) -> None:
        """The server wants something of a client."""
        ...

    def told(self, conversation: "Conversation", message: Message) -> None:
        """The server sent a notification."""
        ...

    def lost(self, conversation: "Conversation") -> None:
        """The server is gone: what it asked needs no answer any more."""
        ...


class Conversation:
    """Calls, notifications and answers over one link at a time.

    `grant` gives what a link is given of its session, `handshake` the `initialize` params of a legacy conversation,
    `restore` what to send after the handshake was replayed (log level, subscriptions); all are asked anew at every
    opening. `linked` remembers that a session uses this upstream, and says whether it did so in an earlier process.
    """

    def __init__(
        self,
        upstream: Upstream,
        era: Era,
        *,
        name: str,
        router: Router,
        grant: Callable[[], Awaitable[Grant]],
        handshake: Callable[[], bytes] | None,
        restore: Callable[[], list[bytes]],
        linked: Callable[["LiveSession"], Awaitable[bool]],
        start_timeout_s: float,
        call_timeout_s: float,
        idle_stop_s: float | None,
    ) -> None:
        self.name = name
        self.era = era
        self.initialize_result: bytes | None = None
        self.pending: dict[int, Exchange] = {}
        self._upstream = upstream
        self._router = router
        self._grant = grant
        self._granted = Grant()
        self._handshake = handshake
        self._restore = restore
        self._linked = linked
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self._idle_stop_s = idle_stop_s
        self._own: dict[int, asyncio.Future[Message]] = {}
        self._link: Link | None = None
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

    @property
    def pid(self) -> int | None:
        """The process behind it, while there is one."""
        return None if self._link is None else self._link.pid

    # -- opening

    async def ready(self) -> None:
        """Have an open link. Concurrent callers share one opening.

        Raises:
            UpstreamUnavailable, HandshakeRefused: it cannot be had.
        """
        if self._link is not None and self._opening is None:
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
                with bound_session(self._granted.session):
                    self._link = await self._upstream.connect(self._granted.env, self)
                if self._handshake is not None:
                    await self._initialize(self._handshake())
                    for frame in self._restore():
                        self._link_or_fail().send(frame)
        except TimeoutError:
            await self._drop()
            raise UpstreamUnavailable(
                f"server {self.name!r} did not start within {self._start_timeout_s:g} s"
            ) from None
        except LinkClosed as error:
            await self._drop()
            raise UpstreamUnavailable(f"server {self.name!r} ended while it was starting: {error}") from None
        except BaseException:
            await self._drop()
            raise
        if self._loss:
            self._to_tell = dict.fromkeys(self.users, self._loss)
            logger.info("server %s was started again after %s", self.name, self._loss)
        self._loss = ""
        self._was_open = True
        self._rest()

    def _link_or_fail(self) -> Link:
        if self._link is None:
            raise LinkClosed("it exited")
        return self._link

    async def _initialize(self, params: bytes) -> None:
        answer = await self.ask("initialize", params)
        if isinstance(answer.error, msgspec.Raw):
            raise HandshakeRefused(answer.error)
        assert isinstance(answer.result, msgspec.Raw)
        self.initialize_result = splice(answer.result)

    async def _drop(self) -> None:
        link, self._link = self._link, None
        granted, self._granted = self._granted, Grant()
        try:
            if link is not None:
                await link.close()
        finally:
            granted.close()

    def _discard(self) -> None:
        """Be rid of a link that is of no more use. The next opening waits for its end, so two never overlap."""
        if self._link is not None:
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
        number = self._next_number()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._own[number] = answer
        try:
            self._link_or_fail().send(encode_request(number, method, params))
            return await answer
        finally:
            self._own.pop(number, None)

    async def start(self, exchange: Exchange, params: Object, meta: Object) -> None:
        """Send a client's request upstream, opening the link if need be.

        A link that turns out to be closed before it took the message is opened again, once: nothing was executed.

        Raises:
            UpstreamUnavailable, HandshakeRefused: nothing reached the upstream.
        """
        if exchange.live not in self.users:
            await self._join(exchange.live)
        for last in (False, True):
            await self.ready()
            if exchange.replies.abandoned:
                return
            try:
                self._write(exchange, params, meta)
                return
            except LinkClosed as error:
                if last:
                    raise UpstreamUnavailable(f"server {self.name!r} takes no message: {error}") from None
                self._discard()

    def start_now(self, exchange: Exchange, params: Object, meta: Object) -> bool:
        """As `start`, where nothing has to be waited for; else False, and nothing was done."""
        if self._link is None or self._opening is not None or exchange.live not in self.users:
            return False
        try:
            self._write(exchange, params, meta)
        except LinkClosed:
            return False
        return True

    def _write(self, exchange: Exchange, params: Object, meta: Object) -> None:
        number = self._next_number()
        self._link_or_fail().send(self._frame(exchange, number, params, meta))
        exchange.number = number
        exchange.conversation = self
        self.pending[number] = exchange
        self._watch(exchange)

    async def _join(self, live: "LiveSession | None") -> None:
        """The first call of a session. Remembered before it is sent: what is not remembered could be lost silently."""
        self.users.add(live)
        if live is None:
            return
        try:
            if await self._linked(live):
                self._to_tell.setdefault(live, live.new_process)
        except BaseException:
            self.users.discard(live)
            raise

    def _frame(self, exchange: Exchange, number: int, params: Object, meta: Object) -> bytes:
        exchange.progress_token = meta.get("progressToken")
        if exchange.progress_token is not None:
            meta = meta | {"progressToken": msgspec.Raw(encode(number))}
        if meta:
            params = params | {"_meta": msgspec.Raw(encode(meta))}
        body = encode(params) if params else None
        return splice(encode_request(number, exchange.method, body))

    def notify(self, method: str, params: bytes | None) -> None:
        """Pass a notification on, if there is anyone to hear it."""
        if self._link is None:
            return
        try:
            self._link.send(splice(encode_notification(method, params)))
        except LinkClosed:
            logger.debug("server %s no longer hears %s", self.name, method)

    def answer(self, request_id: bytes, message: Message) -> None:
        """The client's answer to a request of the server's; `request_id` is the server's own id."""
        if isinstance(message.result, msgspec.Raw):
            frame = encode_result(request_id, splice(message.result))
        else:
            assert isinstance(message.error, msgspec.Raw)
            frame = encode_error(request_id, splice(message.error))
        self._reply(frame)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Answer a request of the server's with an error of ours."""
        self._reply(encode_error(request_id, {"code": code, "message": reason}))

    def acknowledge(self, request_id: bytes) -> None:
        """Answer a ping."""
        self._reply(encode_result(request_id, b"{}"))

    def _reply(self, frame: bytes) -> None:
        try:
            self._link_or_fail().send(frame)
        except LinkClosed:
            logger.debug("server %s is gone before it got its answer", self.name)

    def cancel(self, exchange: Exchange, reason: str) -> None:
        """The client gave a call up: tell the server, and answer what is still waiting."""
        if self.pending.pop(exchange.number, None) is None:
            return
        self.notify("notifications/cancelled", encode({"requestId": exchange.number, "reason": reason}))
        self._rest()
        exchange.fail(CANCELLED, f"Cancelled: {reason}")

    def give_up(self, exchange: Exchange, *, lost: bool) -> bool:
        """Answer a call of a session that is `lost` to another replica; False when it is not."""
        if lost and exchange.number in self.pending:
            reason = "another gateway has taken the session over; whether the call took effect is unknown"
            self._fail(exchange, OUTCOME_UNKNOWN, reason)
        return lost

    # -- hearing (LinkEvents)

    def message(self, message: Message) -> None:
        if message.is_response:
            self._settle(message)
        elif message.is_request:
            self._router.asked(self, message)
        else:
            self._router.told(self, message)

    def unreadable(self, request_id: int | None, reason: str) -> None:
        lost = [self.pending[request_id]] if request_id in self.pending else []
        if request_id is None:
            lost = list(self.pending.values())
        for exchange in lost:
            self._fail(exchange, OUTCOME_UNKNOWN, reason)
        for number, answer in self._own.items():
            if request_id in (None, number) and not answer.done():
                answer.set_exception(LinkClosed(reason))

    def closed(self, reason: str) -> None:
        self._link = None
        self._granted.close()
        self._granted = Grant()
        if self._was_open and not self._loss:
            self._loss = CRASHED
        if self.pending or self._own:
            logger.warning("%s with %d calls in flight", reason, len(self.pending))
        for exchange in list(self.pending.values()):
            self._fail(
                exchange, OUTCOME_UNKNOWN, f"{reason} before it answered; whether the call took effect is unknown"
            )
        for answer in self._own.values():
            if not answer.done():
                answer.set_exception(LinkClosed(reason))
        self._router.lost(self)

    def _settle(self, message: Message) -> None:
        number = message.id
        own = self._own.get(number) if isinstance(number, int) else None
        if own is not None:
            if not own.done():
                own.set_result(message)
            return
        exchange = self.pending.pop(number, None) if isinstance(number, int) else None
        if exchange is None:
            logger.debug("server %s answered a request nobody waits for", self.name)
            return
        self._rest()
        restarted = None if message.result is msgspec.UNSET else self._to_tell.pop(exchange.live, None)
        try:
            exchange.finish(message, restarted)
        except (msgspec.MsgspecError, ValueError):
            exchange.fail(OUTCOME_UNKNOWN, f"server {self.name!r} answered with a result that is no object")

    def _fail(self, exchange: Exchange, code: int, reason: str) -> None:
        self.pending.pop(exchange.number, None)
        self._rest()
        exchange.fail(code, reason)

    # -- time

    def _watch(self, exchange: Exchange) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        loop = asyncio.get_running_loop()
        exchange.heard_at = loop.time()
        # One timer for all calls: one for each would cost more than writing the call.
        if self._ticking is None:
            self._ticking = loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._ticking = loop.call_later(self._tick_s, self._tick) if self.pending else None
        for exchange in list(self.pending.values()):
            exchange.replies.tick(now)
            if now - exchange.heard_at >= self._call_timeout_s and not exchange.is_subscription:
                params = {"requestId": exchange.number, "reason": "timed out"}
                self.notify("notifications/cancelled", encode(params))
                self._fail(
                    exchange,
                    CALL_TIMED_OUT,
                    f"server {self.name!r} did not answer within {self._call_timeout_s:g} s; it was told to stop",
                )

    def _rest(self) -> None:
        if self._idle_stop_s is None or self.pending or self._link is None:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_stop_s, self._stop_idle)

    def _stop_idle(self) -> None:
        self._idle = None
        if self.pending or self._own or self._link is None:
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
        for exchange in list(self.pending.values()):
            self._fail(exchange, UPSTREAM_UNAVAILABLE, "The session has ended.")
        if self._opening is not None:
            self._opening.cancel()
        waiting = [task for task in (self._opening, self._closing) if task is not None]
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._drop()
