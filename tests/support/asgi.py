"""ASGI apps of tests: in a thread of the test's own process, so that it can read their records."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


async def body_of(receive: Any) -> bytes:
    """The whole body of a request."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body


async def respond(
    send: Any, status: int, body: bytes = b"", *, kind: str = "application/json", session: str = ""
) -> None:
    """Send a whole response."""
    head = [(b"content-type", kind.encode())] + ([(b"mcp-session-id", session.encode())] if session else [])
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def served(app: Any, port: int = 0, **config: Any) -> Iterator[str]:
    """The URL of the app's `/mcp`, until the end of the block. `config` are further settings of uvicorn."""
    import uvicorn  # which a server on stdio need not wait for

    given: dict[str, Any] = {"lifespan": "off", "log_level": "critical", "timeout_graceful_shutdown": 1, **config}
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **given))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive(), "the app does not start"
            thread.join(0.01)
        scheme = "https" if running.config.is_ssl else "http"
        yield f"{scheme}://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        running.force_exit = given["lifespan"] == "off"  # streams that stay open are cut
        thread.join(10)
