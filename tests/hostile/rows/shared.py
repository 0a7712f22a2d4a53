"""What the kernel or the gateway counts for all together, and odd uses of what the gate decides on."""

from pathlib import Path
from typing import Any, Final

from tests.hostile.home import TEMPORARY
from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import (
    Facts,
    Judge,
    Outcome,
    Row,
    alive,
    at_most,
    both,
    canary,
    honest_after,
    no_answer,
    processes_gone,
    serves_on,
    unchanged,
    unreached,
)
from tests.hostile.stage import Called, Stage

__all__ = ["ROWS"]

_POLL_WATCHES: Final = int(Path("/proc/sys/fs/epoll/max_user_watches").read_text("ascii")) // 8
_KEPT_PORTS: Final = 6_000
"""Streams that the resolver serves in a minute, and those at once."""


def _ports(stage: Stage, called: Called, facts: Facts) -> Outcome:
    lines = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
    kept = sum(line.split()[3] == "06" for line in lines)  # TIME_WAIT
    return Outcome(kept < _KEPT_PORTS, f"{kept} ports are kept; {called.text[:80]}")


def _removed(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Its folder is gone some seconds after the session, and what links in it lead to is as it was."""
    gone = stage.eventually(lambda: not list(TEMPORARY.glob("*/*/[to]/*.gone")), 20.0)
    return Outcome(gone, called.text[:100] if gone else "its folder is still there")


def _to(*hosts: str, **more: Any) -> Facts:
    return {"hosts": [ADDRESSES.get(host, host) for host in hosts], "port": 80, **more}


def _row(name: str, what: str, attack: str, refused: Judge, **more: Any) -> Row:
    return Row(name, what, attack, refused, **{"needs": "seccomp", **more})


_NOTHING: Final = {"already": "nothing to refuse", "needs": ""}
_COUNTED = [
    _row(
        "poll watches",
        "as many watches of epoll as go, which the kernel counts for its user",
        "shared.poll_watches",
        both(at_most(_POLL_WATCHES), serves_on),
        facts={"children": 60, "hold_s": 1.0},
        profiles=(),  # a known limit: the kernel has no bound for a process, and the gateway is made to live on without
    ),
    _row("asynchronous requests", "takes all room for asynchronous requests of the machine (io_setup)",
         "shared.asynchronous_requests", no_answer),
    _row("ports by the resolver",
         "opens streams to the resolver for 12 s, which others end: each would keep a port for a minute",
         "shared.ports_by_resolver", _ports, facts=_to("other", seconds=12.0), **_NOTHING),
    _row("pipe pages", "pipes as large as go, counted for its user", "odd.pipe_pages", serves_on, **_NOTHING),
    _row("junk questions", "floods the resolver with junk, on streams and sockets of packets", "odd.junk_questions",
         serves_on, facts=_to("other", seconds=3.0), p99_s=1.0, **_NOTHING),
    _row("slow resolver streams", "keeps the gate waiting for streams to the resolver that never come about",
         "odd.slow_resolver_streams", serves_on, facts=_to("other", seconds=3.0), p99_s=1.0, **_NOTHING),
    _row("state flood", "floods the socket of its state for 3 s", "odd.state_flood", serves_on, facts={"seconds": 3.0},
         p99_s=1.0, **_NOTHING),
    _row("error without end", "64 MiB of standard error without an end of line", "odd.error_without_end", serves_on,
         facts={"most_mb": 64}, **_NOTHING),
    _row("hard to remove", "leaves pipes, sockets, links to outside and deep closed folders", "odd.left_in_folder",
         both(_removed, unchanged("other program")),
         facts=lambda stage: {"path": str(stage.home.names["other program"]), "most": 100}, **_NOTHING),
    _row("files to remove", "leaves 100,000 files", "odd.many_files", _removed,
         facts={"most": 100_000, "within_s": 40.0}, **_NOTHING),
]  # fmt: skip
_ODD = [
    _row("owner's requests", "seals a program that it may read, and makes subvolumes beside it (ioctl)",
         "shared.owners_ioctls", no_answer, facts=canary("program")),
    _row("moved listener", "moves a socket while it begins to listen", "odd.moved_listener", no_answer,
         facts={"port": 7_657}, needs="user_notif"),
    _row("siblings through own descriptors", "opens and changes what siblings have open, by /proc/self/fd/../../PID/fd",
         "odd.paths_of_siblings", no_answer, needs="user_notif"),
    _row("odd pairs", "pairs of sockets of every family but Unix", "odd.odd_pairs", no_answer,
         already="only TIPC has them, where there is TIPC"),
    _row("long chain", "a chain of 1,500 links, then an honest call", "odd.long_chain", honest_after, **_NOTHING),
    _row("multipath", "connects by MPTCP to private hosts, and listens by it", "odd.multipath",
         both(no_answer, unreached("ten", "metadata")), facts=_to("ten", "metadata")),
    _row("changed batch", "sends many datagrams at once, to an address that changes", "odd.changed_batch",
         unreached("metadata"), facts=_to("public", "metadata")),
    _row("newer ways", "ways of newer kernels to siblings and out", "odd.newer_ways", both(no_answer, alive)),
    _row("lives on", "closes its conversation and lives on", "odd.lives_on", processes_gone, way="itself",
         already="the reaper ends it", needs=""),
]  # fmt: skip

ROWS = [*_COUNTED, *_ODD]
