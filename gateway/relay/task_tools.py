"""Three tools with which any model can start a call, go on, and fetch its result later (`gateway.tasks.tools`).

They give clients that do not know the tasks extension what it gives to others. A call that is started goes the way of
every call: policy, rates and quotas apply to it.
"""

import asyncio
import math
from collections.abc import Mapping
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import live_session_of
from gateway.calls.unnamed import unnamed
from gateway.errors import OUTCOME_UNKNOWN, unknown_tool
from gateway.identity.request_context import RequestContext
from gateway.protocol.params import text_of
from gateway.protocol.results import tool_error, tool_result
from gateway.relay.endpoint import Endpoint
from gateway.relay.intake import Intake
from gateway.relay.task_tool_list import ARGUMENTS, MAX_WAIT_S, NAMES, RESULT, START, with_task_tools
from gateway.tasks.exchange import StartedExchange
from gateway.tasks.handles import TaskHandle, TaskHandles
from gateway.tasks.made import MadeTasks
from gateway.tasks.maker import TaskMaker
from gateway.tasks.refusals import UnknownTask
from gateway.tasks.running import RunningTask
from session_store import Task
from session_store.session import redact
from transports.era import LEGACY
from transports.inbound_port import Answer, OwnedByPeer, Refused, Request
from transports.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, InvalidMessage, Message, Object, decode_object, encode
from transports.reply_queue import ReplyQueue
from transports.soon import arrived

__all__ = ["TaskTools"]

_LOOK_EVERY_S: Final = 0.25


class TaskTools:
    """Lists and serves the three tools."""

    def __init__(
        self,
        *,
        maker: TaskMaker,
        made: MadeTasks,
        handles: TaskHandles,
        intake: Intake,
        endpoints: Mapping[str, Endpoint],
    ) -> None:
        self._maker = maker
        self._made = made
        self._handles = handles
        self._intake = intake
        self._endpoints = endpoints

    def takes(self, exchange: Exchange, params: Object) -> bool:
        """Whether a request is a call of one of the tools. A list of tools gets them added."""
        if exchange.method == "tools/list":
            exchange.filter_result(with_task_tools)
            return False
        return exchange.method == "tools/call" and live_session_of(exchange) is not None and _name(params) in NAMES

    async def call(
        self,
        exchange: Exchange,
        request: Request,
        who: RequestContext,
        params: Object,
        headers: list[tuple[bytes, bytes]],
    ) -> Answer:
        """Answer a call of one of the tools. Raises `Refused`: 429, too many calls."""
        live = live_session_of(exchange)
        assert live is not None
        await arrived(self._intake.count(live))
        reply, _ = self._intake.begin(exchange, request, who, params, headers)
        exchange.calls_tool(_name(params), math.inf)
        try:
            result = await self._result(exchange, request, who, params)
        except (Refused, InvalidMessage, msgspec.MsgspecError) as error:
            result = tool_error(request.era, str(error))
        except BaseException:
            reply.release()
            raise
        exchange.settle(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(result)))
        return reply

    async def _result(self, exchange: Exchange, request: Request, who: RequestContext, params: Object) -> bytes:
        name = _name(params)
        arguments = decode_object(params.get("arguments", msgspec.Raw(b"{}")), "arguments")
        if unknown := sorted(arguments.keys() - ARGUMENTS[name]):
            reason = f"{name} has no argument {unknown[0][:64]!r}. It has: {', '.join(sorted(ARGUMENTS[name]))}"
            raise Refused(200, INVALID_PARAMS, reason)
        if name == START:
            running = await self._start(exchange, request, who, params, arguments)
            task = running.task
            if _is_refused(running):
                await self._maker.undo(running)
                return _refusal(request, task)
            handle = self._maker.handle_of(task)
            exchange.add_log_facts({"server": task.server, "task": redact(task.id)})
            return tool_result(request.era, f"Started. The task is {handle}", {"task": handle})
        text = text_of(arguments, "task")
        named = self._handles.read_at(text, request.endpoint)
        exchange.add_log_facts({"server": named.server, "task": redact(named.id)})
        wait_s = msgspec.json.decode(arguments.get("wait_s", b"10"), type=float) if name == RESULT else 0.0
        session_id = "" if exchange.session is None else exchange.session.id
        task = await self._current(named, who, session_id, min(max(wait_s, 0.0), MAX_WAIT_S))
        if name == RESULT and task.status == "completed":
            return _outcome(request, task)
        facts = {"task": text, "status": task.status} | ({"message": task.message} if task.message else {})
        if name == RESULT and task.is_over:
            return tool_error(request.era, f"The task has {task.status}: {task.message or _error_of(task).message}")
        return tool_result(request.era, f"{task.status}: {task.message}" if task.message else task.status, facts)

    async def _start(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, arguments: Object
    ) -> RunningTask:
        """Start the call of a tool. It was counted as the call of `start_task`.

        Raises:
            Refused: the tool is unknown or not allowed, or there are too many tasks.
        """
        live = live_session_of(exchange)
        inner: Object = {"name": msgspec.Raw(encode(text_of(arguments, "tool")))}
        if "arguments" in arguments:
            decode_object(arguments["arguments"], "arguments.arguments")
            inner |= {"arguments": arguments["arguments"]}
        inner |= {"_meta": _without_token(params["_meta"])} if "_meta" in params else {}
        started = StartedExchange(
            method="tools/call",
            client_id=unnamed(),
            live=live,
            replies=ReplyQueue(),
            caller=exchange.caller,
            context=exchange.context,
            granted=exchange.granted,
        )
        # The headers mirror the call of `start_task`, and not this one.
        call = msgspec.structs.replace(request, params=inner, headers={}, check_mirrored=None)
        if _name(inner) in NAMES:
            raise Refused(200, INVALID_PARAMS, f"{_name(inner)} is itself a tool of tasks: name another one")
        tool = self._endpoints[request.endpoint].called(live, exchange.context, inner)
        if tool.is_unlisted:
            raise unknown_tool(_name(inner))
        running = await self._maker.begin(started, call, tool)
        try:
            running.hold(await arrived(self._intake.accept_counted(started, call, who, inner, [])))
        except BaseException:
            await self._maker.undo(running)
            raise
        return running

    async def _current(self, handle: TaskHandle, who: RequestContext, session_id: str, wait_s: float) -> Task:
        """The task, once it is over or the time has passed. Raises `Refused`: it is unknown."""
        if handle.kind != "made":
            raise UnknownTask()
        if handle.session_id != session_id:  # that of this call is counted
            await self._made.counted(handle, who)
        until = monotonic() + wait_s
        while True:
            try:
                task = await self._made.current(handle, who)
            except OwnedByPeer:
                # A request is forwarded once, and this one belongs to another session. The record is current enough.
                task = await self._made.find(handle, who)
            if task.is_over or monotonic() >= until:
                return task
            await asyncio.sleep(min(_LOOK_EVERY_S, max(0.0, until - monotonic())))


def _name(params: Object) -> str:
    """The tool of a call; empty if there is none."""
    try:
        return msgspec.json.decode(params.get("name", b'""'), type=str)
    except msgspec.MsgspecError:
        return ""


def _without_token(meta: msgspec.Raw) -> msgspec.Raw:
    """The `_meta` of a call without its progress token: nobody reads the progress but the task."""
    found = decode_object(meta, "_meta")
    found.pop("progressToken", None)
    return msgspec.Raw(encode(found))


def _is_refused(running: RunningTask) -> bool:
    """Whether the gateway has answered a call in place of the server: its arguments are wrong, or the server cannot be
    reached."""
    task = running.task
    return not running.exchange.server and (task.status == "failed" or task.is_tool_error)


def _refusal(request: Request, task: Task) -> bytes:
    """Why a call was not started."""
    if task.is_tool_error:
        return _outcome(request, task)
    error = _error_of(task)
    reason = task.message or error.message
    # The same call may have been started before, by a gateway that is lost.
    return tool_error(request.era, reason if error.code == OUTCOME_UNKNOWN else f"Not started: {reason}")


def _outcome(request: Request, task: Task) -> bytes:
    """The result that the call had, for a client of this era."""
    result = msgspec.json.decode(task.result, type=Object)
    if request.era is LEGACY:
        result.pop("resultType", None)
    else:
        result = {"resultType": msgspec.Raw(b'"complete"')} | result
    return encode(result)


class _Error(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = "no reason was given"


def _error_of(task: Task) -> _Error:
    """What the error of a task says."""
    try:
        return msgspec.json.decode(task.error or b"{}", type=_Error)
    except msgspec.MsgspecError:
        return _Error()
