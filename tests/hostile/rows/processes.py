"""Processes, and what the kernel lets them share: memory, descriptors, signals, sockets, queues."""

from pathlib import Path
from typing import Any

from tests.hostile.home import word_of
from tests.hostile.rows.row import (
    STRICT,
    Facts,
    Judge,
    Outcome,
    Row,
    alive,
    keeps,
    no_answer,
    not_heard,
    unheard_by_sibling,
)
from tests.hostile.stage import Called, Stage

_CLOSED = "the gateway and its reapers are closed to others of their user"


def _halves(stage: Stage) -> Facts:
    """The word in two parts, so that the search does not find itself."""
    word = word_of("sibling")
    return {"halves": [word[:9], word[9:]], "pids": stage.pids("sibling.py")}


def _oom(stage: Stage, called: Called, facts: Facts) -> Outcome:
    scores = [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in facts["siblings"]]
    return Outcome("1000" not in scores, f"scores {scores}")


def _output(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(not called.got, called.text[:100])


def _ends(name: str, what: str, attack: str, refused: Judge = alive, **more: Any) -> Row:
    return Row(name, what, f"processes.{attack}", refused, needs="landlock 6", **more)


def _shares(name: str, what: str, attack: str, refused: Judge, needs: str = "landlock", **more: Any) -> Row:
    return Row(name, what, f"ipc.{attack}", refused, needs=needs, **more)


_SEES = [
    Row("environments", "reads /proc/*/environ of siblings", "processes.environments", keeps("sibling-environment")),
    Row("gateway's environment", "reads the gateway's environment", "processes.environments",
        keeps("gateway-key", "gateway-environment"), already=_CLOSED),
    Row("command lines", "reads /proc/*/cmdline of siblings", "processes.command_lines", keeps("sibling-command"),
        profiles=STRICT, needs="user namespace"),
    Row("memory", "searches /proc/PID/mem of siblings", "processes.memory", keeps("sibling"), facts=_halves),
    Row("ptrace", "traces siblings and the gateway", "processes.trace", no_answer),
    Row("sibling's output", "writes into a sibling's standard output through /proc/PID/fd",
        "processes.reopen_descriptors", _output),
]  # fmt: skip
_ENDS = [
    _ends("kill", "SIGKILL to siblings", "end"),
    _ends("kill, Node", "the same, by Node", "end", server="node"),
    _ends("kill gateway", "SIGKILL to the gateway", "end", facts=lambda stage: {"victims": [stage.gateway.pid]}),
    _ends("kill -1", "SIGKILL to everybody", "end_everybody"),
    _ends("kill by F_SETOWN", "lets the kernel send SIGKILL to siblings (F_SETOWN, F_SETSIG)", "end_by_owner"),
    Row("oom_score_adj", "makes siblings the first to die when memory ends", "processes.first_to_die", _oom),
]  # fmt: skip
_SHARES = [
    _shares("state socket", "connects to a sibling's state socket without its secret", "state", keeps("sibling"),
            already="the socket asks for the secret"),
    _shares("stolen state secret", "connects to a sibling's state socket with its secret", "state_with_secret",
            keeps("sibling"), "user_notif", seen="socket {sibling[socket]}"),
    _shares("state socket names", "lists the state sockets of all sessions", "state_sockets", no_answer),
    _shares("sibling's socket", "connects to a Unix socket in a sibling's folder", "connected", unheard_by_sibling,
            "user_notif", facts=lambda stage: {"path": stage.sibling["path"]}, seen="socket {path}"),
    _shares("abstract socket", "connects to a sibling's abstract socket", "abstract", unheard_by_sibling, "landlock 6"),
    _shares("passed descriptor", "takes an open file that a sibling passes", "passed_descriptor", keeps("sibling"),
            "landlock 6"),
    _shares("/dev/shm", "reads a sibling's file in /dev/shm", "shared_memory_file", keeps("sibling")),
    _shares("shmget", "attaches a sibling's System V segment", "shared_memory_key", keeps("sibling"), "seccomp"),
    _shares("docker.sock", "connects to the container engine's socket", "connected", not_heard("docker.sock"),
            "user_notif", facts={"path": "/run/docker.sock"}, seen="socket {path}"),
    _shares("dbus", "connects to the message bus", "connected", not_heard("dbus"), "user_notif", way="shell",
            facts={"path": "/run/dbus"}, seen="socket {path}"),
]  # fmt: skip

ROWS = [*_SEES, *_ENDS, *_SHARES]
