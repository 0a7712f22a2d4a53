"""The part of an exchange that writes its request for the server."""

from collections.abc import Generator

import msgspec

from gateway.protocol.tasks import asks_for_task
from transports.jsonrpc import Object, encode, encode_request, splice
from transports.turns import in_turns, is_large

__all__ = ["RequestFrame"]


class RequestFrame:
    """`progress_token` is the client's. `sent_method` goes to the server, if it is not the client's."""

    # Class attributes, because most calls never need them.
    method: str
    progress_token: msgspec.Raw | None = None
    makes_task = False  # whether the client wants a task (MCP 2025-11-25), and its progress
    sent_method = ""

    def frame(self, number: int, params: Object, meta: Object) -> bytes:
        """The request as the server reads it, under that number."""
        return splice(encode_request(number, self.sent_method or self.method, self.encoded(number, params, meta)))

    async def frame_in_turns(self, number: int, params: Object, meta: Object) -> bytes:
        """As `frame`, in steps if params are large: each step takes a while then."""
        return (
            await in_turns(self._steps(number, params, meta)) if is_large(params) else self.frame(number, params, meta)
        )

    def _steps(self, number: int, params: Object, meta: Object) -> Generator[None, None, bytes]:
        body = self.encoded(number, params, meta)
        yield
        request = encode_request(number, self.sent_method or self.method, body)
        yield
        return splice(request)

    def encoded(self, number: int, params: Object, meta: Object) -> bytes | None:
        """The params and `_meta` of the request under that number. The client's progress token is kept."""
        token = meta.get("progressToken")
        if token is not None:
            self.progress_token = token.copy()  # a slice would keep the whole message in memory
            self.makes_task = asks_for_task(params)
            meta = meta | {"progressToken": msgspec.Raw(encode(number))}
        return encode({**params, "_meta": meta} if meta else params) if meta or params else None
