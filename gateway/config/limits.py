"""Define the limits of clients, servers and tasks, with units in their names and reasons beside their defaults."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from gateway.config.patterns import Pattern, any_matches
from gateway.config.settings_base import Frozen, Seconds
from transports.inbound.unauthenticated_limits import Limits, room_for_connections

SUSPENDED_S: Final = 55.0
"""Seconds for which a call waits until its 2026-07-28 client answers a question of a legacy server. Servers time out
after about 60 s."""

CLIENT_TIMEOUT_S: Final = 30.0
"""Seconds that a client has for each 64 KiB of a request body and for its last part (then 408), and to read something
of an answer (then it is cut off). A slow upload may take any time in total, at about 2 KiB/s or more. The headers of a
request have a third of it, from its first byte or from the start of the connection."""


def _null(value: Any) -> Any:
    """Return None for the text `null`, because environment variables can only give text. Return other values
    unchanged."""
    return None if value == "null" else value


class LimitSettings(Frozen):
    """What one client or one server may cost."""

    body_bytes: Annotated[int, Field(ge=1_024)] = 4 << 20
    """Maximum size of a request body; larger ones get 413. A server's message may have four times this size, and 16 MiB
    at least; a larger one is discarded and its call fails. The bodies of one session's calls in flight may have eight
    times this size together; further ones get 429. A body is kept until its call is answered. Bodies up to 64 KiB do
    not count. As many bytes of outcomes of tasks wait for the session's client to read them."""
    exchanges: Annotated[int, Field(ge=1)] = 256
    """Maximum number of calls of one session in flight, together with its open streams; further ones get 429."""
    total_memory_mb: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_null)] = None
    """Memory in MiB that this gateway and its server processes may have together; each worker has its share. A
    process for which too little is left is not started, and its client gets 503 ([memory](memory.md)). 0: no limit.
    Null: 80 % of the machine's memory or of its cgroup's, and always less than what is available there. Set it
    where other programs need more than the rest, and where the memory cannot be read (macOS). The bodies of all
    clients that are being read or whose requests are unanswered may have an eighth of it, 512 MiB at most; further
    ones get 429. One client network may use half of that. Bodies up to 64 KiB do not count."""
    start_timeout_s: Seconds = 30.0
    """Maximum time for the start of a server, including the handshake. A server whose first line on stdout is no MCP
    message has a sixth of it from then on. Raise it for a server that takes long to start."""
    list_timeout_s: Seconds = 2.0
    """Maximum time that the handshake, discovery, lists and subscriptions at `/mcp` wait for the servers behind it.
    Then they are answered without the servers that are late, and the client is notified once these are up. Hosts show
    no tool before they have the list."""
    call_timeout_s: Seconds = 600.0
    """Maximum time for a call without an answer or a progress message from the server. SDK clients give up after 300
    s."""
    poll_after_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Close the event stream of a call after this long, for load balancers that cut long responses. Clients of
    2025-11-25 continue with `Last-Event-ID`. 0: never. Only you know how long yours waits."""
    shutdown_grace_s: Seconds = 2.0
    """Time to wait for a child to exit after its stdin is closed, and again after SIGTERM. Then it is killed."""
    idle_timeout_s: Seconds = 75.0
    """How long a connection without a request stays open. It must be longer than the idle timeout of load balancers
    (often 60 s), so that they close the connection first and no request is lost."""
    connections: Annotated[int, Field(ge=0)] = 0
    """Maximum number of connections for each worker. 0: half of the files that the process may open, because server
    processes need files too. At the limit, the connection that has been idle longest is closed; if none is idle, the
    new connection gets 503. One address (IPv6: one /64 network) may have half of them. Trusted proxies do not count. If
    no proxies are configured, connections from this machine do not count either."""

    @property
    def line_bytes(self) -> int:
        """Return the maximum size of a server's message in bytes: four times that of a request, and at least 16 MiB.
        Results are larger than requests, and when one is thrown away, its call has already run."""
        return max(16 << 20, 4 * self.body_bytes)

    @property
    def in_flight_bytes(self) -> int:
        """Return the maximum total size of the bodies of one session's calls in flight. Only a client with several of
        the largest calls at once reaches it."""
        return 8 * self.body_bytes

    @property
    def noise_timeout_s(self) -> float:
        """Return the seconds that a starting server has for its first answer after it has printed a line on stdout that
        is not MCP. So a banner does no harm, and a program that is no MCP server is recognized soon."""
        return self.start_timeout_s / 6

    @property
    def before_authentication(self) -> Limits:
        """Return the limits that the listeners apply to connections and requests before callers are authenticated."""
        connections = self.connections or room_for_connections()
        return Limits(
            head_timeout_s=CLIENT_TIMEOUT_S / 3,
            body_bytes=self.body_bytes,
            body_timeout_s=CLIENT_TIMEOUT_S,
            idle_timeout_s=self.idle_timeout_s,
            write_timeout_s=CLIENT_TIMEOUT_S,
            connections=connections,
            peer_connections=max(1, connections // 2),
        )


_LEAST_WORKING_TTL_S: Final = 60.0
"""The least seconds for which the record of a working task is kept without a renewal, even if outcomes are kept
shorter."""


class TaskSettings(Frozen):
    """Which calls become tasks, and what the tasks of one client may cost."""

    enabled: bool = True
    """Whether tool calls become tasks: slow ones of clients that declare the extension `io.modelcontextprotocol/tasks`,
    and those for which a client of 2025-11-25 asks for a task. Other clients notice nothing."""
    after_s: Seconds = 5.0
    """A tool call without an answer becomes a task after this long. Shorter than what proxies wait, and longer than
    most calls take. Clients are asked to poll 2.5 times as often (each 2 s), but at most ten times a second."""
    at_once: tuple[Pattern, ...] = ()
    """Tools whose calls become tasks at once: patterns for `server/tool` or `server__tool`, for example `builds/*`. A
    pattern that matches no tool is a warning. A tool whose `execution.taskSupport` is `required` needs no pattern."""
    offered: tuple[Pattern, ...] = ()
    """Tools that clients of 2025-11-25 see as callable as tasks (`execution.taskSupport: optional` in
    `tools/list`): patterns as in `at_once`. Some clients then make a task of each call. A tool that says
    something itself is listed as its server lists it. Every tool that does not forbid it becomes a task if a client
    asks for one (`params.task`), whether it is offered or not."""
    ttl_s: Seconds = 3_600.0
    """How long the outcome of a task is kept. While a task works, its record is kept in any case."""
    call_timeout_s: Seconds = 3_600.0
    """Maximum time for a task without an answer or a progress message from the server, in place of
    `limits.call_timeout_s`. Then the call is cancelled."""

    @property
    def poll_ms(self) -> int:
        """Return the interval in milliseconds at which clients are asked to poll."""
        return max(100, round(400 * self.after_s))

    def outcome_ttl_s(self, asked_s: float) -> float:
        """Return the seconds for which a task's outcome is kept. `asked_s` are the seconds that its client has asked
        for; 0: the client has not asked."""
        return asked_s or self.ttl_s

    def working_ttl_s(self, kept_s: float) -> float:
        """Return the seconds for which the record of a working task is kept without a renewal. `kept_s`: the seconds
        for which its outcome will be kept."""
        return max(kept_s, _LEAST_WORKING_TTL_S)

    def is_at_once(self, server: str, tool: str) -> bool:
        """Return True if every call of the tool becomes a task at once, without waiting for `after_s`."""
        return _names(self.at_once, server, tool)

    def is_offered(self, server: str, tool: str) -> bool:
        """Return True if clients of 2025-11-25 are told, in the list of tools, that they may call the tool as a
        task."""
        return _names(self.offered, server, tool)


def _names(patterns: tuple[Pattern, ...], server: str, tool: str) -> bool:
    return any(any_matches(patterns, name) for name in (f"{server}/{tool}", f"{server}__{tool}"))
