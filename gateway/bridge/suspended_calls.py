"""Calls of modern clients to legacy servers that ask something: the call is suspended until the client answers.

A server's request ends the client's POST with `input_required` (MCP 2026-07-28, Multi Round-Trip Requests). The client
comes back with the answers and the gateway's sealed state, which names the suspended call and the round. A state is
valid for one round. `gateway.calls.questions` has the questions that wait, and their limits.
"""

import asyncio
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.suspended_call import InputRequest, SuspendedCall
from gateway.errors import UNREAD
from gateway.protocol.capabilities import may_be_asked
from gateway.protocol.methods import MAY_ASK
from transports.era import Era
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, InvalidMessage, Message, Object, encode

__all__ = ["answer_suspended", "ask_modern", "refuse_suspended", "without_modern_gaps"]

_UNCLEAR_FOR_S: Final = 0.5
"""On stdio a question does not name its call. A question that may belong to several calls waits this long for all
but one to end."""

_GATHER_S: Final = 0.02
"""Questions that a server asks within this time reach the client together."""


def ask_modern(live: LiveSession, conversation: Conversation, message: Message, call: Exchange | None) -> None:
    """Send a legacy server's request to the modern client whose call it belongs to, or refuse it. `call` is that call,
    if the request names it."""
    _ask_or_refuse(live, conversation, message, call, unclear=call is None)


def _ask_or_refuse(
    live: LiveSession, conversation: Conversation, message: Message, call: Exchange | None, *, unclear: bool
) -> None:
    try:
        _ask(live, conversation, message, call, unclear=unclear)
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        conversation.refuse(encode(message.id), INVALID_PARAMS, f"The request cannot be read: {error}")


def _ask(
    live: LiveSession, conversation: Conversation, message: Message, call: Exchange | None, *, unclear: bool
) -> None:
    server_id, method = encode(message.id), str(message.method)
    calls = [e for e in conversation.calls.sent.values() if e.method in MAY_ASK]
    active = [e for e in calls if not e.is_suspended]
    if not calls:
        reason = f"{method} can be asked during a call only, and no call is in progress."
        conversation.refuse(server_id, METHOD_NOT_FOUND, reason)
        return
    if len(active) > 1 and unclear:
        _wait_for_others(live, conversation, message)
        return
    exchange = call if call in calls else active[0] if active else calls[0]
    if exchange.caller is None and live.session.era != Era.MODERN:
        live.questions.ask(conversation, message, exchange)
        return
    has_params = message.params is not msgspec.UNSET
    params = message.params_object() if has_params else None
    if params is not None:
        # The client of a task can be of the server's era.
        params = without_modern_gaps(method, params) if exchange.era == "modern" else without_task(params)
    question = InputRequest(conversation, server_id, method, params)
    if exchange.caller is None or not may_be_asked(exchange.caller.capabilities, method, question.params or {}):
        conversation.refuse(server_id, METHOD_NOT_FOUND, f"The client has not declared that it answers {method}.")
        return
    known = exchange.take_replay(question.digest)
    if known is not None:
        question.answer(msgspec.Raw(known.encode()))
    elif not live.questions.suspend(exchange, question):
        conversation.refuse(server_id, UNREAD, "Too many requests already wait for this client.")
    elif not exchange.is_suspended and exchange.suspendable().gather():
        asyncio.get_running_loop().call_later(_GATHER_S, _gathered, conversation, exchange)


def _wait_for_others(live: LiveSession, conversation: Conversation, message: Message) -> None:
    size = 0 if isinstance(message.params, msgspec.UnsetType) else len(memoryview(message.params))
    if not live.questions.hold_unclear(size):
        conversation.refuse(encode(message.id), UNREAD, "Too many requests already wait for other calls to end.")
        return

    def again() -> None:
        live.questions.release_unclear(size)
        _ask_or_refuse(live, conversation, message, None, unclear=False)

    asyncio.get_running_loop().call_later(_UNCLEAR_FOR_S, again)


def _gathered(conversation: Conversation, exchange: Exchange) -> None:
    suspended = exchange.suspendable()
    suspended.gathered()
    if suspended.questions and conversation.calls.is_sent(exchange):
        _suspend(exchange)


def without_modern_gaps(method: str, params: Object) -> Object:
    """The params of a question without what the modern era does not know: the id of an elicitation, and tasks."""
    plain = without_task(params)
    if method == "elicitation/create":
        plain.pop("elicitationId", None)
    return plain


def without_task(params: Object) -> Object:
    """The params of a question that is no task of the client's."""
    return {key: value for key, value in params.items() if key != "task"}


def _suspend(exchange: Exchange) -> None:
    """End the client's present request with the questions of its server."""
    suspended, conversation = exchange.suspended, exchange.conversation
    assert suspended is not None and conversation is not None
    suspended.ask_until(monotonic() + conversation.deadlines.suspended_s)
    exchange.suspend(
        {
            "resultType": msgspec.Raw(b'"input_required"'),
            "inputRequests": msgspec.Raw(encode(suspended.requests())),
        }
    )


def answer_suspended(exchange: Exchange, responses: Object) -> None:
    """Send the client's answers to the server, and ask the client again for missing ones."""
    suspended = exchange.suspended
    assert suspended is not None
    exchange.resumed()
    suspended.take_answers(responses)
    _go_on(exchange, suspended)


def refuse_suspended(exchange: Exchange, key: str, error: Message) -> None:
    """As `answer_suspended`, for one question that the client answers with an error."""
    suspended = exchange.suspended
    assert suspended is not None
    exchange.resumed()
    suspended.take_error(key, error)
    _go_on(exchange, suspended)


def _go_on(exchange: Exchange, suspended: SuspendedCall) -> None:
    exchange.restart_deadline()
    if suspended.questions and exchange.conversation is not None and not exchange.is_over:
        _suspend(exchange)
