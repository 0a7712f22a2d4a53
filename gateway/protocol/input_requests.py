"""Read the questions (input requests) of modern servers to clients (MCP 2026-07-28, Multi Round-Trip Requests).

Pure, except for random ids. `gateway.calls.questions_to_client` limits how many open questions a client may have.
"""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from transports.jsonrpc import INVALID_PARAMS, UNREADABLE, InvalidMessage, Object, decode_object, encode


class Question(NamedTuple):
    """A server's question to a client. `params` is None if the input request has none."""

    method: str
    params: Object | None


def questions_of(outer: Object) -> Mapping[str, Question]:
    """Return the questions in the `inputRequests` of a result or of a task, by their keys; empty if there are none.

    Raises:
        InvalidMessage: `inputRequests` is invalid.
    """
    requests = decode_object(outer.get("inputRequests", b"{}"), "inputRequests")
    return {key: question_of(raw) for key, raw in requests.items()}


def question_of(raw: msgspec.Raw) -> Question:
    """Return the question in one input request. Raises `InvalidMessage`: it is invalid."""
    asked = decode_object(raw, "an input request")
    try:
        method = msgspec.json.decode(asked.get("method", b"null"), type=str)
    except UNREADABLE as error:
        raise InvalidMessage(INVALID_PARAMS, f"the method of an input request must be a text: {error}") from None
    return Question(method, decode_object(asked["params"], "params") if "params" in asked else None)


def for_legacy_client(question: Question) -> Question:
    """Return a question in the form for a legacy client, which needs an `elicitationId` in URL elicitations."""
    method, params = question
    if params is None or method != "elicitation/create" or bytes(params.get("mode", b"")) != b'"url"':
        return question
    return Question(method, {"elicitationId": msgspec.Raw(encode(secrets.token_urlsafe(12)))} | params)
