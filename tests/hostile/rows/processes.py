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
    given = os.getpriority(os.PRIO_PROCESS, 0)
    slowed = [
        pid for pid in facts["siblings"] if os.getpriority(os.PRIO_PROCESS, pid) != given or os.sched_getscheduler(pid)
    ]
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
    Row("environments", "reads /proc/*/environ of siblings", "processes.environments", keeps("sibling-environment")),
    Row(
        "gateway's environment",
        "reads the gateway's environment",
        "processes.environments",
        keeps("gateway-key", "gateway-environment"),
        already=_CLOSED,
    ),
    Row(
        "command lines",
        "reads /proc/*/cmdline of siblings",
        "processes.command_lines",
        keeps("sibling-command"),
        profiles=STRICT,
        needs="user namespace",
    ),
    Row("memory", "searches /proc/PID/mem of siblings", "processes.memory", keeps("sibling"), facts=_halves),
    Row(
        "process_vm_readv",
        "reads a sibling's memory by process_vm_readv",
        "processes.vm_readv",
        no_answer,
        facts=lambda stage: {"pids": stage.pids("sibling.py")},
    ),
    Row("ptrace", "traces siblings and the gateway", "processes.trace", no_answer),
    Row("pidfd_getfd", "takes descriptors of siblings and the gateway", "processes.take_descriptors", no_answer),
    Row(
        "sibling's output",
        "writes into a sibling's standard output through /proc/PID/fd",
        "processes.reopen_descriptors",
        _output,
    ),
    Row("sibling's input", "opens a sibling's standard input through /proc/PID/fd", "processes.steal_input", no_answer),
]
_ENDS = [
    Row("kill", "SIGKILL to siblings", "processes.end", alive, needs="landlock 6"),
    Row("kill, Node", "the same, by Node", "processes.end", alive, server="node", needs="landlock 6"),
    Row(
        "kill gateway",
        "SIGKILL to the gateway",
        "processes.end",
        alive,
        facts=lambda stage: {"victims": [stage.gateway.pid]},
        needs="landlock 6",
    ),
    Row("kill -1", "SIGKILL to everybody", "processes.end_everybody", alive, needs="landlock 6"),
    Row(
        "kill by pidfd", "SIGKILL to siblings by pidfd_send_signal", "processes.end_by_pidfd", alive, needs="landlock 6"
    ),
    Row(
        "kill by queue",
        "SIGKILL to siblings by rt_sigqueueinfo and tgkill",
        "processes.end_by_queue",
        alive,
        needs="landlock 6",
    ),
    Row(
        "kill by F_SETOWN",
        "lets the kernel send SIGKILL to siblings (F_SETOWN, F_SETSIG)",
        "processes.end_by_owner",
        alive,
        needs="landlock 6",
    ),
    Row(
        "kill reaper",
        "SIGKILL to its own reaper and the fork server, to outlive them",
        "processes.end_reaper",
        _ended_with_session,
        needs="landlock 6",
    ),
    Row(
        "prlimit",
        "takes a sibling's right to open files by prlimit",
        "processes.limit_others",
        _limited,
        needs="seccomp",
    ),
    Row("scheduling", "makes siblings the last to run", "processes.slow_others", _priorities, needs="seccomp"),
    Row("oom_score_adj", "makes siblings the first to die when memory ends", "processes.first_to_die", _oom),
]
_SHARES = [
    Row(
        "state socket",
        "connects to a sibling's state socket without its secret",
        "ipc.state",
        keeps("sibling"),
        already="the socket asks for the secret",
    ),
    Row(
        "stolen state secret",
        "connects to a sibling's state socket with its secret",
        "ipc.state_with_secret",
        keeps("sibling"),
        needs="user_notif",
        seen="socket {sibling[socket]}",
    ),
    Row("state socket names", "lists the state sockets of all sessions", "ipc.state_sockets", no_answer),
    Row(
        "sibling's socket",
        "connects to a Unix socket in a sibling's folder",
        "ipc.connected",
        unheard_by_sibling,
        facts=lambda stage: {"path": stage.sibling["path"]},
        needs="user_notif",
        seen="socket {path}",
    ),
    Row(
        "sibling's datagrams",
        "sends to a datagram socket in a sibling's folder",
        "ipc.datagram",
        unheard_by_sibling,
        facts=lambda stage: {"path": stage.sibling["datagram"]},
        needs="seccomp",
    ),
    Row(
        "abstract socket",
        "connects to a sibling's abstract socket",
        "ipc.abstract",
        unheard_by_sibling,
        needs="landlock 6",
    ),
    Row(
        "abstract datagrams",
        "sends to a sibling's abstract datagram socket",
        "ipc.abstract_datagram",
        unheard_by_sibling,
        needs="landlock 6",
    ),
    Row(
        "passed descriptor",
        "takes an open file that a sibling passes",
        "ipc.passed_descriptor",
        keeps("sibling"),
        needs="landlock 6",
    ),
    Row(
        "sockets of the machine",
        "looks for the gateway's listener in /proc/net, its own and that of its reaper",
        "processes.sockets_of_the_machine",
        no_answer,
        facts=lambda stage: {"port": stage.port},
        profiles=STRICT,
        needs="namespaces",
    ),
    Row("/dev/shm", "reads a sibling's file in /dev/shm", "ipc.shared_memory_file", keeps("sibling")),
    Row("shmget", "attaches a sibling's System V segment", "ipc.shared_memory_key", keeps("sibling"), needs="seccomp"),
    Row("msgget", "reads a sibling's System V message queue", "ipc.message_queue", keeps("sibling"), needs="seccomp"),
    Row(
        "POSIX queue",
        "sends into a sibling's POSIX message queue",
        "ipc.posix_queue",
        unheard_by_sibling,
        needs="seccomp",
    ),
    Row(
        "docker.sock",
        "connects to the container engine's socket",
        "ipc.connected",
        not_heard("docker.sock"),
        facts={"path": "/run/docker.sock"},
        needs="user_notif",
        seen="socket {path}",
    ),
    Row(
        "dbus",
        "connects to the message bus",
        "ipc.connected",
        not_heard("dbus"),
        way="shell",
        facts={"path": "/run/dbus"},
        needs="user_notif",
        seen="socket {path}",
    ),
    Row(
        "netlink",
        "gives the machine another address by netlink",
        "ipc.netlink",
        no_answer,
        needs="seccomp",
        root="it needs a capability",
    ),
]

ROWS = [*_SEES, *_ENDS, *_SHARES]
