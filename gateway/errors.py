"""Every refusal the gateway itself makes: HTTP status, JSON-RPC code, and words. One table (docs/errors.md).

The codes lie in JSON-RPC's implementation-defined band (-32000 to -32019), which MCP 2026-07-28 leaves to us, except
where the protocol names one. -32000 and -32001 are avoided: SDKs give them meanings of their own.
"""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from transports.inbound_port import Refused
from transports.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

__all__ = [
    "CALL_TIMED_OUT",
    "CANCELLED",
    "ERRORS",
    "OUTCOME_UNKNOWN",
    "SESSION_UNKNOWN",
    "STORE_UNAVAILABLE",
    "TOO_OFTEN",
    "UNAUTHENTICATED",
    "UNREAD",
    "UPSTREAM_UNAVAILABLE",
    "ErrorKind",
    "bad_context",
    "bad_request_state",
    "insufficient_scope",
    "invalid_arguments",
    "is_bad_request_state",
    "no_session",
    "not_found_by_others",
    "record_full",
    "session_unknown",
    "store_full",
    "store_unavailable",
    "stream_taken",
    "too_many",
    "too_many_exchanges",
    "too_many_handles",
    "too_much_in_flight",
    "too_often",
    "unauthenticated",
    "unknown_event",
    "unknown_handle",
    "unknown_level",
    "unknown_method",
    "unknown_prompt",
    "unknown_resource",
    "unknown_tool",
    "unreachable",
    "unusable_tool",
]

SESSION_UNKNOWN: Final = -32010
UNAUTHENTICATED: Final = -32011
STORE_UNAVAILABLE: Final = -32012
UPSTREAM_UNAVAILABLE: Final = -32013
OUTCOME_UNKNOWN: Final = -32014
CALL_TIMED_OUT: Final = -32015
CANCELLED: Final = -32016
UNREAD: Final = -32017
TOO_OFTEN: Final = -32018


class ErrorKind(NamedTuple):
    """What an error code says: over HTTP, whose fault it is, and what the client does about it.

    `retry`: `no` (the same request fails again), `later` (nothing has happened: send it again, after `Retry-After`),
    `new session`, `credential`, or `if repeatable` (it may have taken effect).
    """

    name: str
    statuses: tuple[int, ...]
    fault: Literal["client", "server", "gateway"]
    retry: Literal["no", "later", "new session", "credential", "if repeatable"]


ERRORS: Final[dict[int, ErrorKind]] = {
    PARSE_ERROR: ErrorKind("not JSON", (400,), "client", "no"),
    INVALID_REQUEST: ErrorKind(
        "no request that can be served", (200, 400, 403, 404, 406, 413, 415, 421, 431), "client", "no"
    ),
    METHOD_NOT_FOUND: ErrorKind("no such method", (200, 404), "client", "no"),
    INVALID_PARAMS: ErrorKind("parameters that cannot be used", (200, 400, 404, 409), "client", "no"),
    INTERNAL_ERROR: ErrorKind("the gateway failed", (500, 503), "gateway", "if repeatable"),
    SESSION_UNKNOWN: ErrorKind("no such session", (404,), "client", "new session"),
    UNAUTHENTICATED: ErrorKind("no good credential", (401, 403), "client", "credential"),
    STORE_UNAVAILABLE: ErrorKind("the session cannot be reached now", (503,), "gateway", "later"),
    UPSTREAM_UNAVAILABLE: ErrorKind("the server cannot be had", (200, 503), "server", "later"),
    OUTCOME_UNKNOWN: ErrorKind("no answer; the call may have taken effect", (200,), "server", "if repeatable"),
    CALL_TIMED_OUT: ErrorKind("no answer in time; the server was told to stop", (200,), "server", "if repeatable"),
    CANCELLED: ErrorKind("cancelled", (200,), "client", "no"),
    UNREAD: ErrorKind("said to servers: the client does not take its requests", (200,), "client", "no"),
    TOO_OFTEN: ErrorKind("more than this client may", (429,), "client", "later"),
    # MCP 2026-07-28: headers that are not what the body says, what the client did not declare, and versions.
    -32020: ErrorKind("headers that do not match the body", (400,), "client", "no"),
    -32021: ErrorKind("a capability that the client has not declared is needed", (400,), "client", "no"),
    -32022: ErrorKind("a protocol version that is not served", (400,), "client", "no"),
}
"""Every error a client may get of us. What a server says itself is passed on as it is."""


def session_unknown() -> Refused:
    """Unknown, expired, ended, forged or somebody else's: one answer, which tells nothing about other sessions."""
    return Refused(
        404, SESSION_UNKNOWN, "Session not found. It may have expired or ended: start a new one without a session id."
    )


def no_session() -> Refused:
    """A legacy message that needs a session and names none (MCP 2025-11-25, Transports §Session Management)."""
    return Refused(400, INVALID_REQUEST, "No session: send the Mcp-Session-Id header of the answer to initialize.")


def unauthenticated(reason: str, challenge: str) -> Refused:
    return Refused(401, UNAUTHENTICATED, reason, headers={"WWW-Authenticate": f"Bearer {challenge}"})


def insufficient_scope(reason: str, challenge: str) -> Refused:
    """A good token that does not go far enough: its client can ask for one that does (RFC 6750 §3.1)."""
    return Refused(403, UNAUTHENTICATED, reason, headers={"WWW-Authenticate": f"Bearer {challenge}"})


def store_unavailable() -> Refused:
    """Never 404: a client that hears 404 throws a good session away."""
    return Refused(
        503,
        STORE_UNAVAILABLE,
        "The session store does not answer. Your session is not lost: try again.",
        headers={"Retry-After": "1"},
    )


def store_full() -> Refused:
    return Refused(
        503, STORE_UNAVAILABLE, "No room for one more session: all are in use. Try again.", headers={"Retry-After": "5"}
    )


def unreachable() -> Refused:
    """The owner of the session is silent, and it is too early to say that it is gone."""
    return Refused(
        503,
        STORE_UNAVAILABLE,
        "The gateway that serves your session does not answer. Your session is not lost: try again.",
        headers={"Retry-After": "1"},
    )


def not_found_by_others() -> Refused:
    """Nothing is begun at a gateway that would lose it to those that do not find it."""
    return Refused(
        503,
        STORE_UNAVAILABLE,
        "This gateway is not ready: the others cannot reach it at the address it gives. Try again.",
        headers={"Retry-After": "1"},
    )


def too_many_exchanges() -> Refused:
    return Refused(429, TOO_OFTEN, "Too many calls of this session are in flight.", headers={"Retry-After": "1"})


def too_much_in_flight(whose: str) -> Refused:
    """Bytes of bodies whose requests have no answer yet. The rest of a body is not read for it."""
    reason = f"Too many large requests of {whose} are in flight. Try again when one of them has its answer."
    return Refused(429, TOO_OFTEN, reason, headers={"Retry-After": "1"})


def unknown_tool(name: str) -> Refused:
    """Not there, or not for this session: one answer."""
    return Refused(200, INVALID_PARAMS, f"Unknown tool: {name[:128]}")


def unknown_prompt(name: str) -> Refused:
    """Not there, or not for this session: one answer."""
    return Refused(200, INVALID_PARAMS, f"Unknown prompt: {name[:128]}")


def unknown_resource(uri: str) -> Refused:
    """Not there, or not for this session: one answer."""
    return Refused(200, INVALID_PARAMS, f"Resource not found: {uri[:256]}", data={"uri": uri[:256]})


def unknown_method(method: str) -> Refused:
    """Nobody here serves it."""
    return Refused(200, METHOD_NOT_FOUND, f"Method not found: {method[:128]}")


def unusable_tool(name: str, fault: str) -> Refused:
    """The server's fault: nothing checks this tool's arguments."""
    why = f"Tool {name[:128]} cannot be called: its input schema cannot be used: {fault}"
    return Refused(200, INVALID_PARAMS, why, data={"reason": "unusable_schema"})


def invalid_arguments(tool: str, path: str, problem: str) -> Refused:
    """What is wrong where, before the server has seen it."""
    return Refused(200, INVALID_PARAMS, f"Invalid arguments for {tool[:128]}: {path}: {problem}", data={"path": path})


def unknown_handle(tool: str, given: object) -> Refused:
    """Unknown, closed, expired, misspelt or somebody else's: one answer."""
    shown = repr(given[:32]) if isinstance(given, str) else f"({type(given).__name__})"
    return Refused(
        200,
        INVALID_PARAMS,
        f"{tool[:64]}: no session {shown} of yours. open_session gives one; leave `session` out to work in your own.",
    )


def too_many_handles(most: int) -> Refused:
    return Refused(200, INVALID_PARAMS, f"{most} sessions are open already: close one with close_session.")


def too_often(what: str, wait_s: int) -> Refused:
    return Refused(
        429,
        TOO_OFTEN,
        f"Too many {what}. Try again in {wait_s} s.",
        data={"retryAfter": wait_s},
        headers={"Retry-After": str(wait_s)},
    )


def too_many(what: str, most: int, *, anonymous: bool) -> Refused:
    """As many as one principal, or one address of anonymous clients, may have."""
    whose = "The anonymous clients of your address" if anonymous else "You"
    return Refused(
        429,
        TOO_OFTEN,
        f"{whose} have {most} {what}, and may not have more at a time. End a session first, or wait until one ends.",
        data={"most": most, "retryAfter": 30},
        headers={"Retry-After": "30"},
    )


def unknown_event() -> Refused:
    return Refused(404, INVALID_PARAMS, "Unknown Last-Event-ID: it is not of this session, or too old to resume from.")


def record_full(what: str, most: int) -> Refused:
    """More of what a client says than its session's record keeps."""
    return Refused(200, INVALID_PARAMS, f"{what}: a session keeps {most} bytes of what its client says. Send less.")


def unknown_level(levels: Iterable[str]) -> Refused:
    return Refused(200, INVALID_PARAMS, f"params.level must be one of {', '.join(levels)}")


def stream_taken() -> Refused:
    return Refused(409, INVALID_PARAMS, "This session has a GET stream already.")


def bad_context(reason: str) -> Refused:
    return Refused(400, INVALID_PARAMS, f"The announced context cannot be used: {reason}.")


def bad_request_state() -> Refused:
    """One answer for forged, expired, foreign and misplaced states (MCP 2026-07-28, Multi Round-Trip Requests)."""
    return Refused(400, INVALID_PARAMS, "Invalid or expired requestState", data={"reason": "invalid_request_state"})


def is_bad_request_state(refused: Refused) -> bool:
    """Whether it is that."""
    return isinstance(refused.data, dict) and refused.data.get("reason") == "invalid_request_state"
