"""Server-sent events: event ↔ bytes (WHATWG HTML §9.2). Pure: no I/O."""

__all__ = ["COMMENT", "encode_event"]

COMMENT = b": keepalive\n\n"
"""What a quiet stream sends so that proxies do not cut it."""


def encode_event(data: bytes, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    """One event. `data` holds no line break (a JSON-RPC frame, or nothing for a priming event)."""
    head = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    if retry_ms is not None:
        head += b"retry: %d\n" % retry_ms
    if data:
        head += b"event: message\n"
    return head + b"data: " + data + b"\n\n"
