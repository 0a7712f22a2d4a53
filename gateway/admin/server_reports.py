"""What operators are shown of each configured server: parts of it from every replica, put together."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from gateway.admin.figures import UsageRow
from gateway.calls.conversation import Conversation
from gateway.calls.starts import newest
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store.metadata import scrubbed_start, scrubbed_text

__all__ = ["DeadProcess", "ServerPart", "ServerRow", "part_of_server", "server_rows"]

_STATES: Final = ("ok", "starting", "failing")
"""The worst last: a server is as bad as where it is worst."""

_MOST_DEAD: Final = 5
_MOST_CHARS: Final = 300


class DeadProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has ended by itself: how the id of its session begins, empty if it belonged to none, and its last
    lines on stderr."""

    session: str
    output: list[str]


class ServerPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica knows of a server."""

    server: str
    kind: str
    shared: bool = False
    state: str = "ok"
    reason: str = ""
    attempts: int = 0
    output: list[str] = []
    tools: int = 0
    processes: int = 0
    links: int = 0
    in_flight: int = 0
    started: int = 0
    failed_starts: int = 0
    start_failure: str = ""
    start_failed_at: float = 0.0
    start_times_s: list[float] = []
    restarts: dict[str, int] = {}
    died: list[DeadProcess] = []


class ServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A configured server on all replicas together.

    `kind`: `command`, `url` or `object`. `state`: `ok`, `starting` or `failing`, where it is worst; then `reason`,
    `attempts` (failed ones in a row) and `output` (the last lines that it wrote) say more. `states`: how many replicas
    say which. `tools`: how many it lists. `links`: connections of sessions to it, with a process each or without.
    `started`, `failed_starts` and `restarts` (by reason) count since the replicas began, `start_p50_s` and
    `start_max_s` are of the last starts. `start_failure` is why the last one that failed did, at `start_failed_at`.
    `died`: processes of sessions that ended by themselves and are not replaced.
    `calls`, `failed`, `p50_s` and `p99_s` are of the range that was asked for, and so are the rows `usage` by tool.
    """

    server: str
    kind: str
    shared: bool = False
    state: str = "ok"
    states: dict[str, int] = {}
    reason: str = ""
    attempts: int = 0
    output: list[str] = []
    tools: int = 0
    processes: int = 0
    links: int = 0
    in_flight: int = 0
    started: int = 0
    failed_starts: int = 0
    start_failure: str = ""
    start_failed_at: float = 0.0
    start_p50_s: float = 0.0
    start_max_s: float = 0.0
    restarts: dict[str, int] = {}
    died: list[DeadProcess] = []
    calls: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    usage: list[UsageRow] = []


def part_of_server(upstream: ConfiguredUpstream, links: Sequence[tuple[str, Conversation]]) -> ServerPart:
    """The part of this replica. `links`: the conversations with the server, and how the ids of their sessions begin."""
    settings, found = upstream.settings, upstream.state
    tools = upstream.probed_tools
    return ServerPart(
        server=upstream.name,
        kind="command" if settings.command else "url" if settings.url else "object",
        shared=settings.shared,
        state=found.state,
        reason=scrubbed_start(found.reason, _MOST_CHARS),
        attempts=found.attempts,
        output=_lines(found.output_tail),
        tools=0 if tools is None else len(tools.schemas),
        processes=sum(one.link is not None and one.link.pid is not None for _, one in links),
        links=sum(one.link is not None for _, one in links),
        in_flight=sum(len(one.calls) for _, one in links),
        started=upstream.starts["started"],
        failed_starts=upstream.starts["failed"],
        start_failure=scrubbed_start(upstream.start_failure[1], _MOST_CHARS),
        start_failed_at=upstream.start_failure[0],
        start_times_s=[round(each, 3) for each in upstream.start_times_s],
        restarts=dict(upstream.restarts),
        died=[
            DeadProcess(session=session, output=_lines(one.output_tail))
            for session, one in links
            if one.link is None and one.output_tail
        ][-_MOST_DEAD:],
    )


def _lines(words: Sequence[str]) -> list[str]:
    return [scrubbed_text(line)[:_MOST_CHARS] for line in newest(words)]


def server_rows(
    parts: Iterable[ServerPart], by_server: Mapping[str, UsageRow], by_tool: Sequence[UsageRow]
) -> list[ServerRow]:
    """The servers in order of name, with their use in a range."""
    of: dict[str, list[ServerPart]] = {}
    for part in parts:
        of.setdefault(part.server, []).append(part)
    return [
        _row(some, by_server.get(name), [row for row in by_tool if row.server == name])
        for name, some in sorted(of.items())
    ]


def _row(parts: Sequence[ServerPart], used: UsageRow | None, usage: list[UsageRow]) -> ServerRow:
    worst = max(parts, key=lambda part: _STATES.index(part.state) if part.state in _STATES else 0)
    latest = max(parts, key=lambda part: part.start_failed_at)
    states: dict[str, int] = {}
    restarts: dict[str, int] = {}
    for part in parts:
        states[part.state] = states.get(part.state, 0) + 1
        for reason, count in part.restarts.items():
            restarts[reason] = restarts.get(reason, 0) + count
    times = [each for part in parts for each in part.start_times_s]
    used = used or UsageRow(name="")
    return ServerRow(
        server=worst.server,
        kind=worst.kind,
        shared=worst.shared,
        state=worst.state,
        states=states,
        reason=worst.reason,
        attempts=worst.attempts,
        output=worst.output,
        tools=max(part.tools for part in parts),
        processes=sum(part.processes for part in parts),
        links=sum(part.links for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        started=sum(part.started for part in parts),
        failed_starts=sum(part.failed_starts for part in parts),
        start_failure=latest.start_failure,
        start_failed_at=latest.start_failed_at,
        start_p50_s=round(median(times), 3) if times else 0.0,
        start_max_s=max(times, default=0.0),
        restarts=restarts,
        died=[dead for part in parts for dead in part.died][-_MOST_DEAD:],
        calls=used.calls,
        failed=used.failed,
        p50_s=used.p50_s,
        p99_s=used.p99_s,
        usage=usage,
    )
