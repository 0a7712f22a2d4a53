"""A modern client's call of a tool that its legacy server runs as a task only (MCP 2025-11-25, Tasks).

The gateway asks for the task and waits for its result under the same call: what the server asks, and its progress,
reach the client as with any call. The client learns nothing of the task.
"""

import msgspec

from gateway.bridge.legacy_server import LegacyServerBridge
from gateway.calls.background_start import start_in_background
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.owned_tasks import OwnedTask, without_related
from gateway.errors import OUTCOME_UNKNOWN
from transports.jsonrpc import Message, Object, encode

__all__ = ["LegacyTaskBridge", "asking_for_task"]


def asking_for_task(params: Object) -> Object:
    """The params of a call that is to become a task."""
    return params | {"task": msgspec.Raw(b"{}")}


class LegacyTaskBridge(LegacyServerBridge):
    """Follows the task of one call."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation)
        self._own_id = ""  # the server's, once it has made the task
        self._is_over = False

    def finish(self, exchange: Exchange, message: Message) -> Message | None:
        """The client's answer to the call. None if the server has made the task, whose result is asked for."""
        if not isinstance(message.result, msgspec.Raw):
            self._over()
            return super().finish(exchange, message)
        result = msgspec.json.decode(message.result, type=Object)
        if self._own_id or "task" not in result:
            self._over()
            plain = msgspec.Raw(encode(without_related(result)))
            return super().finish(exchange, msgspec.structs.replace(message, result=plain))
        task = msgspec.json.decode(result["task"])
        self._own_id = task["taskId"] if isinstance(task, dict) and isinstance(task.get("taskId"), str) else ""
        if not self._own_id or exchange.live is None:
            exchange.fail(OUTCOME_UNKNOWN, f"server {self._conversation.name!r} has made a task that has no id")
            return None
        owned = OwnedTask(exchange.live, "", seen=lambda task: exchange.restart_deadline(), lost=lambda: None)
        self._conversation.own_task(self._own_id, owned)
        owned.await_result(exchange)
        exchange.when_done(self._done)
        exchange.use_bridge(self, "tasks/result")
        self._conversation.wait(exchange, ExchangeEvent.REQUEUE)
        start_in_background(self._conversation, exchange, {"taskId": msgspec.Raw(encode(self._own_id))}, {})
        return None

    def _over(self) -> None:
        self._is_over = True
        tasks = self._conversation.known_tasks
        if tasks is not None:
            tasks.discard(self._own_id, "")

    def _done(self) -> None:
        if not self._is_over:  # the client has cancelled the call, or it has timed out
            self._over()
            self._conversation.request("tasks/cancel", encode({"taskId": self._own_id}))
