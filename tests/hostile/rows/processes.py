"""Processes, and what the kernel lets them share: memory, descriptors, signals, sockets, queues."""

import os
from pathlib import Path

from tests.hostile.home import word_of
from tests.hostile.rows.row import STRICT, Facts, Outcome, Row, alive, keeps, no_answer, not_heard, unheard_by_sibling
from tests.hostile.stage import Called, Stage

__all__ = ["ROWS"]

_CLOSED = "the gateway and its reapers are closed to others of their user"


def _halves(stage: Stage) -> Facts:
    """The word in two parts, so that the search does not find itself."""
    word = word_of("sibling")
    return {"halves": [word[:9], word[9:]], "pids": stage.pids("sibling.py")}


def _limited(stage: Stage, called: Called, facts: Facts) -> Outcome:
    answer = stage.tell("sibling", "opens")
    return Outcome(answer == "opened", f"the sibling: {answer}, the attack: {called.text[:60]}")


def _priorities(stage: Stage, called: Called, facts: Facts) -> Outcome:
    slowed = [pid for pid in facts["siblings"] if os.getpriority(os.PRIO_PROCESS, pid) or os.sched_getscheduler(pid)]
    return Outcome(not slowed, f"{len(slowed)} siblings slowed" if slowed else called.text[:100])


def _oom(stage: Stage, called: Called, facts: Facts) -> Outcome:
    scores = [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in facts["siblings"]]
    return Outcome("1000" not in scores, f"scores {scores}")


def _ended_with_session(stage: Stage, called: Called, facts: Facts) -> Outcome:
    gone = stage.eventually(lambda: not stage.left_since(facts["before"]), 8.0)
    dead = alive(stage, called, facts)
    return dead if not dead.held else Outcome(gone, called.text[:100] if gone else "its processes live on")


def _output(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(not called.got, called.text[:100])


_SEES = [
    Row(
        name="environments",
        what="reads /proc/*/environ of siblings",
        attack="processes.environments",
        refused=keeps("sibling-environment"),
    ),
    Row(
        name="gateway's environment",
        what="reads the gateway's environment",
        attack="processes.environments",
        refused=keeps("gateway-key", "gateway-environment"),
        already=_CLOSED,
    ),
    Row(
        name="command lines",
        what="reads /proc/*/cmdline of siblings",
        attack="processes.command_lines",
        refused=keeps("sibling-command"),
        profiles=STRICT,
        needs="user namespace",
    ),
    Row(
        name="memory",
        what="searches /proc/PID/mem of siblings",
        attack="processes.memory",
        facts=_halves,
        refused=keeps("sibling"),
    ),
    Row(
        name="process_vm_readv",
        what="reads a sibling's memory by process_vm_readv",
        attack="processes.vm_readv",
        facts=lambda stage: {"pids": stage.pids("sibling.py")},
        refused=no_answer,
    ),
    Row(name="ptrace", what="traces siblings and the gateway", attack="processes.trace", refused=no_answer),
    Row(
        name="pidfd_getfd",
        what="takes descriptors of siblings and the gateway",
        attack="processes.take_descriptors",
        refused=no_answer,
    ),
    Row(
        name="sibling's output",
        what="writes into a sibling's standard output through /proc/PID/fd",
        attack="processes.reopen_descriptors",
        refused=_output,
    ),
    Row(
        name="sibling's input",
        what="opens a sibling's standard input through /proc/PID/fd",
        attack="processes.steal_input",
        refused=no_answer,
    ),
]
_ENDS = [
    Row(name="kill", what="SIGKILL to siblings", attack="processes.end", refused=alive, needs="landlock 6"),
    Row(
        name="kill, Node",
        what="the same, by Node",
        server="node",
        attack="processes.end",
        refused=alive,
        needs="landlock 6",
    ),
    Row(
        name="kill gateway",
        what="SIGKILL to the gateway",
        attack="processes.end",
        facts=lambda stage: {"victims": [stage.gateway.pid]},
        refused=alive,
        needs="landlock 6",
    ),
    Row(
        name="kill -1", what="SIGKILL to everybody", attack="processes.end_everybody", refused=alive, needs="landlock 6"
    ),
    Row(
        name="kill by pidfd",
        what="SIGKILL to siblings by pidfd_send_signal",
        attack="processes.end_by_pidfd",
        refused=alive,
        needs="landlock 6",
    ),
    Row(
        name="kill by queue",
        what="SIGKILL to siblings by rt_sigqueueinfo and tgkill",
        attack="processes.end_by_queue",
        refused=alive,
        needs="landlock 6",
    ),
    Row(
        name="kill by F_SETOWN",
        what="lets the kernel send SIGKILL to siblings (F_SETOWN, F_SETSIG)",
        attack="processes.end_by_owner",
        refused=alive,
        needs="landlock 6",
    ),
    Row(
        name="kill reaper",
        what="SIGKILL to its own reaper and the fork server, to outlive them",
        attack="processes.end_reaper",
        refused=_ended_with_session,
        needs="landlock 6",
    ),
    Row(
        name="prlimit",
        what="takes a sibling's right to open files by prlimit",
        attack="processes.limit_others",
        refused=_limited,
        needs="seccomp",
    ),
    Row(
        name="scheduling",
        what="makes siblings the last to run",
        attack="processes.slow_others",
        refused=_priorities,
        needs="seccomp",
    ),
    Row(
        name="oom_score_adj",
        what="makes siblings the first to die when memory ends",
        attack="processes.first_to_die",
        refused=_oom,
    ),
]
_SHARES = [
    Row(
        name="state socket",
        what="connects to a sibling's state socket without its secret",
        attack="ipc.state",
        refused=keeps("sibling"),
        already="the socket asks for the secret",
    ),
    Row(
        name="stolen state secret",
        what="connects to a sibling's state socket with its secret",
        attack="ipc.state_with_secret",
        refused=keeps("sibling"),
        needs="user_notif",
        seen="socket {sibling[socket]}",
    ),
    Row(
        name="state socket names",
        what="lists the state sockets of all sessions",
        attack="ipc.state_sockets",
        refused=no_answer,
    ),
    Row(
        name="sibling's socket",
        what="connects to a Unix socket in a sibling's folder",
        attack="ipc.connected",
        facts=lambda stage: {"path": stage.sibling["path"]},
        refused=unheard_by_sibling,
        needs="user_notif",
        seen="socket {path}",
    ),
    Row(
        name="sibling's datagrams",
        what="sends to a datagram socket in a sibling's folder",
        attack="ipc.datagram",
        facts=lambda stage: {"path": stage.sibling["datagram"]},
        refused=unheard_by_sibling,
        needs="seccomp",
    ),
    Row(
        name="abstract socket",
        what="connects to a sibling's abstract socket",
        attack="ipc.abstract",
        refused=unheard_by_sibling,
        needs="landlock 6",
    ),
    Row(
        name="abstract datagrams",
        what="sends to a sibling's abstract datagram socket",
        attack="ipc.abstract_datagram",
        refused=unheard_by_sibling,
        needs="landlock 6",
    ),
    Row(
        name="passed descriptor",
        what="takes an open file that a sibling passes",
        attack="ipc.passed_descriptor",
        refused=keeps("sibling"),
        needs="landlock 6",
    ),
    Row(
        name="/dev/shm",
        what="reads a sibling's file in /dev/shm",
        attack="ipc.shared_memory_file",
        refused=keeps("sibling"),
    ),
    Row(
        name="shmget",
        what="attaches a sibling's System V segment",
        attack="ipc.shared_memory_key",
        refused=keeps("sibling"),
        needs="seccomp",
    ),
    Row(
        name="msgget",
        what="reads a sibling's System V message queue",
        attack="ipc.message_queue",
        refused=keeps("sibling"),
        needs="seccomp",
    ),
    Row(
        name="POSIX queue",
        what="sends into a sibling's POSIX message queue",
        attack="ipc.posix_queue",
        refused=unheard_by_sibling,
        needs="seccomp",
    ),
    Row(
        name="docker.sock",
        what="connects to the container engine's socket",
        attack="ipc.connected",
        facts=lambda stage: {"path": "/run/docker.sock"},
        refused=not_heard("docker.sock"),
        needs="user_notif",
        seen="socket {path}",
    ),
    Row(
        name="dbus",
        what="connects to the message bus",
        attack="ipc.connected",
        way="shell",
        facts=lambda stage: {"path": "/run/dbus"},
        refused=not_heard("dbus"),
        needs="user_notif",
        seen="socket {path}",
    ),
    Row(
        name="netlink",
        what="gives the machine another address by netlink",
        attack="ipc.netlink",
        refused=no_answer,
        needs="seccomp",
        root="it needs a capability",
    ),
]

ROWS = [*_SEES, *_ENDS, *_SHARES]
