"""Hold the facts about one server: the eras that it speaks, and the tools that it lists. Pure: the probe
(`gateway.upstreams.server_probe`) collects them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from gateway.bridge.modern_server_subscriptions import everything
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import capabilities_json, discovery_of
from gateway.protocol.merged_lists import Tools
from transports.era import LEGACY, MODERN, Era

STARTING: Final = "it has not answered yet"
"""The reason that operators see for a server that has neither answered nor failed yet."""


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """The facts that one probe of a server (the gateway's own requests to it) has found.

    If `discover`, `initialize` and `failure` are all empty, the server speaks neither era.
    """

    discover: bytes | None = None
    """The `server/discover` result of a modern server. If it needs credentials, only the part for all sessions."""
    initialize: bytes | None = None
    """The handshake result of a legacy server."""
    failure: str = ""
    """Why the server could not be asked, for clients."""
    output_tail: tuple[str, ...] = ()
    """After a failure: the last lines that the server wrote, for operators."""
    tools: Tools = field(default_factory=Tools)
    is_certain: bool = True
    """False: the server has accepted a handshake, but its answer to `server/discover` did not prove it to be legacy."""
    at: float = 0.0
    """The monotonic time at which `discover` came."""
    needs_credentials: bool = False
    """True: the server answers only requests with the credentials of a session."""

    @property
    def discovery(self) -> bytes | None:
        """Return the answer to `server/discover` for modern clients; None if the server has not answered. For a legacy
        server, it is made from the handshake result."""
        return discovery_of(self.initialize) if self.initialize is not None else self.discover

    @property
    def has_answered(self) -> bool:
        """Return True if the server has answered in one of the eras of MCP."""
        return not self.failure and self.discovery is not None

    @cached_property
    def declared(self) -> Declared:
        """Return the extensions that the server declares. Cached, because every call of an extension's method needs
        them."""
        return Declared.of(capabilities_json(self.discovery))

    @cached_property
    def notifies(self) -> bool:
        """Return True if the server declares that it sends change notifications, for a list or for resources."""
        return bool(everything([""]).honoured(self.capabilities))

    @cached_property
    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities that the server declares. Callers must not change them."""
        found = msgspec.json.decode(self.discovery or b"{}").get("capabilities", {})
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server for operators."""

    state: Literal["ok", "starting", "failing"]
    reason: str = ""
    """Why it cannot be used; empty if it can."""
    start_s: float = 0.0
    """How long it took to start and answer, if it is ok."""
    waited_s: float = 0.0
    """How long the gateway has waited for it so far, if it is starting."""
    attempts: int = 0
    """The number of failed probes in a row."""
    output_tail: tuple[str, ...] = ()
    """The last lines that it wrote, if it has not answered."""

    @property
    def why_silent(self) -> str:
        """Return the reason why the server cannot be used; empty if it can be used."""
        return f"it has not answered for {self.waited_s:.0f} s" if self.state == "starting" else self.reason


def era_of(facts: ServerFacts | None, client: Era, *, accepts_handshake: bool | None) -> Era | None:
    """Return the era in which to send a client's requests to a server: the client's own era if the server speaks it,
    else the other era.

    `accepts_handshake` is True if a modern server also accepts `initialize`; None if unknown. Return None if the era
    depends on a fact that is not known yet.
    """
    if facts is None:
        return None
    if facts.discover is None:
        return LEGACY
    if client is MODERN:
        return MODERN
    if accepts_handshake is None:
        return None
    return LEGACY if accepts_handshake else MODERN


class KnownFacts:
    """Hold the facts from the last probe of one server.

    `latest`: these facts, which only the probe writes; None before the first probe. `version`: a number that is raised
    when facts change that matter to decisions about calls. `has_tools`: False if the probe does not ask for tools. The
    schemas of tools that repeat arguments in headers come from the last list that any session has received.
    """

    def __init__(self, *, has_tools: bool = True) -> None:
        self.has_tools = has_tools
        self.latest: ServerFacts | None = None
        self.version = 0
        self._mirrored: dict[str, Any] = {}

    def learn(self, facts: ServerFacts) -> None:
        """Replace the facts with those of a newer probe."""
        self.latest = facts
        self.changed()
        self._mirrored = dict(facts.tools.mirrored)

    def changed(self) -> None:
        """Raise `version`, to invalidate cached decisions about calls of the server."""
        self.version += 1

    @property
    def guessed(self) -> ServerFacts | None:
        """Return the latest facts if they say that the server has answered but its era is only a guess
        (`ServerFacts.is_certain` is False). Otherwise return None."""
        latest = self.latest
        return latest if latest is not None and latest.has_answered and not latest.is_certain else None

    def kept(self, facts: ServerFacts) -> ServerFacts:
        """Return the facts to store after a probe that has found `facts`. If the probe got no answer, but a session
        with credentials did before, these are the latest facts. Otherwise they are `facts`."""
        latest = self.latest
        if latest is None or facts.has_answered or not (latest.has_answered and latest.needs_credentials):
            return facts
        return latest

    def listed(self, tools: Tools) -> None:
        """Update `mirrored_schemas` from a list of tools that the server has sent."""
        for name in tools.schemas:
            if name in tools.mirrored:
                self._mirrored[name] = tools.mirrored[name]
            else:
                self._mirrored.pop(name, None)

    def tools(self) -> Tools | None:
        """Return the tools that the server listed to the probe; None if the probe could not read them."""
        latest = self.latest
        if latest is None or latest.failure or latest.needs_credentials or not self.has_tools:
            return None
        return latest.tools

    def handshake(self) -> bytes | None:
        """Return the `initialize` result of a legacy server; None if there is none."""
        return None if self.latest is None else self.latest.initialize

    def mirrored_schemas(self) -> Mapping[str, Any]:
        """Return the input schemas of the tools whose arguments are repeated in headers, by tool name."""
        return self._mirrored
