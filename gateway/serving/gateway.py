"""Offer a gateway to programs that embed it: its parts as attributes, and context managers that run it."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from time import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.admin.auth import SignInLink
from gateway.config.configuration_difference import Difference
from gateway.config.endpoint_paths import HEALTH, READY
from gateway.config.settings import Settings
from gateway.context.session_assertions import HEADER
from gateway.context.state_api import StateAccess, state_api
from gateway.serving.composition import Parts
from gateway.serving.process_lifecycle import Lifecycle
from gateway.serving.reload import Reload
from gateway.upstreams.unmatched_patterns import settings_for_asking
from session_store import Backend, KeyRing, MemoryBackend, Session
from session_store.tool_session import ToolSession

logger = logging.getLogger(__name__)


class Gateway:
    """A gateway, built from its settings. It serves inside `running` or `lifespan`."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Backend | None = None,
        servers: Mapping[str, Any] | None = None,
        ring: KeyRing | None = None,
        clock: Callable[[], float] = time,
        link: SignInLink | None = None,
        strict: bool = False,
        read: Callable[[], Settings] | None = None,
    ) -> None:
        if unread := settings.unread_variables:
            logger.warning(
                "%s: not read, because the settings of this gateway were made in the program. Settings.load() reads "
                "the variables",
                ", ".join(unread),
            )
        parts = Parts(settings, store=store, objects=servers, ring=ring, clock=clock, link=link)
        base, callers, served, resolution = parts.foundation, parts.callers, parts.servers, parts.resolution
        self.parts = parts
        self._lifecycle = Lifecycle(parts, strict=strict)
        self._reload = Reload(parts, read)
        parts.operating.replica.reload_with(self._reload.again)
        self.replica = "" if base.cluster is None else base.cluster.replica
        self.state = base.state
        self.audit = base.audit
        self.metrics = base.metrics
        self.rates = base.rates
        self.limits = base.limits
        self.identity = callers.identity
        self.senders = callers.senders
        self.metadata = callers.metadata
        self.guard = callers.guard
        self.upstreams = served.upstreams
        self.policy = served.policy
        self.calls = served.tool_calls
        self.memory = parts.foundation.memory
        self.assertions = served.assertions
        self.carriers = resolution.carriers
        self.resolver = resolution.resolver
        self.served = parts.http.served
        self.operator_routes = parts.operating.routes
        self.consent_routes = parts.consent.routes
        self.has_console = link is not None or bool(settings.gateway.admin.keys)
        self.state_api = state_api(self._asserted_state)

    @classmethod
    def to_ask(cls, settings: Settings) -> "Gateway":
        """Build a gateway that serves no client. Commands use it to send requests to the servers in the settings."""
        return cls(settings_for_asking(settings), store=MemoryBackend(), ring=KeyRing.ephemeral())

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of all endpoints and probes."""
        return (*self.served, HEALTH, READY)

    @property
    def is_draining(self) -> bool:
        """Return whether the gateway hands its sessions to other replicas."""
        return self.state.is_draining

    async def is_ready(self) -> bool:
        """Return whether load balancers should send requests here."""
        return await self.parts.drain.is_ready()

    @property
    def store_is_away(self) -> bool:
        """Return True if the store has accepted writes before, but not at the last check by `is_ready`."""
        return self.parts.drain.readiness.store_is_away

    @property
    def unavailable(self) -> dict[str, str]:
        """Return the servers that cannot be used now, each with the reason, for operators."""
        return {upstream.name: upstream.state.reason for upstream in self.upstreams if not upstream.has_answered}

    @property
    def store_fault(self) -> str:
        """Return why the session store does not answer, for operators; empty if it answers."""
        return self._lifecycle.store.fault

    @property
    def store_place(self) -> str:
        """Return a text for operators that says where sessions are kept. Of an SQLite file, it says if the file is
        new."""
        return self._lifecycle.store.place

    def tool_session(self, session: Session) -> ToolSession:
        """Return the object by which tools in this process use a session."""
        return self.parts.sessions.tools(session)

    async def try_store(self) -> None:
        """Open the store and close it again. Raises `ConfigurationError` if it cannot be used."""
        await self._lifecycle.try_store()

    def running(self, *, asks_servers: bool = True) -> AbstractAsyncContextManager[None]:
        """Serve inside the block. At its end, end all started servers. If the block ends without an exception, working
        tasks first get up to 10 s. `asks_servers`: probe the servers at the start; False if the caller probes them."""
        return self._lifecycle.running(asks_servers=asks_servers)

    def lifespan(self, _: Any) -> AbstractAsyncContextManager[None]:
        """Serve as long as the app runs that serves or mounts this gateway: `Starlette(lifespan=gateway.lifespan)`."""
        return self._lifecycle.running()

    @property
    def settings(self) -> Settings:
        return self._reload.settings

    async def reload(self, settings: Settings) -> Difference:
        """Give the running gateway another configuration, whole or not at all. Return what has changed, and what only a
        restart changes.

        Raises:
            ConfigurationError: the configuration cannot be served, and nothing has changed.
        """
        return await self._reload.to(lambda: settings)

    async def reload_again(self) -> Difference:
        """Read the configuration again from the places of the start, and reload it as `reload` does. Raises
        `ConfigurationError` also if there are no such places, because the embedding program has made the settings."""
        return await self._reload.again()

    async def drain(self) -> None:
        """End open streams and hand the sessions to other replicas. `is_ready` is False from now on."""
        await self.parts.drain.drain()
        if self.parts.http.forwarder is not None:
            self.parts.http.forwarder.end_streams()  # load balancers send no more of them here now

    def hurry(self) -> None:
        """Stop waiting for working tasks. The tasks end with the gateway; their records keep what is known of the
        outcome."""
        self.parts.drain.hurry()

    async def _asserted_state(self, request: Request) -> StateAccess:
        """Return the state of the session that is named by the assertion in a request to the state API.

        Raises:
            HTTPException: 401 without a valid assertion, 410 if the session has ended.
        """
        session_id = self.assertions.session_of(request.headers.get("authorization", "").removeprefix("Bearer "))
        if session_id is None:
            self.audit.record("refused", reason="invalid or expired session assertion")
            raise HTTPException(401, f"send the {HEADER} of a request of the last minute as Authorization: Bearer")
        session = await self.parts.foundation.backend.sessions.peek(session_id)
        if session is None:
            raise HTTPException(410, "the session has ended")
        return self.parts.servers.link_resources.state_of(session)
