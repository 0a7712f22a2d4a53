"""Against the gate and the resolver themselves, and what has to work beside all refusals."""

from typing import Any, Final

from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import (
    BOTH,
    Facts,
    Outcome,
    Row,
    both,
    no_answer,
    not_heard,
    serves_on,
    unchanged,
    unreached,
)
from tests.hostile.stage import LIMITS, Called, Stage

__all__ = ["ROWS"]

_DOCKER: Final = "/run/docker.sock"


def _row(name: str, what: str, attack: str, **more: Any) -> Row:
    given: dict[str, Any] = {"needs": "user_notif", **more}
    return Row(name=name, what=what, attack=f"gate.{attack}", **given)


def _docker(stage: Stage) -> Facts:
    return {"path": _DOCKER}


def _canary(name: str) -> Any:
    return lambda stage: {"path": str(stage.home.names[name])}


def _to(host: str, port: int = 80) -> Any:
    return lambda stage: {"hosts": [ADDRESSES.get(host, host)], "port": port}


def _worked(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Held here means that it was refused, which it must not be."""
    return Outcome("worked" not in called.got and "HTTP/" not in called.got, " ".join(called.text.split())[:100])


def _honest_after(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome("honest call: HTTP" in called.got, called.text[:100])


def _nothing_left(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(not called.got, called.text[:100] or "nothing")


def _few_processes(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Counted from outside, while they still sleep."""
    left = stage.most_at_once
    return Outcome(left <= LIMITS["processes"] + 4, f"{left} processes at once")


def _same_priorities(stage: Stage, called: Called, facts: Facts) -> Outcome:
    slowed = stage.slowed()
    return Outcome(not slowed, f"{slowed} processes slowed" if slowed else called.text[:100])


ROWS = [
    _row(
        "docker.sock by ways",
        "connects to it by a link, from its folder, through /proc, without an end of the path",
        "unix_by_link",
        facts=_docker,
        refused=not_heard("docker.sock"),
        seen="socket /run",
    ),
    _row(
        "socket race",
        "swaps the folder of its socket for /run while it is decided",
        "unix_race",
        facts=_docker,
        refused=not_heard("docker.sock"),
    ),
    _row(
        "attribute race",
        "swaps its file for another's while its mode is changed",
        "attribute_race",
        facts=_canary("mode"),
        refused=unchanged("mode"),
    ),
    _row(
        "attributes by descriptor",
        "changes modes and times of a program that it may read, by a descriptor",
        "attributes_by_descriptor",
        facts=_canary("program"),
        refused=unchanged("program"),
    ),
    _row(
        "TIOCSTI, high half",
        "types into a terminal, the request with a bit above 32",
        "high_halves_typing",
        refused=no_answer,
        needs="seccomp",
    ),
    _row(
        "sockets, high half",
        "opens datagram sockets and fast open, with bits above 32",
        "high_halves_sockets",
        facts=_to("public"),
        refused=unreached("public"),
        needs="seccomp",
    ),
    _row(
        "processes, high half",
        "limits and slows siblings, their numbers with bits above 32",
        "high_halves_processes",
        refused=no_answer,
        needs="seccomp",
    ),
    _row(
        "priority of the user",
        "slows all processes of its user",
        "priority_of_user",
        refused=_same_priorities,
        needs="seccomp",
    ),
    _row(
        "odd calls",
        "makes calls without sense, ends in the middle of others, then an honest one",
        "odd_calls",
        facts=_to("metadata"),
        refused=_honest_after,
        already="nothing to refuse",
    ),
    _row(
        "odd queries",
        "asks the resolver with messages that are none",
        "odd_queries",
        facts=_to("other"),
        refused=serves_on,
        already="nothing to refuse",
    ),
    _row(
        "inherited",
        "looks for descriptors that it was left",
        "inherited",
        way="itself",
        refused=_nothing_left,
        already="the fork server closes them",
    ),
    _row(
        "forks at once",
        "forks in 16 threads at once, with children whose parents are gone",
        "forks_at_once",
        facts=lambda stage: {"most": 320},
        refused=_few_processes,
    ),
    Row(
        name="translated",
        what="connects to IPv6 forms of 169.254.169.254: 64:ff9b:1::/48, ::ffff:0:0:0/96",
        attack="network.tcp",
        facts=lambda stage: {"hosts": [ADDRESSES["nat64local"], ADDRESSES["siit"]], "port": 80},
        refused=unreached("nat64local", "siit"),
        needs="user_notif",
        seen="connect",
    ),
    Row(
        name="link-local",
        what="connects to a neighbour's fe80:: address",
        attack="network.by_name",
        facts=lambda stage: {"name": f"{ADDRESSES['neighbour']}%world", "port": 80},
        refused=unreached("neighbour"),
        needs="user_notif",
        seen="connect",
    ),
    Row(
        name="honest work",
        what="uses its folder, processes, threads, memory and state",
        attack="gate.honest",
        refused=_worked,
        profiles=(),
        works=BOTH,
        needs="",
    ),
    Row(
        name="honest work, Node",
        what="the same, by Node: a folder, a program, a thread, the list of interfaces",
        server="node",
        attack="honest",
        refused=_worked,
        profiles=(),
        works=BOTH,
        needs="",
    ),
    Row(
        name="honest work, sh",
        what="the same, by sh: programs and a pipe",
        server="sh",
        attack="honest",
        refused=_worked,
        profiles=(),
        works=BOTH,
        needs="",
    ),
    Row(
        name="honest forks",
        what="starts processes while others end, as shells do",
        attack="gate.honest_forks",
        refused=_worked,
        profiles=(),
        works=BOTH,
        needs="",
    ),
    Row(
        name="allowed host",
        what="connects to a host that it may reach, by name",
        attack="gate.honest_name",
        facts=lambda stage: {"name": "allowed.example.com", "port": 443},
        refused=both(_worked),
        profiles=(),
        works=BOTH,
        needs="",
    ),
]
