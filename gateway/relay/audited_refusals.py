"""Record refused requests in the audit trail: each request once, with the reason that its client gets."""

import contextlib
from typing import Final

from gateway.calls.client_request import Call, message_of
from gateway.context.session_facts import with_context
from gateway.errors import (
    CANCELLED_BY_CLIENT,
    OUTCOME_UNKNOWN,
    STORE_UNAVAILABLE,
    TOO_OFTEN,
    UPSTREAM_UNAVAILABLE,
    InvalidArguments,
    OutOfMemory,
)
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.policy.tool_policy import MAX_LOGGED_NAME
from gateway.protocol.params import text_of
from transports.inbound_port import Refused, Request
from transports.jsonrpc import INTERNAL_ERROR, Object

_FAILURES: Final = frozenset(
    (CANCELLED_BY_CLIENT, INTERNAL_ERROR, OUTCOME_UNKNOWN, STORE_UNAVAILABLE, UPSTREAM_UNAVAILABLE)
)
"""Error codes of refusals that follow from a failure (of a server, the store or the gateway), not from a rule of the
operator. Such refusals are not recorded."""


def record_refused_call(audit: Audit, server: str, call: Call, refused: Refused) -> None:
    """Record in the audit trail that a request to the server `server` was refused. Do nothing if this refusal is
    recorded already, if its cause is a failure rather than a rule, or if the client has sent too many requests.
    Otherwise also mark the call as refused, so that the trail does not count it as answered."""
    exchange = call.exchange
    # Calls that wait for the start of one process may get the same object, so it cannot say what is recorded. Whoever
    # answers the request records these.
    if refused.is_recorded or refused.code in _FAILURES or refused.code == TOO_OFTEN:
        return
    session = exchange.session
    exchange.was_refused()
    audit.refused(
        refused,
        {"era": call.era, "principal": str(call.principal or "")}
        if session is None
        else with_context(session, exchange.context),
        tool=f"{server}/{_named(call.method, call.params) or call.method[:MAX_LOGGED_NAME]}",
        why=refused.fault if isinstance(refused, InvalidArguments) else "",
        arguments=bytes(call.params.get("arguments", b"")),
    )


def record_refused_request(audit: Audit, request: Request, who: RequestContext, refused: Refused) -> None:
    """Record in the audit trail that a request was refused, unless this refusal is recorded already. Do nothing if the
    cause of the refusal is a failure other than a lack of memory (`OutOfMemory`), or if the request was sent again
    after a process was lost."""
    is_failure = refused.code in _FAILURES and not isinstance(refused, OutOfMemory)
    if refused.is_recorded or is_failure or request.again:  # a repeated request may have been executed
        return
    audit.refused(
        refused.with_headers({}),  # a copy: the refusal may be sent to other clients too, and is recorded for each
        {"session": refused.log_facts.get("session", ""), "era": request.era, "principal": str(who.principal)},
        tool=_named(str(message_of(request).method), request.params),
        why=str(refused) if refused.code == TOO_OFTEN else "",
    )


def _named(method: str, params: Object) -> str:
    """Return the name of the tool that a request calls, shortened for logs; empty if it calls none."""
    if method == "tools/call":
        with contextlib.suppress(Refused):
            return text_of(params, "name")[:MAX_LOGGED_NAME]
    return ""
