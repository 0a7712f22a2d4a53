"""Define every error that the gateway itself answers with: HTTP status, JSON-RPC code, reason, message.

The gateway's codes are in the implementation-defined range of JSON-RPC (-32000 to -32019), which MCP 2026-07-28
leaves to implementations. Codes that the protocol defines are used where they apply. -32000 and -32001 are not used,
because SDKs give them other meanings.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from session_store import StoreError, StoreFull
from transports.inbound_port import CORRELATION_KEY, REASON_KEY, REASONS, Refused
from transports.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND
from transports.upstream_port import UpstreamUnavailable

SESSION_UNKNOWN: Final = -32010
UNAUTHENTICATED: Final = -32011
STORE_UNAVAILABLE: Final = -32012
UPSTREAM_UNAVAILABLE: Final = -32013
OUTCOME_UNKNOWN: Final = -32014
CALL_TIMED_OUT: Final = -32015
CANCELLED: Final = -32016
UNREAD: Final = -32017
TOO_OFTEN: Final = -32018
CONSENT_NEEDED: Final = -32042
"""The code that tells a client to have its person visit a page first (MCP 2025-11-25, Elicitation). Not for modern
clients."""

CANCELLED_BY_CLIENT: Final = -32800
"""The code that the official SDK uses (`RequestCancelled` of the Language Server Protocol). Clients ignore the answer,
but a legacy client's request must be answered (MCP 2025-11-25, Transports §Sending Messages to the Server)."""


ERRORS: Final[dict[int, str]] = {
    **REASONS,
    RESOURCE_NOT_FOUND: "unknown_resource",
    SESSION_UNKNOWN: "unknown_session",
    UNAUTHENTICATED: "unauthenticated",
    STORE_UNAVAILABLE: "unavailable",
    UPSTREAM_UNAVAILABLE: "upstream_unavailable",
    OUTCOME_UNKNOWN: "outcome_unknown",
    CALL_TIMED_OUT: "timed_out",
    CANCELLED: "cancelled",
    UNREAD: "unread",
    TOO_OFTEN: "limit_reached",
    CONSENT_NEEDED: "consent_needed",
    CANCELLED_BY_CLIENT: "cancelled_by_client",
}
"""The default reason of every error of the gateway that a client can receive, by code. Errors of a server are forwarded
unchanged. docs/errors.md has the meaning of each, its HTTP statuses, who is at fault, and when a client may retry."""


def error_of(code: int, message: str, correlation: str) -> dict[str, Any]:
    """Return a JSON-RPC error object with the correlation id of its request. Its reason is the default of the code; a
    code that the gateway does not define gets the reason `server_error`."""
    data = {REASON_KEY: ERRORS.get(code, "server_error")}
    return {"code": code, "message": message, "data": data | ({CORRELATION_KEY: correlation} if correlation else {})}


def session_unknown() -> Refused:
    """Return the error for a session id that is unknown, expired, ended, forged or another principal's. The answer is
    the same for all, so that it reveals nothing about other sessions."""
    return Refused(
        404,
        SESSION_UNKNOWN,
        "Session not found. It may have expired or ended. Start again without a session id.",
        reason="unknown_session",
    )


def no_session() -> Refused:
    """Return the error for a legacy message without the session that it needs (MCP 2025-11-25, Session Management)."""
    return Refused(
        400,
        INVALID_REQUEST,
        "The session id is missing. Send the Mcp-Session-Id header that the answer to initialize carried.",
        reason="missing_session_id",
    )


def session_key_needed(line: str) -> Refused:
    """Return the error for a client that brings no session back, and would share a session with other clients. `line`
    is the line of code or configuration that makes it send a session key."""
    return Refused(
        400,
        INVALID_REQUEST,
        "This client brings no session back, and this gateway lets no two clients share one. Give the client a session "
        f"key of its own: {line}",
        reason="session_key_needed",
    )


def unauthenticated(reason: str, challenge: str) -> Refused:
    """Return the error for a missing or invalid credential. `reason` is the message, `challenge` the header's
    parameters (RFC 6750 §3)."""
    return Refused(
        401, UNAUTHENTICATED, reason, headers={"WWW-Authenticate": f"Bearer {challenge}"}, reason="unauthenticated"
    )


def insufficient_scope(reason: str, challenge: str) -> Refused:
    """Return the error for a valid token that lacks a scope. The client can request a token with the scope (RFC 6750
    §3.1)."""
    return Refused(
        403, UNAUTHENTICATED, reason, headers={"WWW-Authenticate": f"Bearer {challenge}"}, reason="insufficient_scope"
    )


def _unavailable(reason: str, message: str, *, retry_after_s: int = 1) -> Refused:
    """Return the error for a request that was not executed. The client can repeat it after `retry_after_s` seconds."""
    headers = {"Retry-After": str(retry_after_s)}
    return Refused(503, STORE_UNAVAILABLE, message, reason=reason, headers=headers)


def store_unavailable() -> Refused:
    """Return the error for a request while the store does not answer. The HTTP status is not 404, at which clients
    would discard the session."""
    return _unavailable("store_unavailable", "The session store does not answer. Your session is not lost. Try again.")


def store_full() -> Refused:
    """Return the error for a new session if the store has its maximum of sessions, and all of them are in use."""
    message = "The gateway has as many sessions as it allows, and all are in use. Try again."
    return _unavailable("store_full", message, retry_after_s=5)


class OutOfMemory(Refused):
    """The refusal to start a server's process, because it needs more memory than is left for servers. The message has
    no numbers: clients would learn from them how much others use."""

    def __init__(self, server: str) -> None:
        message = (
            f"Server {server!r} was not started, and nothing was executed: it needs more memory than is left. End a "
            "session, or try again in 30 s."
        )
        super().__init__(
            503,
            STORE_UNAVAILABLE,
            message,
            reason="out_of_memory",
            data={"retryAfter": 30},
            headers={"Retry-After": "30"},
        )


class StartRefused(UpstreamUnavailable):
    """A process that serves no session, or several, must not start now. A client whose call needs the process gets the
    answer `refused`. For all others, the server counts as unavailable."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(str(refused))
        self.refused = refused


class ConsentRefusal(Refused):
    """The refusal of a request that was not sent: the client's person first has to consent to what the gateway does for
    the person at the server. `url` is the page on which the person consents, and `ask` is the text that asks for it.
    Whoever else opens the page gets nothing."""

    def __init__(self, secret: str, url: str) -> None:
        # Without a word of repeating: it may tell of a call that has begun already.
        text = f"there is no credential {secret!r} for you: connect your account at {url}"
        super().__init__(200, UPSTREAM_UNAVAILABLE, text, reason="consent_needed", data={"url": url})
        self.url = url
        self.ask = f"Connect your account, so that the gateway can use {secret!r} for you. Then repeat the request."


class ConsentNeeded(StartRefused):
    """A principal has not consented to the use of a secret, or the consent has ended. Clients get the answer `refused`
    (a `ConsentRefusal`), or are asked to open the page that it names."""


def left_out(*servers: str) -> Refused:
    """Return the error for a request to servers with an unusable configuration. It does not tell the faults, because
    these are for operators only."""
    named, each = ", ".join(map(repr, servers)), len(servers) == 1
    who = f"server {named} is left out: its configuration has" if each else f"servers {named} are left out: each has"
    message = f"{who} a fault, which the gateway's log names. The same request fails again until it is corrected"
    return Refused(200, UPSTREAM_UNAVAILABLE, message, reason="server_left_out")


def store_refused(error: StoreError) -> Refused:
    """Return the refusal for a request that has failed with this error of the store."""
    return store_full() if isinstance(error, StoreFull) else store_unavailable()


def write_unknown() -> Refused:
    """Return the error for a request of an app whose write to its session may have taken effect before the store
    failed. It does not invite the client to repeat the request."""
    return Refused(
        504,
        OUTCOME_UNKNOWN,
        "The session store failed during this request; whether the request took effect is unknown",
        reason="outcome_unknown",
    )


def unreachable() -> Refused:
    """Return the error for a request whose session no replica can serve: the owner is silent, but may still run."""
    text = "The gateway that serves your session does not answer. Your session is not lost. Try again."
    return _unavailable("replica_unreachable", text)


def outcome_unknown() -> Refused:
    """Return the error for a request that may have taken effect and cannot be repeated. Replaces any other error."""
    return Refused(
        200,
        OUTCOME_UNKNOWN,
        "The gateway that served this call was lost; whether the call took effect is unknown",
        reason="outcome_unknown",
    )


def not_found_by_others() -> Refused:
    """Return the error for a request to open a session here while other replicas cannot reach this one. They would take
    the session over."""
    why = "other gateways cannot reach it at its gateway.advertise address"
    return _unavailable("replica_not_ready", f"This gateway is not ready: {why}. Try again.")


def too_many_exchanges() -> Refused:
    """Return the error for a call if its session has the maximum of calls in flight (`limits.exchanges`)."""
    reason = "Too many calls of this session are in flight. Try again when one of them is answered."
    return Refused(429, TOO_OFTEN, reason, headers={"Retry-After": "1"}, reason="too_many_calls")


def too_much_in_flight(whose: str) -> Refused:
    """Return the error for a request whose body has no room beside the bodies of other unanswered requests. `whose`
    says in words whose requests these are, such as "this session"."""
    reason = f"Too many large requests of {whose} are in flight. Try again when one of them is answered."
    return Refused(429, TOO_OFTEN, reason, headers={"Retry-After": "1"}, reason="too_much_in_flight")


def cancelled_by_client() -> Refused:
    """Return the error for a request that its client has cancelled before it was sent to a server."""
    return Refused(200, CANCELLED_BY_CLIENT, cancelled_message(CANCELLED_BY_CLIENT, ""), reason="cancelled_by_client")


def cancelled_message(code: int, reason: str) -> str:
    """Return the message to the client of a cancelled call. A client that has cancelled the call itself knows the
    reason, and gets the words of the official SDK."""
    return "Request cancelled" if code == CANCELLED_BY_CLIENT else f"Cancelled: {reason}"


def unknown_tool(name: str) -> Refused:
    """Return the error for a tool that does not exist; it is the same if policy hides the tool from the session."""
    return Refused(200, INVALID_PARAMS, f"Unknown tool: {name[:128]}", reason="unknown_tool")


def changed_tool(name: str) -> Refused:
    """Return the error for a tool that has changed since its session was shown it (`policy.changed_tools`)."""
    text = (
        f"Tool {name[:128]} has changed since it was listed to this session, and is not called any more in it. Open a "
        "new session, and list the tools there, to see and call it as it is now."
    )
    return Refused(200, INVALID_PARAMS, text, reason="tool_changed")


def unknown_prompt(name: str) -> Refused:
    """Return the error for a prompt that does not exist; it is the same if policy hides the prompt from the session."""
    return Refused(200, INVALID_PARAMS, f"Unknown prompt: {name[:128]}", reason="unknown_prompt")


def unknown_resource(uri: str, era: str = "modern", method: str = "resources/read") -> Refused:
    """Return the error for a resource that does not exist; it is the same if policy hides the resource from the
    session. The legacy era has its own error code for this, except for completions (MCP 2025-11-25, Resources and
    Completion, Error Handling) and directories (the Skills extension, Error Handling)."""
    is_old = era == "legacy" and method.startswith("resources/") and method.count("/") == 1
    return Refused(
        200,
        RESOURCE_NOT_FOUND if is_old else INVALID_PARAMS,
        f"Resource not found: {uri[:256]}",
        data={"uri": uri[:256]},
        reason="unknown_resource",
    )


def unknown_method(method: str, era: str = "legacy", among: Sequence[str] = ()) -> Refused:
    """Return the error for a method that no server of the session has. `among` names the servers if several may have
    the method. The modern era requires HTTP status 404 (MCP 2026-07-28, Streamable HTTP)."""
    text = f"Method not found: {method[:128]}"
    if among:
        names = ", ".join(among[:8])
        text += f". Several servers may have it ({names}), and none has declared an extension with this name."
    return Refused(404 if era == "modern" else 200, METHOD_NOT_FOUND, text)


def unusable_tool(name: str, fault: str) -> Refused:
    """Return the error for a call of a tool whose arguments cannot be checked, as its input schema is invalid."""
    why = f"Tool {name[:128]} cannot be called, because its input schema is invalid: {fault}"
    return Refused(200, INVALID_PARAMS, why, reason="unusable_schema")


ArgumentFault = Literal["schema", "missing", "blocked", "handle"]
"""Why arguments are refused: they do not match the schema, a bound argument is missing, they contain blocked text, or
they name no session of the client."""


class InvalidArguments(Refused):
    """The arguments of a tool call fail the gateway's checks. The call was not sent to the server.

    The client gets a tool result with `isError` instead of an error: hosts show results to the model, which can correct
    its arguments, but do not show errors to it (SEP-1303).
    """

    def __init__(self, message: str, fault: ArgumentFault) -> None:
        super().__init__(200, INVALID_PARAMS, message, reason="invalid_arguments")
        self.fault: ArgumentFault = fault


def invalid_arguments(tool: str, path: str, problem: str, fault: ArgumentFault = "schema") -> InvalidArguments:
    """Return the error for arguments of a tool. `path` is the place of the fault, `problem` its description."""
    return InvalidArguments(f"Invalid arguments for {tool[:128]}: {path}: {problem}", fault)


def malformed_arguments() -> Refused:
    """Return the error for arguments that are not a JSON object. This is a fault of the client, not of a model (MCP,
    CallToolRequest)."""
    return Refused(200, INVALID_PARAMS, "params.arguments must be an object")


def unknown_handle(tool: str, given: object) -> InvalidArguments:
    """Return the error for a handle of a child session that is unknown, closed, expired, misspelt or another
    principal's. The answer is the same for all."""
    shown = repr(given[:32]) if isinstance(given, str) else f"({type(given).__name__})"
    return InvalidArguments(
        f"{tool[:64]}: arguments.session: you have no session {shown}. Open one with open_session, or omit `session` "
        "to use your own.",
        "handle",
    )


def too_many_handles(most: int) -> Refused:
    """Return the error for a further child session of a client that has the maximum number of them, `most`."""
    return Refused(
        200,
        INVALID_PARAMS,
        f"You have {most} sessions open, the limit. Close one with close_session.",
        reason="too_many_sessions",
    )


def too_often(what: str, wait_s: int) -> Refused:
    """Return the error for a request beyond a rate limit. `what` names the limited requests. The next is allowed in
    `wait_s` seconds."""
    return Refused(
        429,
        TOO_OFTEN,
        f"Too many {what}. Try again in {wait_s} s.",
        data={"retryAfter": wait_s},
        headers={"Retry-After": str(wait_s)},
        reason="rate_limited",
    )


def too_many(what: str, most: int, *, anonymous: bool) -> Refused:
    """Return the error for one more of `what` (such as sessions) if the principal has reached its quota `most`.
    With `anonymous`, the quota is that of all anonymous clients of one address."""
    whose = "The anonymous clients of your address" if anonymous else "You"
    return Refused(
        429,
        TOO_OFTEN,
        f"{whose} have {most} {what}, the limit. End a session, or wait until one ends.",
        data={"most": most, "retryAfter": 30},
        headers={"Retry-After": "30"},
        reason="quota_reached",
    )


def unknown_event() -> Refused:
    """Return the error for a `Last-Event-ID` after which no stream can be resumed."""
    return Refused(
        404,
        INVALID_PARAMS,
        "Unknown Last-Event-ID: it belongs to another session, or is too old to resume from.",
        reason="unknown_event",
    )


def record_full(what: str, most: int) -> Refused:
    """Return the error for storing `what`: the client's data would exceed `most` bytes in the session's record."""
    return Refused(
        200,
        INVALID_PARAMS,
        f"{what}: too large. A session stores at most {most} bytes of client data.",
        reason="record_full",
    )


def unknown_level(levels: Iterable[str]) -> Refused:
    """Return the error for a log level that MCP does not define. `levels` are the valid ones."""
    return Refused(200, INVALID_PARAMS, f"params.level must be one of {', '.join(levels)}")


def stream_taken() -> Refused:
    """Return the error for a second GET stream of a session, which may have only one (MCP 2025-11-25, Transports
    §Listening for Messages)."""
    return Refused(
        409, INVALID_PARAMS, "This session already has an open GET stream. Close it first.", reason="stream_open"
    )


def bad_context(reason: str) -> Refused:
    """Return the error for an invalid context that a client has announced."""
    return Refused(400, INVALID_PARAMS, f"The announced context is invalid: {reason}.", reason="invalid_context")


def other_workspace(known: str, announced: str) -> Refused:
    """Return the error for a request that announces another workspace than its session has."""
    reason = (
        f"This session is for workspace {known[:64]!r}, and the request announces {announced[:64]!r}: "
        "send the request without a session, or with another session key, to open a session for the other workspace."
    )
    return Refused(400, INVALID_PARAMS, reason, reason="other_workspace")


def bad_session_key(reason: str) -> Refused:
    """Return the error for an invalid session key. The message never contains the key."""
    return Refused(400, INVALID_PARAMS, f"The session key {reason}.", reason="invalid_session_key")


def keyed_session_stays() -> Refused:
    """Return the error for a DELETE from a client with a session key. SDKs send DELETE whenever a connection closes,
    but another connection with the same key may be in use (MCP 2025-11-25, Transports §Session Management)."""
    return Refused(
        405,
        INVALID_REQUEST,
        "A session with a key outlives its connections. To end it, send DELETE with its token and without the key.",
        headers={"Allow": "POST, GET"},
        reason="keyed_session",
    )


def bad_request_state() -> Refused:
    """Return the error for a `requestState` that is forged, expired, or of another session or call. The answer is the
    same for all (MCP 2026-07-28, Multi Round-Trip Requests)."""
    return Refused(400, INVALID_PARAMS, "Invalid or expired requestState", reason="invalid_request_state")
