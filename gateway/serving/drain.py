"""Drain a gateway: end its streams, and hand each session to another replica when its calls are answered."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.errors import OUTCOME_UNKNOWN, STORE_UNAVAILABLE
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.subscription_filter import ENDED
from gateway.serving.readiness import Readiness, ServingState
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.task_table import TaskTable
from session_store import StoreUnavailable
from transports.jsonrpc import Message

logger = logging.getLogger(__name__)

HAND_OVER_S: Final = 10.0
"""The maximum seconds that a drain waits for calls in flight, and that a stop waits for working tasks."""

_ANSWER_S: Final = 1.0
"""Seconds before the end of the drain at which waiting clients get an error, because the end closes their connections.
A client that waits for the result of a task is told to ask for it again. A client that waits for the answer to a call
is told that the outcome of the call is unknown."""

_STOPPING: Final = "the gateway stops, and the task is not over: ask for its result again"
_CUT: Final = "the gateway stops, and the server has not answered; whether the call took effect is unknown"

LINGER_S: Final = 2.0
"""Seconds for which a draining gateway still serves new requests if there are other replicas. Meanwhile, load balancers
notice that it is not ready. If it closed idle connections at once, requests that are under way would be lost."""


@dataclass(eq=False, repr=False, kw_only=True)
class Drain:
    """Drain this process, and report whether it is ready. Implements `gateway.admin.this_replica.Serving`."""

    state: ServingState
    readiness: Readiness
    live: LiveSessions
    lifecycle: SessionLifecycle
    cluster: Cluster | None
    tasks: TaskTable
    rates: RateLimits

    def __post_init__(self) -> None:
        self._until = 0.0  # end of the drain, by the loop's clock; 0: no drain has begun
        self._last_answers: asyncio.TimerHandle | None = None

    @property
    def is_draining(self) -> bool:
        return self.state.is_draining

    async def is_ready(self) -> bool:
        return await self.readiness.is_ready()

    async def drain(self) -> None:
        self.state.start_draining()
        self.rates.release_waiting()
        loop = asyncio.get_running_loop()
        self._until = loop.time() + HAND_OVER_S
        self._answer_no_more()
        self._last_answers = loop.call_later(HAND_OVER_S - _ANSWER_S, self._answer_waiting)
        for live in self.live:
            _end_streams(live)
        if self.cluster is not None:
            linger_s = LINGER_S if await self._has_peers(self.cluster) else 0.0
            await asyncio.gather(self._hand_over(), asyncio.sleep(linger_s))
            await self._hand_over()  # sessions of dead owners that were claimed meanwhile

    async def tasks_end(self) -> None:
        """Wait until the working tasks of this process have ended, or the drain is over. Begin the drain if it has not
        begun.

        The HTTP server does not wait for tasks, because no request is open for them. A task that has asked its client a
        question is not waited for: no answer can arrive any more.
        """
        loop = asyncio.get_running_loop()
        if not any(_works(running) for running in self.tasks):
            return
        if not self._until:
            self.state.start_draining()
            self._until = loop.time() + HAND_OVER_S
        if loop.time() < self._until:
            logger.info("%d tasks still work: the gateway waits for them", len(self.tasks))
        while loop.time() < self._until and any(_works(running) for running in self.tasks):  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.05)

    def hurry(self) -> None:
        """End the wait of `drain` for calls, and that of `tasks_end` for tasks."""
        self._until = asyncio.get_running_loop().time()

    def admit(self) -> None:
        self.state.stop_draining()
        self._until = 0.0
        self._answer_no_more()
        for live in self.live:
            live.admit()

    def _answer_no_more(self) -> None:
        if self._last_answers is not None:
            self._last_answers.cancel()
            self._last_answers = None

    def _answer_waiting(self) -> None:
        """Answer with an error the requests that wait for the result of a made task, and the calls that were sent to a
        server and are not answered yet. Called shortly before the end of the drain. Calls that can become tasks are
        left alone."""
        for exchange in [each for live in self.live for each in live.exchanges]:
            if exchange.conversation is None or exchange.is_subscription:
                continue
            if exchange.method == "tasks/result" and not exchange.server:
                exchange.conversation.fail(exchange, STORE_UNAVAILABLE, _STOPPING)
            elif type(exchange) is Exchange and exchange.server:  # else it may become a task
                exchange.conversation.fail(exchange, OUTCOME_UNKNOWN, _CUT)

    @staticmethod
    async def _has_peers(cluster: Cluster) -> bool:
        """Return True if there are other replicas, or if the store does not answer."""
        try:
            return await cluster.random_peer() is not None
        except StoreUnavailable:
            return True

    async def _hand_over(self) -> None:
        loop = asyncio.get_running_loop()
        # Calls end in many places. To poll for some seconds is simpler than a notification from each place.
        while loop.time() < self._until:
            with contextlib.suppress(StoreUnavailable):  # it may answer before the end of the drain
                if await self.lifecycle.release_idle():
                    return
            await asyncio.sleep(0.05)


def _works(running: RunningTask) -> bool:
    return running.task.status != "input_required" and not running.task.upstream_id


def _end_streams(live: LiveSession) -> None:
    """End the streams and subscriptions of a session, so that its client opens them at another replica."""
    live.drain()
    for exchange in tuple(live.exchanges):
        if exchange.is_subscription:
            exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(ENDED)))
            exchange.cancel("the gateway is stopping")
