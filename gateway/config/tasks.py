"""Settings of tasks: which calls become tasks, and what the tasks of one client may cost."""

from typing import Annotated, Final

from pydantic import Field

from gateway.config.model import Frozen, Pattern, Seconds, any_matches

__all__ = ["TaskSettings"]

_LEAST_WORKING_TTL_S: Final = 60.0
"""How long the record of a working task is kept at least without a renewal, however short outcomes are kept."""


class TaskSettings(Frozen):
    """Which calls become tasks, and what the tasks of one client may cost."""

    enabled: bool = True
    """Whether tool calls become tasks: slow ones of clients that declare the extension `io.modelcontextprotocol/tasks`,
    and those for which a client of 2025-11-25 asks for a task. Other clients notice nothing."""
    after_s: Seconds = 5.0
    """A tool call without an answer becomes a task after this long. Shorter than what proxies wait, and longer than
    most calls take."""
    at_once: tuple[Pattern, ...] = ()
    """Tools whose calls become tasks at once: patterns for `server/tool` or `server__tool`, for example `builds/*`. A
    pattern that matches no tool is a warning. A tool whose `execution.taskSupport` is `required` needs no pattern."""
    offered: tuple[Pattern, ...] = ()
    """Tools of which clients of 2025-11-25 are told that they may be called as tasks (`execution.taskSupport:
    optional` in `tools/list`): patterns as in `at_once`. Some clients then make a task of each call. A tool that says
    something itself is listed as its server lists it. Every tool that does not forbid it becomes a task if a client
    asks for one (`params.task`), whether it is offered or not."""
    ttl_s: Seconds = 3_600.0
    """How long the outcome of a task is kept. While a task works, its record is kept in any case."""
    poll_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 2_000
    """How often a client is asked to poll, in milliseconds."""
    call_timeout_s: Seconds = 3_600.0
    """Maximum time for a task without an answer or a progress message from the server, in place of
    `limits.call_timeout_s`. Then the call is cancelled."""
    answer_s: Seconds = 600.0
    """How long a task waits for the answers of its client to a question of the server. Then the task fails."""
    result_bytes: Annotated[int, Field(ge=1_024, le=64 << 20)] = 1 << 20
    """Maximum size of a task's result. A task with a larger one fails, and its error says so."""
    max_per_session: Annotated[int, Field(ge=1)] = 100
    """Maximum number of tasks of one session that are stored. Beyond it, a slow call becomes no task and is answered as
    ever; a call of 2025-11-25 that asks for a task is refused (-32018)."""
    max_per_principal: Annotated[int, Field(ge=1)] = 1_000
    """The same for one principal; anonymous clients are counted by their network."""
    principal_bytes: Annotated[int, Field(ge=64 << 20)] = 256 << 20
    """Maximum size of what the tasks of one principal have stored, about; anonymous clients are counted by their
    network. Beyond it, a task whose result does not fit fails, and its error says so."""

    def outcome_ttl_s(self, asked_s: float) -> float:
        """Return how long the outcome of a task is kept, in seconds, if its client has asked for
        `asked_s` (0: for nothing)."""
        return asked_s or self.ttl_s

    def working_ttl_s(self, kept_s: float) -> float:
        """Return how long the record of a working task is kept without a renewal, in seconds, if its outcome is kept
        for `kept_s`."""
        return max(kept_s, _LEAST_WORKING_TTL_S)

    def is_at_once(self, server: str, tool: str) -> bool:
        """Return whether each call of the tool becomes a task at once."""
        return _names(self.at_once, server, tool)

    def is_offered(self, server: str, tool: str) -> bool:
        """Return whether clients of 2025-11-25 are told that the tool may be called as a task."""
        return _names(self.offered, server, tool)


def _names(patterns: tuple[Pattern, ...], server: str, tool: str) -> bool:
    return any(any_matches(patterns, name) for name in (f"{server}/{tool}", f"{server}__{tool}"))
