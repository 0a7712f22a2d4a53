"""Translate calls of modern clients (MCP 2026-07-28) for legacy servers (MCP up to 2025-11-25), and responses back."""

import asyncio
import functools
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.bridge.call_suspension import without_modern_gaps
from gateway.bridge.task_follower import cancel_at_server, is_known, pause_s
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.link_manager import UNREACHED
from gateway.calls.server_task_owners import OwnedTask, without_related
from gateway.errors import OUTCOME_UNKNOWN
from gateway.observability.logs import CORRELATION
from gateway.protocol.extensions import SPEC, object_of
from gateway.protocol.result_translation import modern_error, modern_result, urls_required
from gateway.protocol.tasks import TaskAtServer, created_at, own_id
from transports.jsonrpc import Message, Object, encode

_ANSWER_S: Final = 10.0
"""Seconds in which a server has to say whether it knows a task."""

_TRIES: Final = 5
"""Maximum number of attempts to ask an unavailable server about a task that an earlier gateway process has started
there."""

_MODERN_ONLY: Final = frozenset({"_meta", "inputResponses", "requestState", "task"})
_objects: Final = msgspec.json.Decoder(Object)


def legacy_params(params: Object) -> Object:
    """Return the params of a modern client's request without the members that a legacy server does not know, and
    without `task`, so that the server answers with a result and not with a task."""
    return {key: value for key, value in params.items() if key not in _MODERN_ONLY}


def legacy_meta(meta: Object) -> Object:
    """Return the `_meta` of a modern client's request without the keys that MCP 2026-07-28 defines. A legacy server has
    got their values in its handshake."""
    return {key: value for key, value in meta.items() if not key.startswith(SPEC)}


class LegacyServerBridge:
    """Translate the response of a legacy server into the response for a modern client."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def answer_for_client(self, exchange: Exchange, message: Message) -> Message | None:
        """Translate the server's response, and return it for the modern client. An error that asks the user to visit
        URLs becomes an `input_required` result."""
        if isinstance(message.error, msgspec.Raw):
            elicitations = urls_required(message.error)
            if elicitations:
                return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(_visits(elicitations))))
            return Message(jsonrpc="2.0", id=0, error=modern_error(message.error))
        if not isinstance(message.result, msgspec.Raw):
            return message
        return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(self.translator(exchange.method)(message.result)))

    def translator(self, method: str) -> Callable[[msgspec.Raw | bytes], bytes]:
        """Return a function that translates the server's result of this method into the result for the modern
        client."""
        return functools.partial(_translated, method, self._conversation.links.greeting.server_info)


def _translated(method: str, server_info: bytes, result: msgspec.Raw | bytes) -> bytes:
    return encode(modern_result(method, _objects.decode(result), server_info))


def _visits(elicitations: list[Object]) -> Object:
    """Return an `input_required` result that asks the user to visit these URLs. The client then repeats the call. There
    is no `requestState`, because the server has ended the call."""
    requests = {
        f"u{number}": {
            "method": "elicitation/create",
            "params": {"mode": "url", **without_modern_gaps("elicitation/create", elicitation)},
        }
        for number, elicitation in enumerate(elicitations, start=1)
    }
    return {
        "resultType": msgspec.Raw(b'"input_required"'),
        "inputRequests": msgspec.Raw(encode(requests)),
    }


class LegacyTaskBridge(LegacyServerBridge):
    """Run a modern client's call as a task at its legacy server, because the tool can only be called as a task: follow
    the task that the server creates, and answer the call with the task's result (MCP 2025-11-25, Tasks).

    The client gets the server's questions and progress as in any call, and never sees the task."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation)
        self._own_id = ""  # the server's id of the task; empty until the server has made it
        self._is_over = False
        self._unverified: TaskAtServer | None = None  # a resumed task that the server has not confirmed yet

    def answer_for_client(self, exchange: Exchange, message: Message) -> Message | None:
        """Return the response for the modern client. Return None if there is none yet, because the server has created
        the task, or if the call was failed here."""
        if not isinstance(message.result, msgspec.Raw):
            self._over()
            return super().answer_for_client(exchange, message)
        result = msgspec.json.decode(message.result, type=Object)
        if self._own_id or "task" not in result:
            self._over()
            plain = msgspec.Raw(encode(without_related(result)))
            return super().answer_for_client(exchange, msgspec.structs.replace(message, result=plain))
        task = object_of(result["task"])
        self._own_id = own_id(task)
        if not self._own_id or exchange.live is None:
            exchange.fail(OUTCOME_UNKNOWN, f"server {self._conversation.name!r} has made a task that has no id")
            return None
        if self._conversation.is_remote:
            exchange.task_created(TaskAtServer(self._own_id, created_at(task), self._conversation.era))
        exchange.when_done(lambda: self._done(exchange))
        self._await_result(exchange)
        return None

    def resume(self, exchange: Exchange, task: TaskAtServer, lost: Callable[[], None]) -> None:
        """Begin to wait for the result of a task that an earlier gateway process has followed. Call `lost` if the
        server does not know the task: `lost` must end the call or send it again. If the call has already ended, cancel
        the task."""
        self._own_id, self._unverified = task.id, task
        if exchange.is_over:
            self._done(exchange)
            return
        exchange.when_done(lambda: self._done(exchange))
        self._conversation.in_background(self._resume(exchange, task, lost))

    async def _resume(self, exchange: Exchange, task: TaskAtServer, lost: Callable[[], None]) -> None:
        CORRELATION.set(exchange.correlation)  # for the log lines of this asyncio task
        try:
            is_still_known = await self._is_known(task)
        except (*UNREACHED, TimeoutError) as error:
            if not exchange.is_over:
                reason = f"server {self._conversation.name!r} does not report the outcome of its task: {error}"
                self._conversation.fail(exchange, OUTCOME_UNKNOWN, reason)
            return
        if exchange.is_over:
            return
        self._unverified = None
        if is_still_known:
            self._await_result(exchange)
        else:
            self._is_over = True
            lost()

    async def _is_known(self, task: TaskAtServer) -> bool:
        for failures in range(1, _TRIES):
            try:
                return await self._asked(task)
            except UNREACHED:
                await asyncio.sleep(pause_s(failures))
        return await self._asked(task)

    async def _asked(self, task: TaskAtServer) -> bool:
        await self._conversation.ready()
        async with asyncio.timeout(_ANSWER_S):
            return is_known(await self._conversation.ask("tasks/get", self._request()), task)

    def _request(self) -> bytes:
        return encode({"taskId": self._own_id})

    def _await_result(self, exchange: Exchange) -> None:
        assert exchange.live is not None
        owned = OwnedTask(exchange.live, "", seen=lambda task: exchange.restart_deadline(), lost=lambda: None)
        self._conversation.own_task(self._own_id, owned)
        owned.await_result(exchange)
        exchange.use_bridge(self, "tasks/result")
        self._conversation.move_to_waiting(exchange, ExchangeEvent.REQUEUE)
        self._conversation.start_in_background(exchange, {"taskId": msgspec.Raw(encode(self._own_id))}, {})

    def _over(self) -> None:
        self._is_over = True
        tasks = self._conversation.known_tasks
        if tasks is not None:
            tasks.discard(self._own_id, "")

    def _done(self, exchange: Exchange) -> None:
        if self._is_over:
            return
        self._over()  # the client has cancelled the call, or it has timed out
        if self._conversation.is_process:
            self._conversation.request("tasks/cancel", self._request())
        elif not exchange.keeps_task_at_server:
            cancel_at_server(self._conversation, self._request(), self._unverified)
