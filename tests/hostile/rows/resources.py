"""Bombs and floods. Whatever they do to themselves, a bystander is served."""

from pathlib import Path
from typing import Any

from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import Row, at_most, both, no_answer, serves_on
from tests.hostile.stage import LIMITS
from tests.support.subtree import why_no_subtree

__all__ = ["ROWS"]

_PROCESSES = LIMITS["processes"] + 4
_MB = LIMITS["memory_mb"] + 32
_FILES = LIMITS["files"] + 4
_WATCHES = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text("ascii")) // 8
_UNBOUNDED: dict[str, Any] = {"profiles": (), "needs": "quota of the file system"}


def _bomb(name: str, what: str, attack: str, bound: int, needs: str = "rlimit", **more: Any) -> Row:
    """It may get no more than the bound, by its own count."""
    amount = {key: more.pop(key) for key in ("most", "most_mb") if key in more}
    given: dict[str, Any] = {"needs": needs, "facts": amount, **more}
    return Row(name, what, f"resources.{attack}", both(at_most(bound), serves_on), **given)


def _flood(
    name: str, what: str, attack: str, facts: Any, already: str = "nothing to refuse", p99_s: float = 2.0
) -> Row:
    """It may get what it wants. Others must not feel it."""
    return Row(name, what, f"resources.{attack}", serves_on, facts=facts, needs="", already=already, p99_s=p99_s)


_TOGETHER: dict[str, Any] = {"needs": "cgroup", "seen": f"memory more than {LIMITS['total_memory_mb']} MiB of memory"}
_BOMBS = [
    _bomb("fork bomb", "300 processes", "processes", _PROCESSES, "user_notif", most=300),
    _bomb("fork bomb, Node", "150 programs, by Node", "processes", _PROCESSES, "user_notif", server="node", most=150),
    _bomb("thread bomb", "600 threads", "threads", _PROCESSES, "user_notif", most=600),
    _bomb("memory bomb", "1 GiB of memory", "memory", _MB, most_mb=1024),
    _bomb("memory bomb, Node", "1 GiB of buffers, by Node", "memory", _MB, server="node", most_mb=1024),
    _bomb("memory files", "1 GiB in files without a name (memfd)", "memory_files", _MB, most_mb=1024, **_TOGETHER),
    _bomb("shared mappings", "512 MiB of anonymous shared memory", "shared_mappings", _MB, most_mb=512, **_TOGETHER),
    _bomb("memory of many", "1 GiB in eight processes", "by_children", _MB, most_mb=1024, **_TOGETHER),
    Row("own cgroup", "lifts the limits of its cgroup", "resources.own_cgroup", no_answer, already=why_no_subtree()),
    _bomb("locked memory", "locks 512 MiB", "locked_memory", _MB, most_mb=512, root="it needs a capability"),
    _bomb("descriptor bomb", "4,000 descriptors", "descriptors", _FILES, most=4_000),
    _bomb("watch bomb", "more inotify watches than an eighth of its user's", "watches", _WATCHES, "user_notif",
          most=_WATCHES + 100),
    _bomb("disk", "a file of 300 MiB in its own folder", "disk", _MB, most_mb=300, **_UNBOUNDED),
    _bomb("many files", "300 files of 1 MiB in its own folder", "many_files", _MB, most_mb=300, **_UNBOUNDED),
]  # fmt: skip
_SILENT = "120 connections to the name server that say nothing"
_HANGING = {"hosts": ["93.184.216.200"], "port": 8000, "most": 200}
_FLOODS = [
    _flood("processor", "busy loops on all processors for 3 s", "processor", {"seconds": 3.0}, p99_s=3.0),
    _flood("standard error", "200,000 lines of standard error", "error_output", {"lines": 200_000}),
    _flood("standard output", "100,000 messages that nobody asked for", "standard_output", {"lines": 100_000}),
    _flood("endless line", "one line of 64 MiB", "endless_line", {"most_mb": 64}, "the gateway ends the server"),
    _flood("refusals", "asks for what is refused, for 3 s", "refusals", {"seconds": 3.0}, p99_s=3.0),
    _flood("hanging connections", "200 connections that never come about", "hanging_connections", _HANGING),
    _flood("many names", "200 names at once", "many_names", {"most": 200}),
    _flood("half queries", _SILENT, "half_queries", {"hosts": [ADDRESSES["other"]], "most": 120}),
    _flood("deep folders", "2,000 folders inside each other, for others to remove", "recursion", {"most": 2_000}),
]

ROWS = [*_BOMBS, *_FLOODS]
