"""JSON-RPC batches: several messages in one body, each of them answered on its own.

MCP 2025-03-26 only, where a server must accept them (Transports §Sending Messages to the Server). Does not know HTTP:
`streamable_http` reads the batch, and `batch_response` sends what its messages cause.
"""

import asyncio
import functools
import logging
from typing import Annotated, Any, Final, Protocol

import msgspec

from transports.inbound.limits import MAX_ID_CHARS, Limited, Limits, Refusals
from transports.inbound.modern import VERSION_KEY, names_version
from transports.inbound.sizes import Sizes
from transports.inbound_port import Handler, OwnedByPeer, Refused, Request
from transports.json_shape import REQUEST_PARTS, has_more_parts
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    InvalidMessage,
    Message,
    decode_meta,
    encode,
    encode_error,
    too_many_parts,
)

__all__ = ["BATCHES", "BatchClient", "Batches"]

logger = logging.getLogger(__name__)

BATCHES: Final = "2025-03-26"
"""The only revision with batches. It is also the revision of a request that names none."""


class BatchClient(Protocol):
    """Where the messages for the client of one batch go."""

    async def emit(self, message: bytes) -> None:
        """Send a message that is no answer."""
        ...

    async def answer(self, number: int, answer: bytes) -> bool:
        """Send the answer to the message of that number, now or with the others. False if there is no room for it."""
        ...


class Batches:
    """Answers batches of a bounded length."""

    def __init__(self, handler: Handler, sizes: Sizes, limits: Limits, refusals: Refusals) -> None:
        self._handler = handler
        self._sizes = sizes
        self._most = limits.batch_messages
        self._refusals = refusals

    async def accepted(self, body: bytes, request: Request) -> list[msgspec.Raw]:
        """The messages of a batch. `request` is its HTTP request.

        Raises:
            Refused: the batch is too long, is not an array, or its client may not send it. Nothing was started.
            OwnedByPeer: another process has the session. Nothing was started.
        """
        parts = self._split(body)
        version = await self._handler.negotiated(request)
        if version != BATCHES:
            raise Refused(
                400, INVALID_REQUEST, "The body must be a single JSON-RPC message in this session's revision."
            )
        return parts

    async def handle(self, parts: list[msgspec.Raw], request: Request, client: BatchClient) -> None:
        """Handle the messages of a batch side by side, until each of them has its answer."""
        async with asyncio.TaskGroup() as group:
            for number, part in enumerate(parts):
                group.create_task(self._handle(number, part, request, client))
                await asyncio.sleep(0)  # other clients are served between the messages of this one

    def _split(self, body: bytes) -> list[msgspec.Raw]:
        """The messages, not yet parsed. The reading ends with the first one too many, so a long array costs no more."""
        try:
            parts = _decoder(self._most).decode(body)
        except msgspec.ValidationError:
            self._refusals[Limited.BATCH] += 1
            raise Refused(400, INVALID_REQUEST, f"A batch holds {self._most} messages at most.") from None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Refused(400, PARSE_ERROR, f"not a JSON-RPC batch: {error}") from None
        if has_more_parts(body, REQUEST_PARTS):
            raise Refused(400, PARSE_ERROR, str(too_many_parts(REQUEST_PARTS)))
        found: list[msgspec.Raw] = [part for part in msgspec.structs.astuple(parts) if part is not msgspec.UNSET]
        if not found:
            raise Refused(400, INVALID_REQUEST, "A batch must not be empty.")
        return found

    async def _handle(self, number: int, part: msgspec.Raw, request: Request, client: BatchClient) -> None:
        """Handle one message. A fault of it does not affect the other messages."""
        message: Message | None = None
        refused: Refused
        try:
            data = bytes(part)
            message = self._sizes.parse(data)
            answer = await self._one(message, msgspec.structs.replace(request, body_bytes=len(data)), client)
        except Refused as error:
            refused = error
        except InvalidMessage as invalid:
            refused = Refused(200, invalid.code, str(invalid))
        except msgspec.MsgspecError as unreadable:
            refused = Refused(200, INVALID_REQUEST, str(unreadable))
        except OwnedByPeer:
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

    async def _one(self, message: Message, request: Request, client: BatchClient) -> bytes | None:
        """The final frame of a request. The client gets other frames at once."""
        if message.method == "initialize":
            raise Refused(200, INVALID_REQUEST, "initialize must not be part of a batch.")
        params = message.params_object() if message.method is not msgspec.UNSET else {}
        if "_meta" in params and names_version(decode_meta(params["_meta"])):
            raise Refused(400, INVALID_REQUEST, f"A message whose _meta has {VERSION_KEY} must not be part of a batch.")
        self._sizes.check(params, None)
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


@functools.lru_cache(maxsize=4)
def _decoder(most: int) -> msgspec.json.Decoder[Any]:
    """A decoder of arrays of at most `most` messages. For a list type, msgspec would count after reading all of it."""
    fields = [(f"message_{number}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for number in range(most)]
    return msgspec.json.Decoder(msgspec.defstruct("Batch", fields, array_like=True, forbid_unknown_fields=True))


class _Named(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)]


def _id_in(part: msgspec.Raw) -> bytes:
    """The encoded id of what may not be a message; null if it has no id that can be repeated."""
    try:
        return encode(msgspec.json.decode(part, type=_Named).id)
    except (msgspec.MsgspecError, RecursionError):
        return b"null"
