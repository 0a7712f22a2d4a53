"""Against the gate and the resolver themselves, and what has to work beside all refusals."""

from typing import Any, Final

from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import (
    BOTH,
    Facts,
    Judge,
    Outcome,
    Row,
    canary,
    honest_after,
    no_answer,
    not_heard,
    serves_on,
    unchanged,
    unreached,
)
from tests.hostile.stage import LIMITS, Called, Stage

__all__ = ["ROWS"]

_DOCKER: Final = "/run/docker.sock"


def _row(name: str, what: str, attack: str, refused: Judge, **more: Any) -> Row:
    given: dict[str, Any] = {"needs": "user_notif", **more}
    return Row(name, what, f"gate.{attack}", refused, **given)


def _works(name: str, what: str, attack: str, **more: Any) -> Row:
    """What an honest server does: no profile may refuse it."""
    return Row(name, what, attack, _worked, profiles=(), works=BOTH, needs="", **more)


def _docker(stage: Stage) -> Facts:
    return {"path": _DOCKER}


def _to(host: str, port: int = 80) -> Any:
    return lambda stage: {"hosts": [ADDRESSES.get(host, host)], "port": port}


def _worked(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Held here means that it was refused, which it must not be."""
    return Outcome("worked" not in called.got and "HTTP/" not in called.got, " ".join(called.text.split())[:100])


def _nothing_left(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(not called.got, called.text[:100] or "nothing")


def _ended_for_many(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Starts are counted ten times a second, so there may be more for a moment. Then the server is ended."""
    return Outcome(not called.got, f"{stage.most_at_once} processes at once: {called.text[:80]}")


def _same_priorities(stage: Stage, called: Called, facts: Facts) -> Outcome:
    slowed = stage.slowed()
    return Outcome(not slowed, f"{slowed} processes slowed" if slowed else called.text[:100])


ROWS = [
    _row("docker.sock by ways", "connects to it by a link, from its folder, through /proc, without an end of the path",
         "unix_by_link", not_heard("docker.sock"), facts=_docker, seen="socket /run"),
    _row("socket race", "swaps the folder of its socket for /run while it is decided", "unix_race",
         not_heard("docker.sock"), facts=_docker),
    _row("attribute race", "swaps its file for another's while its mode is changed", "attribute_race",
         unchanged("mode"), facts=canary("mode")),
    _row("attributes by descriptor", "changes modes and times of a program that it may read, by a descriptor",
         "attributes_by_descriptor", unchanged("program"), facts=canary("program")),
    _row("TIOCSTI, high half", "types into a terminal, the request with a bit above 32", "high_halves_typing",
         no_answer, needs="seccomp"),
    _row("sockets, high half", "opens datagram sockets and fast open, with bits above 32", "high_halves_sockets",
         unreached("public"), facts=_to("public"), needs="seccomp"),
    _row("processes, high half", "limits and slows siblings, their numbers with bits above 32", "high_halves_processes",
         no_answer, needs="seccomp"),
    _row("priority of the user", "slows all processes of its user", "priority_of_user", _same_priorities,
         needs="seccomp"),
    _row("odd calls", "makes calls without sense, ends in the middle of others, then an honest one", "odd_calls",
         honest_after, facts=_to("metadata"), already="nothing to refuse"),
    _row("odd queries", "asks the resolver with messages that are none", "odd_queries", serves_on, facts=_to("other"),
         already="nothing to refuse"),
    _row("inherited", "looks for descriptors that it was left", "inherited", _nothing_left, way="itself",
         already="the fork server closes them"),
    _row("forks at once", "forks in 16 threads at once, with children whose parents are gone", "forks_at_once",
         _ended_for_many, facts={"most": 320}, seen=f"processes more than {LIMITS['processes']} processes"),
    Row("translated", "connects to IPv6 forms of 169.254.169.254: 64:ff9b:1::/48, ::ffff:0:0:0/96", "network.tcp",
        unreached("nat64local", "siit"), facts={"hosts": [ADDRESSES["nat64local"], ADDRESSES["siit"]], "port": 80},
        needs="user_notif", seen="connect"),
    Row("link-local", "connects to a neighbour's fe80:: address", "network.by_name", unreached("neighbour"),
        facts={"name": f"{ADDRESSES['neighbour']}%world", "port": 80}, needs="user_notif", seen="connect"),
    _works("honest work", "uses its folder, processes, threads, memory and state", "gate.honest"),
    _works("honest work, Node", "the same, by Node: a folder, a program, a thread, the list of interfaces", "honest",
           server="node"),
    _works("honest work, sh", "the same, by sh: programs and a pipe", "honest", server="sh"),
    _works("honest forks", "starts processes while others end, as shells do", "gate.honest_forks"),
    _works("allowed host", "connects to a host that it may reach, by name", "gate.honest_name",
           facts={"name": "allowed.example.com", "port": 443}),
]  # fmt: skip
