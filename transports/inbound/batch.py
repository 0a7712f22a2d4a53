"""Answer JSON-RPC batches: several messages in one body, each of them handled on its own.

MCP 2025-03-26 only, where a server must accept them (Transports §Sending Messages to the Server). The response is one
JSON array. It becomes an event stream if a server sends a notification or a request, if no message comes for a while,
or if the waiting answers become too large.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final

import msgspec

from transports.era import VERSION_KEY
from transports.inbound.event_stream import KEEPALIVE_S, Stream
from transports.inbound.http_requests_and_responses import Send, send_json, send_status
from transports.inbound.modern_request_checks import names_version
from transports.inbound.post_parsing import BATCHES, LengthChecks
from transports.inbound.unauthenticated_limits import MAX_ID_CHARS, Limited, Limits, Refusals
from transports.inbound_port import Handler, OwnedByPeer, Refused, Request
from transports.json_part_counts import REQUEST_PARTS, has_more_parts
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNREADABLE,
    InvalidMessage,
    Message,
    decode_meta,
    encode,
    encode_error,
    too_many_parts,
)
from transports.reply_queue import MAX_QUEUED_BYTES
from transports.sse import COMMENT, encode_event

logger = logging.getLogger(__name__)


ROOM_WITHIN_S: Final = 10.0
"""Seconds that a large answer waits until the client has read earlier messages."""

_SMALL_BYTES: Final = 4_096
"""Maximum bytes of an answer (such as a refusal) that is accepted even beyond `MOST`. A batch has few messages, so
these need little memory."""


class BatchResponse:
    """Send a client the answers to one batch, and other messages of servers meanwhile. If the response is an event
    stream, its events have no ids, so it cannot be resumed: a client could name the last event of only one call."""

    MOST: Final = MAX_QUEUED_BYTES
    """Maximum bytes of answers that wait for the other answers, or for a client that does not read."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._stream: Stream | None = None
        self._held: dict[int, bytes] = {}  # by the number of the message
        self._waiting = 0
        self._writing = asyncio.Lock()

    async def emit(self, message: bytes) -> None:
        """Send the client a notification or a request of a server, on the event stream."""
        async with self._writing:
            stream = await self._streaming()
            await stream.write(encode_event(message))

    async def answer(self, number: int, answer: bytes) -> bool:
        """Send the answer to message number `number` of the batch, now or with the others at the end. Return False, and
        do not send it, if too many bytes wait for the client."""
        if self._is_full(answer) and (not await self._make_room() or self._is_full(answer)):
            return False
        self._waiting += len(answer)
        async with self._writing:
            if self._stream is None:
                self._held[number] = answer
            else:
                await self._write(self._stream, answer)
        return True

    async def _make_room(self) -> bool:
        """Write the waiting answers to the event stream. Return False if the client does not read what was written
        earlier within `ROOM_WITHIN_S`."""
        try:
            # The timeout does not cover the write: a write that is cut short would lose the held answers.
            async with asyncio.timeout(ROOM_WITHIN_S):
                await self._writing.acquire()
        except TimeoutError:
            return False
        try:
            await self._streaming()
        finally:
            self._writing.release()
        return True

    def _is_full(self, answer: bytes) -> bool:
        return self._waiting + len(answer) > self.MOST and self._waiting > 0 and len(answer) > _SMALL_BYTES

    async def during(self, handling: Coroutine[None, None, None]) -> None:
        """Run `handling`, which handles the batch, and send keepalive comments meanwhile. Then complete the
        response."""
        keeper = asyncio.create_task(self._keep_alive())
        try:
            await handling
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await self.end()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            async with self._writing:
                stream = await self._streaming()
                await stream.write(COMMENT)

    async def end(self) -> None:
        """Complete the response, because every message of the batch is done."""
        async with self._writing:
            if self._stream is not None:
                await self._stream.end()
            elif self._held:
                answers = b",".join(self._held[number] for number in sorted(self._held))
                await send_json(self._send, 200, b"[" + answers + b"]")
            else:
                await send_status(self._send, 202)

    async def _streaming(self) -> Stream:
        """Return the event stream. If it has not begun, begin it with the waiting answers."""
        if self._stream is None:
            self._stream = Stream(self._send)
            await self._stream.start([])
            held, self._held = self._held, {}
            for answer in held.values():
                await self._write(self._stream, answer)
        return self._stream

    async def _write(self, stream: Stream, answer: bytes) -> None:
        try:
            await stream.write(encode_event(answer))
        finally:
            self._waiting -= len(answer)


class Batches:
    """Answer batches of at most `limits.batch_messages` messages."""

    def __init__(self, handler: Handler, lengths: LengthChecks, limits: Limits, refusals: Refusals) -> None:
        self._handler = handler
        self._lengths = lengths
        self._most = limits.batch_messages
        self._refusals = refusals

    async def accepted(self, body: bytes, request: Request) -> list[msgspec.Raw]:
        """Check a batch, and return its messages as raw JSON. `request` is the batch's HTTP request.

        Raises:
            Refused: the batch is too long, is no array, or its client may not send it. Nothing was started.
            OwnedByPeer: another process has the session. Nothing was started.
        """
        parts = self._split(body)
        version = await self._handler.negotiated(request)
        if version != BATCHES:
            raise Refused(
                400, INVALID_REQUEST, "The body must be a single JSON-RPC message in this session's revision."
            )
        return parts

    async def handle(
        self,
        parts: list[msgspec.Raw],
        request: Request,
        client: BatchResponse,
        pass_on: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Handle the messages `parts` of a batch concurrently, until each request among them has its answer. `client`
        gets the answers. If another process has the session by now, `pass_on` sends that process a notification or a
        response of the client."""
        async with asyncio.TaskGroup() as group:
            for number, part in enumerate(parts):
                group.create_task(self._handle(number, part, request, client, pass_on))
                await asyncio.sleep(0)  # other clients are served between the messages of this one

    def _split(self, body: bytes) -> list[msgspec.Raw]:
        """Split a batch into its raw messages. Stop decoding at the first message beyond the limit, so that a long
        array costs no more."""
        try:
            body.decode()  # the messages are handed on unread
            parts = _decoder(self._most).decode(body)
        except msgspec.ValidationError:
            self._refusals[Limited.BATCH] += 1
            raise Refused(
                400, INVALID_REQUEST, f"A batch holds {self._most} messages at most.", reason="batch_too_large"
            ) from None
        except UNREADABLE as error:
            raise Refused(400, PARSE_ERROR, f"not a JSON-RPC batch: {error}") from None
        if has_more_parts(body, REQUEST_PARTS):
            raise Refused(400, PARSE_ERROR, str(too_many_parts(REQUEST_PARTS)))
        found: list[msgspec.Raw] = [part for part in msgspec.structs.astuple(parts) if part is not msgspec.UNSET]
        if not found:
            raise Refused(400, INVALID_REQUEST, "A batch must not be empty.")
        return found

    async def _handle(
        self,
        number: int,
        part: msgspec.Raw,
        request: Request,
        client: BatchResponse,
        pass_on: Callable[[bytes], Awaitable[None]],
    ) -> None:
        message: Message | None = None
        refused: Refused
        try:
            data = bytes(part)
            message = self._lengths.parse(data)
            answer = await self._one(message, msgspec.structs.replace(request, body_bytes=len(data)), client)
        except Refused as error:
            refused = error
        except InvalidMessage as invalid:
            refused = Refused(200, invalid.code, str(invalid))
        except msgspec.MsgspecError as unreadable:
            refused = Refused(200, INVALID_REQUEST, str(unreadable))
        except OwnedByPeer:
            if message is not None and not message.is_request:  # nobody is told to try again
                await _pass_on_or_log(pass_on, bytes(part))
                return
            refused = Refused(503, INTERNAL_ERROR, "The session is changing hands. Nothing was done: try again.")
        except Exception:
            logger.exception("a message of a batch failed")
            refused = Refused(500, INTERNAL_ERROR, "The gateway failed to handle this message. Its outcome is unknown.")
        else:
            if answer is None or await client.answer(number, answer):
                return
            refused = Refused(500, INTERNAL_ERROR, "Done, but too many answers of the batch are not read.")
        refused = self._handler.refused(request.headers, refused, again=request.again)
        if message is None or message.is_request:
            await client.answer(number, encode_error(_id_in(part), refused.error()))

    async def _one(self, message: Message, request: Request, client: BatchResponse) -> bytes | None:
        """Handle one message of the batch. Return the response to a request, after the notifications about it were sent
        to the client. Return None for any other message."""
        if message.method == "initialize":
            raise Refused(200, INVALID_REQUEST, "initialize must not be part of a batch.")
        params = message.params_object() if message.method is not msgspec.UNSET else {}
        if "_meta" in params and names_version(decode_meta(params["_meta"])):
            raise Refused(400, INVALID_REQUEST, f"A message whose _meta has {VERSION_KEY} must not be part of a batch.")
        self._lengths.check(params, None)
        request = msgspec.structs.replace(request, message=message, params=params)
        if message.is_notification:
            await self._handler.notify(request)
            return None
        if message.is_response:
            await self._handler.respond(request)
            return None
        answer = await self._handler.call(request)
        try:
            while (frame := await answer.replies.next()) is not None:
                if answer.is_doubtful:
                    frame = await answer.confirmed(frame)
                if frame.final:
                    return frame.data
                await client.emit(frame.data)
        finally:
            answer.done()
        raise Refused(500, INTERNAL_ERROR, "The call ended without an answer.")


async def _pass_on_or_log(pass_on: Callable[[bytes], Awaitable[None]], message: bytes) -> None:
    try:
        await pass_on(message)
    except Exception as error:  # of one message, which must not end the others
        logger.warning("a message of a batch is lost, because its session changes hands: %r", error)


@functools.lru_cache(maxsize=4)
def _decoder(most: int) -> msgspec.json.Decoder[Any]:
    """Return a decoder for JSON arrays of at most `most` messages. A plain decoder for lists would check the number
    only after it had decoded the whole array."""
    fields = [(f"message_{number}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for number in range(most)]
    return msgspec.json.Decoder(msgspec.defstruct("Batch", fields, array_like=True, forbid_unknown_fields=True))


class _Named(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)]


def _id_in(part: msgspec.Raw) -> bytes:
    """Return the encoded request id in a message of a batch; `null` if it has no valid one."""
    try:
        return encode(msgspec.json.decode(part, type=_Named).id)
    except UNREADABLE:
        return b"null"
