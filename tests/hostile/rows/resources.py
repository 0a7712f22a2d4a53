"""Bombs and floods. Whatever they do to themselves, a bystander is served."""

from typing import Any

from tests.hostile.rows.row import Row, at_most, both, no_answer, serves_on
from tests.hostile.stage import LIMITS
from tests.support.subtree import why_no_subtree

_PROCESSES = LIMITS["processes"] + 4
_MB = LIMITS["memory_mb"] + 32


def _bomb(name: str, what: str, attack: str, bound: int, needs: str, facts: Any) -> Row:
    """It may get no more than the bound, by its own count."""
    return Row(name, what, f"resources.{attack}", both(at_most(bound), serves_on), needs=needs, facts=facts)


def _flood(name: str, what: str, attack: str, facts: Any, p99_s: float) -> Row:
    """It may get what it wants. Others must not feel it."""
    already = "nothing to refuse"
    return Row(name, what, f"resources.{attack}", serves_on, facts=facts, needs="", already=already, p99_s=p99_s)


ROWS = [
    _bomb("fork bomb", "300 processes", "processes", _PROCESSES, "user_notif", {"most": 300}),
    _bomb("memory bomb", "1 GiB of memory", "memory", _MB, "rlimit", {"most_mb": 1024}),
    Row("own cgroup", "lifts the limits of its cgroup", "resources.own_cgroup", no_answer, already=why_no_subtree()),
    _flood("processor", "busy loops on all processors for 3 s", "processor", {"seconds": 3.0}, 3.0),
    _flood("standard output", "100,000 messages that nobody asked for", "standard_output", {"lines": 100_000}, 2.0),
    _flood("refusals", "asks for what is refused, for 3 s", "refusals", {"seconds": 3.0}, 3.0),
    _flood("state flood", "floods the socket of its state for 3 s", "state_flood", {"seconds": 3.0}, 1.0),
]  # fmt: skip
