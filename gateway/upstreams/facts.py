"""The facts about one server: the eras it speaks, and the tools it lists. Pure: the probe collects them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from gateway.bridge.subscription_relay import everything
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import capabilities_json, discovery_of
from gateway.protocol.listing import Tools
from transports.era import LEGACY, MODERN, Era

__all__ = ["STARTING", "KnownFacts", "ServerFacts", "ServerState", "era_of"]

STARTING: Final = "it has not answered yet"
"""The reason why a server cannot be used that has not failed."""


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """The findings of one probe: the result of `server/discover` (a modern server), or else that of `initialize`.

    `failure` says why the server could not be asked, for clients. `output_tail` are the last lines of its output then,
    for operators. Without `discover`, `initialize` and `failure`, the server speaks neither era. `is_certain` is false
    while a server counts as legacy only because it has accepted a handshake: its answer to `server/discover` has proved
    nothing. `at` is when `discover` came, by the monotonic clock. `needs_credentials`: the server refuses what the
    gateway asks without the credentials of a session. `discover` is then the part for all of what it has answered to a
    session.
    """

    discover: bytes | None = None
    initialize: bytes | None = None
    failure: str = ""
    output_tail: tuple[str, ...] = ()
    tools: Tools = field(default_factory=Tools)
    is_certain: bool = True
    at: float = 0.0
    needs_credentials: bool = False

    @property
    def discovery(self) -> bytes | None:
        """The answer to `server/discover` that modern clients get."""
        return discovery_of(self.initialize) if self.initialize is not None else self.discover

    @property
    def has_answered(self) -> bool:
        """True if the server speaks one of the eras."""
        return not self.failure and self.discovery is not None

    @cached_property
    def declared(self) -> Declared:
        """The extensions of the server. They are read once, because every method that MCP does not define asks for
        them."""
        return Declared.of(capabilities_json(self.discovery))

    @cached_property
    def notifies(self) -> bool:
        """True if the server declares that it notifies of changes: of any list, or of resources."""
        return bool(everything([""]).honoured(self.capabilities))

    @cached_property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities of the server, as it declares them. Read only."""
        found = msgspec.json.decode(self.discovery or b"{}").get("capabilities", {})
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class ServerState:
    """Whether a server can be used, and why not.

    `start_s`: how long it took to start and to answer. `waited_s`: how long the gateway has waited for it. `attempts`:
    failed ones in a row. `output_tail`: the last lines that it wrote.
    """

    state: Literal["ok", "starting", "failing"]
    reason: str = ""
    start_s: float = 0.0
    waited_s: float = 0.0
    attempts: int = 0
    output_tail: tuple[str, ...] = ()


def era_of(facts: ServerFacts | None, client: Era, *, accepts_handshake: bool | None) -> Era | None:
    """Return the era in which a server is addressed for a client of that era: the client's own if the server speaks it.

    `accepts_handshake` says whether a modern server accepts `initialize` as well. None: it is not known yet. The result
    is None while it depends on something that is not known.
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
    """The facts of the last probe of one server. Only the probe writes them. `version` is another number after each
    change of what calls are decided on.

    The schemas of tools that mirror arguments in headers are those of the last list that anybody has received.
    """

    def __init__(self) -> None:
        self.latest: ServerFacts | None = None
        self.version = 0
        self._mirrored: dict[str, Any] = {}

    def learn(self, facts: ServerFacts) -> None:
        """Replace the facts."""
        self.latest = facts
        self.changed()
        self._mirrored = dict(facts.tools.mirrored)

    def changed(self) -> None:
        """What was decided on a call of the server does not hold for the next one."""
        self.version += 1

    @property
    def guessed(self) -> ServerFacts | None:
        """The facts about a server that has accepted a handshake while nothing proved its era."""
        latest = self.latest
        return latest if latest is not None and latest.has_answered and not latest.is_certain else None

    def kept(self, facts: ServerFacts) -> ServerFacts:
        """Return the facts of a probe, or those that a session has learned while the probe was refused."""
        latest = self.latest
        if latest is None or facts.has_answered or not (latest.has_answered and latest.needs_credentials):
            return facts
        return latest

    def listed(self, tools: Tools) -> None:
        """Tools that the server has listed since."""
        for name in tools.schemas:
            if name in tools.mirrored:
                self._mirrored[name] = tools.mirrored[name]
            else:
                self._mirrored.pop(name, None)

    def tools(self) -> Tools | None:
        """Return the tools that the probe has listed; None if it could not."""
        latest = self.latest
        return None if latest is None or latest.failure or latest.needs_credentials else latest.tools

    def handshake(self) -> bytes | None:
        """Return the `initialize` result of a legacy server."""
        return None if self.latest is None else self.latest.initialize

    def mirrored_schemas(self) -> Mapping[str, Any]:
        """Input schemas of the tools that mirror arguments in headers, by tool."""
        return self._mirrored
