"""Track the questions (requests such as `elicitation/create`) of servers to the client of one session, and limit them.

A legacy client gets a question as a request, on the stream of the call or on the session's own stream. A modern client
gets it in a result of the call, which is then suspended until the client answers with another request
(`gateway.bridge.call_suspension` decides which call, and when).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.suspended_call import AskingServer, InputRequest
from gateway.errors import CALL_TIMED_OUT, UNREAD
from gateway.protocol.params import meta_of
from transports.jsonrpc import Message, Object, encode, encode_notification, encode_request, splice
from transports.reply_queue import MAX_QUEUED_BYTES

TOO_MANY: Final = "Too many requests already wait for this client."
"""The message of a refused question, if the client has too many to answer."""

MAX_QUESTIONS: Final = 256
"""Maximum number of open questions of one session to a legacy client."""

MAX_SUSPENDED: Final = 64
"""Maximum number of suspended calls of one session."""

MAX_QUESTIONS_OF_CALL: Final = 32
"""Maximum number of open questions of one call to a modern client."""

MAX_SERVER_ID_BYTES: Final = 1_024
"""Maximum bytes of the request id and of the progress token in a server's request to a client, as JSON. Both are stored
until the client answers."""


@dataclass(frozen=True, slots=True)
class _ClientRequest:
    """A question that was sent to a legacy client as a request."""

    server: AskingServer
    server_id: bytes
    """The id of the server's request, as JSON. Empty for a question in the result of a call (MCP 2026-07-28)."""
    exchange: Exchange | None
    """The call to which the question belongs. None if unknown."""
    progress_token: msgspec.Raw | None
    """The server's own progress token for the question."""
    answered: Callable[[Message], None]
    """Called with the client's response."""
    method: str
    at: float = field(default_factory=monotonic)
    """When the question was sent, by the monotonic clock."""


class Questions:
    """The open questions of servers to the client of one session. `send` sends a message on the session's own stream;
    it returns False if the message is dropped. `noted` is called when a question is asked or answered: with its call
    (or None), its method, `asked` or `answered`, and the seconds since it was sent."""

    __slots__ = ("_last", "_noted", "_open", "_send", "_unclear", "suspended")

    def __init__(
        self,
        send: Callable[[bytes], bool],
        noted: Callable[[Exchange | None, str, str, float], None] = lambda exchange, method, outcome, took_s: None,
    ) -> None:
        self._send = send
        self._noted = noted
        self._open: dict[int, _ClientRequest] = {}
        self._last = 0
        self.suspended: dict[str, Exchange] = {}  # calls of a modern client by name; those that ended stay for a while
        self._unclear: list[int] = []  # sizes of questions that may belong to one of several calls

    # -- to a legacy client

    def ask(self, server: AskingServer, message: Message, exchange: Exchange | None) -> None:
        """Send a server's request to the legacy client: on the stream of the call to which it belongs, or on the
        session's own stream. If that is impossible, answer the server with an error."""
        server_id = encode(message.id)
        if len(self._open) >= MAX_QUESTIONS:
            server.refuse(server_id, UNREAD, TOO_MANY)
            return

        given = None if message.params is msgspec.UNSET else message.params_object()
        params, token = self._with_progress_token(given)
        answered = functools.partial(server.answer, server_id)
        question = _ClientRequest(server, server_id, exchange, token, answered, str(message.method))
        if not self._put(question, params):
            server.refuse(server_id, UNREAD, "The client does not read its messages.")

    def ask_from_result(
        self, exchange: Exchange, method: str, params: Object | None, answered: Callable[[Message], None]
    ) -> None:
        """Send a legacy client a question that came in the result of a call. Cancel the call if that is impossible.
        `answered` is called with the response."""
        conversation = exchange.conversation
        assert conversation is not None
        if len(self._open) >= MAX_QUESTIONS:
            conversation.cancel(exchange, "too many requests wait for this client already")
            return
        params, token = self._with_progress_token(params)
        if not self._put(_ClientRequest(conversation, b"", exchange, token, answered, method), params):
            conversation.cancel(exchange, "the client does not read its messages")

    def _put(self, question: _ClientRequest, params: Object | None) -> bool:
        self._last += 1
        number, exchange, method = self._last, question.exchange, question.method
        self._open[number] = question
        frame = splice(encode_request(number, method, None if params is None else encode(params)))
        if not (self._send(frame) if exchange is None else exchange.emit(frame)):
            del self._open[number]
            return False
        self._noted(exchange, method, "asked", 0.0)
        return True

    def _with_progress_token(self, params: Object | None) -> tuple[Object | None, msgspec.Raw | None]:
        """Put the request id of the next question to the client in place of the progress token in `params`. Return the
        new params, and the server's own token (None if it has sent none, or one that is too large)."""
        if params is None:
            return None, None
        meta = meta_of(params)
        token = meta.get("progressToken")
        if token is None:
            return params, None
        if len(memoryview(token)) > MAX_SERVER_ID_BYTES:
            del meta["progressToken"]
            rest = {name: value for name, value in params.items() if name != "_meta"}
            return rest | ({"_meta": msgspec.Raw(encode(meta))} if meta else {}), None
        # A copy: a slice would keep the whole message in memory.
        token = msgspec.Raw(bytes(token))
        own = msgspec.Raw(encode(self._last + 1))
        return params | {"_meta": msgspec.Raw(encode(meta | {"progressToken": own}))}, token

    def answered(self, message: Message) -> bool:
        """Forward a client's response to the server that asked. Return False if the question is not open."""
        question = self._open.pop(message.id, None) if isinstance(message.id, int) else None
        if question is None:
            return False
        self._noted(question.exchange, question.method, "answered", monotonic() - question.at)
        question.answered(message)
        if question.exchange is not None:
            question.exchange.restart_deadline()
        return True

    def asker(self, number: object) -> tuple[AskingServer, msgspec.Raw] | None:
        """Return the server that has asked the question whose request id at the client is `number`, and the server's
        own progress token. Return None if there is no such question, or it has no token."""
        question = self._open.get(number) if isinstance(number, int) else None
        if question is None or question.progress_token is None:
            return None
        return question.server, question.progress_token

    # -- to a modern client

    @property
    def has_suspended(self) -> bool:
        """Return True if a call is suspended until the client answers."""
        return any(exchange.is_suspended for exchange in self.suspended.values())

    def suspend(self, exchange: Exchange, question: InputRequest) -> bool:
        """Add a question to the questions that a modern client gets for its call. Return False if the limits are
        reached."""
        # The table also has calls that have ended, only so that their clients find them.
        waiting = sum(1 for other in self.suspended.values() if other.is_suspended and other is not exchange)
        held = sum(other.suspended.size for other in self.suspended.values() if other.suspended is not None)
        asked = 0 if exchange.suspended is None else len(exchange.suspended.questions)
        if waiting >= MAX_SUSPENDED or asked >= MAX_QUESTIONS_OF_CALL or held + question.size > MAX_QUEUED_BYTES:
            return False
        suspended = exchange.suspendable()
        if suspended.call not in self.suspended:
            self.suspended[suspended.call] = exchange
            # The names of the newest ended calls keep a late client from starting them again.
            for name in [name for name, call in self.suspended.items() if call.is_over][:-MAX_SUSPENDED]:
                del self.suspended[name]
        suspended.add(question)
        self._noted(exchange, question.method, "asked", 0.0)
        return True

    def hold_unclear(self, size: int) -> bool:
        """Count a waiting question of `size` bytes that may belong to one of several calls. Return False, and count
        nothing, if too many such questions wait."""
        if len(self._unclear) >= MAX_QUESTIONS_OF_CALL or sum(self._unclear) + size > MAX_QUEUED_BYTES:
            return False
        self._unclear.append(size)
        return True

    def release_unclear(self, size: int) -> None:
        """Stop counting a question that `hold_unclear` has counted."""
        self._unclear.remove(size)

    # -- their end, in both eras

    def withdraw(self, server: AskingServer, server_id: bytes, params: Object) -> None:
        """Cancel a question, because the server has cancelled its request with this id (JSON). Notify a legacy client
        with `params`, but with the id that this client knows."""
        self._withdraw_suspended(server, server_id)
        for number, question in list(self._open.items()):
            if question.server is server and question.server_id == server_id:
                self._cancel(number, question, params)

    def withdraw_for(self, exchange: Exchange) -> None:
        """Cancel the open questions that came in results of this call, because it has ended. Keep those that the server
        has sent as requests."""
        for number, question in list(self._open.items()):
            if question.exchange is exchange and not question.server_id:
                self._cancel(number, question, {})

    def closed(self, server: AskingServer) -> None:
        """Cancel the open requests of a server whose link is closed. Keep the questions from results of calls: the
        server's next process gets their answers."""
        self._withdraw_suspended(server, None)
        for number, question in list(self._open.items()):
            if question.server is server and question.server_id:
                self._cancel(number, question, {})

    def _withdraw_suspended(self, server: AskingServer, server_id: bytes | None) -> None:
        for exchange in self.suspended.values():
            if exchange.suspended is not None:
                exchange.suspended.withdraw(server, server_id)

    def _cancel(self, number: int, question: _ClientRequest, params: Object) -> None:
        del self._open[number]
        params = params | {"requestId": msgspec.Raw(encode(number))}
        frame = encode_notification("notifications/cancelled", splice(encode(params)))
        if question.exchange is None or not question.exchange.emit(frame):
            self._send(frame)

    def end(self, reason: str) -> None:
        """Answer all open requests of servers with an error, and give up the suspended calls' questions, because the
        session has ended."""
        for question in self._open.values():
            if question.server_id:
                question.server.refuse(question.server_id, UNREAD, f"{reason.capitalize()}.")
        self._open.clear()
        for exchange in self.suspended.values():
            if exchange.suspended is not None:
                exchange.suspended.give_up()
        self.suspended.clear()


def give_up(exchange: Exchange) -> None:
    """Answer the questions of a suspended call whose modern client did not answer in time, and cancel the call."""
    assert exchange.suspended is not None and exchange.conversation is not None
    exchange.suspended.give_up()
    exchange.conversation.cancel(exchange, "the client did not send its answers in time", CALL_TIMED_OUT)
