"""What following a server's task has in common in both eras, after another process has sent the call."""

import asyncio
import contextlib
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.protocol.extensions import object_of
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.tasks import TaskAtServer, created_at, is_same_time
from transports.jsonrpc import Message
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["UNAVAILABLE", "cancel_at_server", "go_on", "is_known", "pause_s"]

UNAVAILABLE: Final = (LinkClosed, UpstreamUnavailable, HandshakeRefused)
"""What a server behind a URL may be for a while."""

CANCEL_S: Final = 30.0
"""How long a link may take to open for a cancellation."""


def pause_s(failures: int) -> float:
    """Return how long to wait, in seconds, before a server is asked again that was so often unavailable in a row."""
    return float(2 ** (failures - 1))


def go_on(conversation: Conversation, exchange: Exchange) -> None:
    """Have a conversation go on with a call that an earlier process has sent, and that the server knows by its task.
    The call's deadline begins anew."""
    exchange.sent_as(conversation, conversation.next_number(), None, monotonic())
    conversation.wait(exchange, ExchangeEvent.REQUEUE)
    exchange.step(ExchangeEvent.SEND)


def cancel_at_server(conversation: Conversation, params: bytes, resumed: TaskAtServer | None = None) -> None:
    """Cancel a task of a server that is no process of the gateway's. `params` are those of `tasks/cancel`. `resumed`:
    an earlier process has followed the task, and the server has not said yet that it still knows the task."""
    if resumed is None and conversation.is_open:
        conversation.request("tasks/cancel", params)
    else:
        conversation.in_background(_cancel(conversation, params, resumed))


async def _cancel(conversation: Conversation, params: bytes, resumed: TaskAtServer | None) -> None:
    with contextlib.suppress(*UNAVAILABLE, TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await conversation.ready()
            if resumed is None or is_known(await conversation.ask("tasks/get", params), resumed):
                conversation.request("tasks/cancel", params)


def is_known(answer: Message, task: TaskAtServer) -> bool:
    """Return True if an answer to `tasks/get` is about that task. A server that was started anew may have given its id
    to another one."""
    if not isinstance(answer.result, msgspec.Raw):
        return False
    return is_same_time(created_at(object_of(answer.result)), task.created_at)
