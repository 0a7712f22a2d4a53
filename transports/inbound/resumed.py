"""The rest of an event stream whose first part came from another process."""

from collections.abc import MutableMapping
from typing import Any

from transports.inbound.http import Send
from transports.sse import encode_event

__all__ = ["continued"]


def continued(send: Send) -> Send:
    """A `send` for a client whose response has begun as an event stream: a JSON answer becomes one event of it."""
    is_stream = False
    parts: list[bytes] = []

    async def sending(event: MutableMapping[str, Any]) -> None:
        nonlocal is_stream
        if event["type"] == "http.response.start":
            is_stream = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in event["headers"])
        elif is_stream:
            await send(event)
        else:
            parts.append(event.get("body", b""))
            if not event.get("more_body"):
                await send({"type": "http.response.body", "body": encode_event(b"".join(parts)), "more_body": False})

    return sending
