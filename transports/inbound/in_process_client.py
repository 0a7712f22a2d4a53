"""Send requests to the gateway's own ASGI app from within the process, for transports built on this app."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextvars import Context
from typing import Any, Final

from transports.background_tasks import Tasks
from transports.sse import EventDecoder

_ACCEPT: Final = "application/json, text/event-stream"
_MAX_EVENT_BYTES: Final = 1 << 30


class Reply:
    """Receive the app's response to one request: status and headers, then messages as they arrive."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._begun = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=64)
        self._left = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def start(self, work: asyncio.Task[None]) -> None:
        """Set the task in which the app serves the request. The response ends with this task."""
        self._work = work
        work.add_done_callback(lambda _: self._ended())

    def _ended(self) -> None:
        self._begun.set()
        if self._parts.full():
            self._parts.get_nowait()  # a reader that is this far behind has gone
        self._parts.put_nowait(None)

    async def send(self, event: Any) -> None:
        """Receive an event of the response. The app calls this as its ASGI `send`."""
        if event["type"] == "http.response.start":
            self.status = event["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in event["headers"]}
            self._begun.set()
        elif event.get("body") and not self._left.is_set():
            await self._parts.put(event["body"])

    async def begun(self) -> None:
        """Wait until the status and the headers have arrived, or the response has ended."""
        await self._begun.wait()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the messages of the response."""
        await self.begun()
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            decoder = EventDecoder(_MAX_EVENT_BYTES)
            while (part := await self._parts.get()) is not None:
                for event in decoder.feed(part):
                    if event.data:
                        yield event.data
            return
        body = b""
        while (part := await self._parts.get()) is not None:
            body += part
        if body:
            yield body

    async def leave(self, wait_s: float = 0.0) -> None:
        """Cancel the request, as a client does that closes its connection, and drop the rest of the response. `wait_s`
        is how many seconds the app has to notice that and to cancel its work."""
        self._left.set()
        if self._work is not None:
            if wait_s:
                await asyncio.wait((self._work,), timeout=wait_s)
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def disconnected(self) -> None:
        """Wait until `leave` has cancelled the request."""
        await self._left.wait()


class InProcessClient:
    """Send requests to one endpoint of the app, from within the process. `facts` are added to each ASGI scope."""

    def __init__(self, app: Any, path: str, facts: Mapping[str, Any] | None = None) -> None:
        self._app = app
        self._path = path
        self._facts = facts or {}
        self._calls = Tasks(f"requests to {path}")

    def ask(self, method: str, headers: Mapping[str, str], body: bytes = b"", peer: str = "") -> Reply:
        """Begin a request for a client at the address `peer`, and return its response, which arrives later."""
        accept = "text/event-stream" if method == "GET" else _ACCEPT
        full = {"host": "localhost", "accept": accept, "content-type": "application/json", **headers}
        scope = {
            "type": "http",
            "method": method,
            "path": self._path,
            "root_path": "",
            "scheme": "http",
            "client": (peer, 0) if peer else None,
            "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in full.items()],
            **self._facts,
        }
        reply, given = Reply(), False

        async def receive() -> Any:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await reply.disconnected()
            return {"type": "http.disconnect"}

        # In a context of its own: that of the caller belongs to another request.
        reply.start(Context().run(self._calls.spawn, self._app(scope, receive, reply.send)))
        return reply
