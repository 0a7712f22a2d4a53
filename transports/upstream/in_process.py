"""Run an MCP server that is a Python object of the official SDK, inside this process. Each link has its own connection
to it."""

import asyncio
import logging
from contextvars import Context
from typing import Any, Final

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter
from starlette.requests import Request

from transports.jsonrpc import PARSE_ERROR, InvalidMessage, parse
from transports.upstream_port import ConnectOptions, LinkClosed, LinkEvents, LinkFull

logger = logging.getLogger(__name__)

MAX_UNREAD: Final = 1_024
"""The most messages that wait for a server that does not read."""


class InProcessUpstream:
    """Run a server object: an `MCPServer`, or a low-level `Server`.

    The lifespan of a link runs with the context variables of the caller of `connect`. The handler of each message runs
    with those of `ConnectOptions.in_context`.
    """

    def __init__(self, name: str, server: Any) -> None:
        """Store the server object. Raises `TypeError` if it is not a server of the SDK."""
        if any(kind.__module__.partition(".")[0] == "fastmcp" for kind in type(server).__mro__):
            raise TypeError(
                f"{type(server).__name__} of the package fastmcp is not a server object of the mcp SDK, and cannot be "
                'served in this process. Serve its file: {"command": "fastmcp", "args": ["run", "server.py"]}'
            )
        lowlevel = getattr(server, "_lowlevel_server", server)
        if not (callable(getattr(lowlevel, "run", None)) and hasattr(lowlevel, "create_initialization_options")):
            raise TypeError(f"{type(server).__name__} is not a server object of the mcp SDK")
        self._name = name
        self._server = lowlevel

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> "InProcessLink":
        """Open a link, and enter the server's lifespan for it. Options that concern processes have no effect."""
        return InProcessLink(self._name, self._server, events, given)

    async def close(self) -> None:
        """Do nothing, because the links share no resources."""


class InProcessLink:
    """One connection to the server object: an asyncio task that runs it."""

    pid, resume, may_forget = None, "", False
    output_tail: tuple[str, ...] = ()

    def __init__(self, name: str, server: Any, events: LinkEvents, given: ConnectOptions) -> None:
        self._name = name
        self._events = events
        self._in_context = given.in_context
        self._metadata: ServerMessageMetadata | None = None
        if given.scope:  # tools that look for it where an HTTP transport of the SDK puts it
            request = Request({"type": "http", "method": "POST", "path": "/", "headers": [], **given.scope})
            self._metadata = ServerMessageMetadata(request_context=request)
        self._inbox, read = anyio.create_memory_object_stream[_Sent](MAX_UNREAD)
        options = server.create_initialization_options()
        # A bare task, which the link owns: `_ended` reports how it ended, `close` waits for it.
        self._task = asyncio.create_task(server.run(_Inbox(read), _Outbox(self._receive), options))
        self._task.add_done_callback(self._ended)

    def stderr_tail(self) -> list[str]:
        return []

    def send(self, frame: bytes) -> None:
        try:
            read = jsonrpc_message_adapter.validate_json(frame)
        except ValueError:  # pydantic reads fewer levels than the gateway
            reason = f"server {self._name!r} cannot read the message: it may be nested too deeply"
            raise InvalidMessage(PARSE_ERROR, reason) from None
        try:
            self._inbox.send_nowait((self._in_context(), SessionMessage(read, metadata=self._metadata)))
        except anyio.WouldBlock:
            raise LinkFull(f"server {self._name!r} does not read its input") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkClosed(f"server {self._name!r} has closed its input") from None

    async def close(self) -> None:
        self._inbox.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _receive(self, message: SessionMessage) -> None:
        try:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            received = parse(line, is_lenient=True)
        except (InvalidMessage, ValueError, RecursionError) as error:
            logger.warning(
                "server %s sent something that is not a JSON-RPC message: %s",
                *(self._name, error),
                extra=self._events.log_fields(),
            )
            if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                reason = f"server {self._name!r} sent an answer that cannot be read"
                self._events.unreadable(message.message.id, reason)
            return
        self._events.message(received)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.warning("server %s failed: %r", self._name, error, extra=self._events.log_fields())
        self._inbox.close()
        self._events.closed(f"server {self._name!r} {'ended' if error is None else 'failed'}")


_Sent = tuple[Context, SessionMessage]


class _Inbox(ObjectReceiveStream[SessionMessage]):
    """The stream from which the server reads. Each `receive` sets `last_context` to the context that was sent with the
    message; the SDK runs the message's handler in it."""

    def __init__(self, stream: MemoryObjectReceiveStream[_Sent]) -> None:
        self._stream = stream
        self.last_context: Context | None = None

    async def receive(self) -> SessionMessage:
        self.last_context, message = await self._stream.receive()
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Outbox(ObjectSendStream[SessionMessage]):
    """The stream to which the server writes. Every message is forwarded at once."""

    def __init__(self, receive: Any) -> None:
        self._receive = receive

    async def send(self, item: SessionMessage) -> None:
        self._receive(item)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""
