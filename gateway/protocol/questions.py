"""Input requests of modern servers as requests to legacy clients. Pure but for random ids."""

import secrets

import msgspec

from transports.jsonrpc import Object, decode_object, encode

__all__ = ["question_of"]


def question_of(raw: msgspec.Raw) -> tuple[str, Object | None]:
    """Method and params of an input request, as a request to a legacy client. Raises `ValueError`, `MsgspecError`."""
    asked = decode_object(raw, "an input request")
    method = msgspec.json.decode(asked.get("method", b"null"), type=str)
    if "params" not in asked:
        return method, None
    params = decode_object(asked["params"], "params")
    if method == "elicitation/create" and bytes(params.get("mode", b"")) == b'"url"':
        params = params | {"elicitationId": msgspec.Raw(encode(secrets.token_urlsafe(12)))}
    return method, params
