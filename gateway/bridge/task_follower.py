"""Follow the task that a modern server has created for a call: poll it, answer its questions, and cancel it if the call
ends first.

Subclasses handle the outcome, the status messages and the questions: they pass them to the call of a legacy client
(`FollowedTask`), or to a task of the gateway (`gateway.tasks.gateway_tasks.questions_to_client`).
"""

import asyncio
import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from time import monotonic
from typing import Annotated, Any, Final

import msgspec

from gateway.bridge.question_rounds import may_ask
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import live_session_of
from gateway.calls.questions_to_client import MAX_QUESTIONS_OF_CALL, Questions
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.observability.logs import CORRELATION
from gateway.protocol.extensions import object_of
from gateway.protocol.input_requests import Question, for_legacy_client, question_of
from gateway.protocol.result_translation import legacy_error, legacy_result
from gateway.protocol.tasks import MAX_ID_CHARS, TaskAtServer, created_at, is_same_time
from session_store import StoreUnavailable
from transports.inbound_port import Refused
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidMessage,
    Message,
    Object,
    decode_object,
    encode,
    encode_notification,
    splice,
)
from transports.upstream_port import Link, LinkClosed

CANCEL_S: Final = 30.0
"""Seconds that a cancellation may take, including the opening of a link."""

_DEFAULT_POLL_S: Final = 1.0
"""Seconds between two polls, if the server suggests none."""

_LEAST_POLL_S, _MOST_POLL_S = 0.1, 60.0

MAX_ASKED: Final = 10 * MAX_QUESTIONS_OF_CALL
"""Maximum number of questions of one task to its client: as many as a call may ask in all its rounds."""

_TaskId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]

_MOST_FAILURES: Final = 5
"""Consecutive failed polls after which the gateway gives up a server behind a URL."""


def pause_s(failures: int) -> float:
    """Return the seconds to wait before a server is polled again after `failures` consecutive failures."""
    return float(2 ** (failures - 1))


def register_sent(conversation: Conversation, exchange: Exchange) -> None:
    """Register a call as sent in this conversation, without sending it. An earlier gateway process has sent it, and the
    server works on it as a task. Restart the call's deadline."""
    exchange.sent_as(conversation, conversation.next_number(), None, monotonic())
    exchange.goes_on()
    conversation.move_to_waiting(exchange, ExchangeEvent.REQUEUE)
    exchange.step(ExchangeEvent.SEND)


def cancel_at_server(conversation: Conversation, params: bytes, resumed: TaskAtServer | None) -> None:
    """Cancel a task at a server that is not a child process, without waiting for it. `params` are those of the
    `tasks/cancel`. `resumed` is the task if an earlier gateway process has followed it: then cancel it only if the
    server confirms that it still has the same task."""
    if resumed is None and conversation.is_open:
        conversation.request("tasks/cancel", params)
    else:
        conversation.in_background(_cancel(conversation, params, resumed))


async def _cancel(conversation: Conversation, params: bytes, resumed: TaskAtServer | None) -> None:
    with contextlib.suppress(*UNREACHED, TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await conversation.ready()
            if resumed is None or is_known(await conversation.ask("tasks/get", params), resumed):
                conversation.request("tasks/cancel", params)


def is_known(answer: Message, task: TaskAtServer) -> bool:
    """Return True if an answer to `tasks/get` is about the given task. Compare the creation times too, because a
    restarted server may have given the id to another task."""
    if not isinstance(answer.result, msgspec.Raw):
        return False
    return is_same_time(created_at(object_of(answer.result)), task.created_at)


class TaskFollower(ABC):
    """Follow the task that a modern server has created for one call. `meta` is sent to the server in each request."""

    def __init__(self, conversation: Conversation, exchange: Exchange, meta: Object) -> None:
        self._conversation = conversation
        self._exchange = exchange
        self._meta = meta
        self._own_id = ""
        self._poll_s = _DEFAULT_POLL_S
        self._process: Link | None = None  # the link to the process that has the task
        self._running: asyncio.Task[Any] | None = None
        self._is_over = False  # the server's task is over, or has been cancelled
        self._seen: tuple[Any, Any] = ("", "")  # the last status and message
        self._asked: Set[str] = frozenset()  # questions that the server lists, and the client has got
        self._count = 0
        self._unsent: Object = {}  # answers of the client that the server does not have
        self._sent: Object = {}  # answers that the server has acknowledged, until it no longer lists their questions
        self._wake = asyncio.Event()
        # The task that an earlier process has followed, and what to call if the server does not know the task.
        self._resumed: tuple[TaskAtServer, Callable[[], None]] | None = None

    def begin(self, created: Object) -> None:
        """Begin to follow, in the background, the task that the server has just created. `created` is the server's
        description of it. Raises `msgspec.MsgspecError`: the task has no id, or too long an id."""
        self._own_id = msgspec.json.decode(created.get("taskId", b"null"), type=_TaskId)
        self._poll_s = _interval(created)
        if self._conversation.is_process:
            self._process = self._conversation.link
        elif self._conversation.is_remote:
            self._exchange.task_created(TaskAtServer(self._own_id, created_at(created), self._conversation.era))
        self._exchange.when_done(self._done)
        self._conversation.move_to_waiting(self._exchange, ExchangeEvent.REQUEUE)
        self._exchange.step(ExchangeEvent.SEND)  # the server has the call, as a task: the call's deadline runs
        self._conversation.in_background(self._follow())

    def resume(self, task: TaskAtServer, lost: Callable[[], None]) -> None:
        """Begin to follow, in the background, a task that an earlier gateway process has followed. The caller has
        registered the call with `register_sent`. Call `lost` if the server does not know the task: `lost` must end the
        call or send it again. If the call has already ended, cancel the task."""
        self._own_id, self._resumed = task.id, (task, lost)
        if self._exchange.is_over:
            self._cancel()
            return
        self._wake.set()  # polls at once
        self._exchange.when_done(self._done)
        self._conversation.in_background(self._follow())

    # -- for subclasses

    @abstractmethod
    def _complete(self, result: Object) -> None:
        """End the call with the result of the task."""

    @abstractmethod
    def _end_with(self, error: msgspec.Raw) -> None:
        """End the call with an error that the server has sent."""

    @abstractmethod
    def _ask(self, questions: Mapping[str, Question]) -> None:
        """Ask the client these questions. Call `_answered` with each answer."""

    @abstractmethod
    def _progress(self, message: object) -> None:
        """Tell the client the new status message of the task."""

    @abstractmethod
    def _withdraw(self, keys: Set[str]) -> None:
        """Cancel these questions to the client, because the server no longer lists them."""

    def _end(self, message: Message) -> None:
        """End the call with this response."""
        self._conversation.end(self._exchange)
        self._exchange.finish_translated(message)

    # -- following

    @property
    def _is_ended(self) -> bool:
        return self._is_over or self._exchange.is_over

    async def _follow(self) -> None:
        CORRELATION.set(self._exchange.correlation)  # for the log lines of this asyncio task
        self._running = asyncio.current_task()
        self._conversation.hold_link()
        try:
            await self._poll()
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._fail(OUTCOME_UNKNOWN, f"server {self._conversation.name!r} sent a task that cannot be read: {error}")
        except UNREACHED as error:
            self._fail(OUTCOME_UNKNOWN, f"{error}; whether the call took effect is unknown")
        except Exception as error:  # nobody else would answer the call
            self._conversation.fail_start(self._exchange, error, OUTCOME_UNKNOWN)
        finally:
            self._running = None
            self._conversation.free_link()
        self._cancel()

    async def _poll(self) -> None:
        failures = 0
        while not self._is_ended:
            wait_s = max(self._poll_s, pause_s(failures)) if failures else self._poll_s
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)
            self._wake.clear()
            if self._is_ended:
                return
            try:
                await self._request_once()
                failures = 0
            except (*UNREACHED, Refused, StoreUnavailable):
                failures += 1
                if self._process is not None or failures == _MOST_FAILURES:
                    raise

    async def _request_once(self) -> None:
        """Send the server those answers of the client that it does not have yet. If there are none, request the state
        of the task."""
        if self._process is not None and self._conversation.link is not self._process:
            self._is_over = True  # a later process may give the same id to another task
            raise LinkClosed(f"the process of server {self._conversation.name!r} has ended")
        if self._process is None or not self._conversation.is_open:
            await self._conversation.ready()  # it also asks for tokens, but a timer keeps those of an open link current
        if not self._unsent:
            self._take(await self._conversation.ask("tasks/get", self._request()))
            return
        answers = dict(self._unsent)
        await self._conversation.ask("tasks/update", self._request({"inputResponses": answers}))
        self._sent |= answers
        self._unsent = {key: answer for key, answer in self._unsent.items() if key not in answers}

    def _request(self, more: Mapping[str, Any] | None = None) -> bytes:
        return encode({"taskId": self._own_id, **(more or {}), "_meta": self._meta})

    def _take(self, answer: Message) -> None:
        """Handle the server's answer to `tasks/get`, which has the state of the task."""
        if self._is_ended:
            return
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not is_known(answer, resumed[0]):
            self._is_over = True
            resumed[1]()
            return
        if not isinstance(answer.result, msgspec.Raw):
            self._is_over = True
            assert isinstance(answer.error, msgspec.Raw)
            self._end_with(answer.error)
            return
        task = decode_object(answer.result.copy(), "a task")
        self._poll_s = _interval(task)
        match msgspec.json.decode(task.get("status", b"null")):
            case "completed":
                self._is_over = True
                if "result" not in task:
                    raise InvalidMessage(INVALID_PARAMS, "it is completed, and has no result")
                self._complete(decode_object(task["result"], "result"))
            case "failed":
                self._is_over = True
                if bytes(task.get("error", b"null")) == b"null":
                    self._fail(INTERNAL_ERROR, "The server's task has failed, and the server does not say why.")
                else:
                    decode_object(task["error"], "its error")
                    self._end_with(task["error"])
            case "cancelled":
                self._is_over = True
                self._fail(CANCELLED, "Cancelled: the server has cancelled the task")
            case status:
                self._goes_on(task, status)

    def _fail(self, code: int, reason: str) -> None:
        self._conversation.fail(self._exchange, code, reason)

    def _goes_on(self, task: Object, status: object) -> None:
        message = msgspec.json.decode(task.get("statusMessage", b'""'))
        if (status, message) != self._seen:
            self._seen = (status, message)
            self._exchange.restart_deadline()
            self._progress(message)
        requests: Object = {}
        if status == "input_required":
            requests = decode_object(task.get("inputRequests", b"{}"), "inputRequests")
        gone, new = self._asked - requests.keys(), requests.keys() - self._asked
        # The server has not got an answer as long as it lists the question.
        self._unsent = {key: answer for key, answer in (self._sent | self._unsent).items() if key in requests}
        self._sent = {}
        self._asked = self._asked & requests.keys()
        if gone:
            self._withdraw(gone)
        self._count += len(new)
        if self._count > MAX_ASKED:
            self._fail(INTERNAL_ERROR, f"The server's task asked its client more than {MAX_ASKED} times.")
        elif new:
            self._asked = self._asked | new
            self._ask({key: question_of(raw) for key, raw in requests.items() if key in new})

    def _answered(self, key: str, answer: msgspec.Raw) -> None:
        """Queue the client's answer to a question of the task, to be sent to the server."""
        if not self._is_ended:
            self._unsent[key] = answer.copy()  # a slice would keep the whole message in memory
            self._wake.set()

    # -- its end

    def _done(self) -> None:
        """Stop following the task, because the call has ended."""
        if self._running is not None and self._running is not asyncio.current_task():
            self._running.cancel()  # it may wait for an answer of the server
        self._cancel()

    def _cancel(self) -> None:
        """Cancel the server's task, unless it has ended."""
        if not self._is_over:
            self._is_over = True
            if self._process is not None:
                self._conversation.request("tasks/cancel", self._request())
            elif not self._exchange.keeps_task_at_server:
                resumed = None if self._resumed is None else self._resumed[0]
                cancel_at_server(self._conversation, self._request(), resumed)


def _interval(task: Object) -> float:
    """Return the seconds before the task is polled again: the server's suggestion, within limits."""
    with contextlib.suppress(msgspec.MsgspecError):
        suggested = msgspec.json.decode(task.get("pollIntervalMs", b"null"), type=float)
        return min(max(suggested / 1_000, _LEAST_POLL_S), _MOST_POLL_S)
    return _DEFAULT_POLL_S


class FollowedTask(TaskFollower):
    """Answer a legacy client's call with the outcome of the task that its server has created."""

    def __init__(self, conversation: Conversation, exchange: Exchange, params: Object, meta: Object) -> None:
        super().__init__(conversation, exchange, {key: value for key, value in meta.items() if key != "progressToken"})
        self._params = params
        self._sent_progress = 0

    def _complete(self, result: Object) -> None:
        plain = encode(legacy_result(self._exchange.method, result))
        self._end(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(plain)))

    def _end_with(self, error: msgspec.Raw) -> None:
        error = legacy_error(self._exchange.method, self._params, error)
        self._end(Message(jsonrpc="2.0", id=0, error=error))

    def _progress(self, message: object) -> None:
        """Send the client the status message of the task as progress, if the client has requested progress."""
        token = self._exchange.progress_token
        if token is not None and isinstance(message, str) and message:
            self._sent_progress += 1
            params = {"progressToken": token, "progress": self._sent_progress, "message": message}
            self._exchange.emit(encode_notification("notifications/progress", splice(encode(params))))

    def _ask(self, questions: Mapping[str, Question]) -> None:
        live = live_session_of(self._exchange)
        if live is None:
            self._fail(OUTCOME_UNKNOWN, "the task asked its client, which has no session")
            return
        # An error ends the call, and so cancels the task.
        if may_ask(self._exchange, questions):
            ask_legacy_client(live.questions, self._conversation, self._exchange, questions, self._answered)

    def _withdraw(self, keys: Set[str]) -> None:
        live = live_session_of(self._exchange)
        if live is not None and not self._asked:
            live.withdraw_questions(self._exchange)


def ask_legacy_client(
    questions: Questions,
    conversation: Conversation,
    exchange: Exchange,
    asked: Mapping[str, Question],
    answered: Callable[[str, msgspec.Raw], None],
) -> None:
    """Ask the legacy client of a call the questions `asked`. Call `answered` with the key of each question and the
    client's result. If the client answers with an error, end the call with it. `questions` tracks the open questions of
    the client's session."""

    def receive(key: str, message: Message) -> None:
        if isinstance(message.error, msgspec.Raw):
            # The modern era cannot pass an error to the server: the call ends with the client's error.
            conversation.end(exchange)
            exchange.finish_translated(message)
        elif isinstance(message.result, msgspec.Raw):
            answered(key, message.result)

    for key, question in asked.items():
        method, params = for_legacy_client(question)
        questions.ask_from_result(exchange, method, params, functools.partial(receive, key))
