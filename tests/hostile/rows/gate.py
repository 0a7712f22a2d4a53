"""Against the gate and the resolver themselves, and what has to work beside all refusals."""

from typing import Any

from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import BOTH, Facts, Outcome, Row, canary, not_heard, unchanged, unreached
from tests.hostile.stage import Called, Stage


def _works(name: str, what: str, attack: str, **more: Any) -> Row:
    """What an honest server does: no profile may refuse it."""
    return Row(name, what, attack, _worked, profiles=(), works=BOTH, needs="", **more)


def _worked(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Held here means that it was refused, which it must not be."""
    return Outcome("worked" not in called.got and "HTTP/" not in called.got, " ".join(called.text.split())[:100])


ROWS = [
    Row("socket race", "swaps the folder of its socket for /run while it is decided", "gate.unix_race",
        not_heard("docker.sock"), facts={"path": "/run/docker.sock"}, needs="user_notif"),
    Row("attribute race", "swaps its file for another's while its mode is changed", "gate.attribute_race",
        unchanged("mode"), facts=canary("mode"), needs="user_notif"),
    Row("translated", "connects to IPv6 forms of 169.254.169.254: 64:ff9b:1::/48, ::ffff:0:0:0/96", "network.tcp",
        unreached("nat64local", "siit"), facts={"hosts": [ADDRESSES["nat64local"], ADDRESSES["siit"]], "port": 80},
        needs="user_notif", seen="connect"),
    Row("link-local", "connects to a neighbour's fe80:: address", "network.by_name", unreached("neighbour"),
        facts={"name": f"{ADDRESSES['neighbour']}%world", "port": 80}, needs="user_notif", seen="connect"),
    _works("honest work", "uses its folder, processes, threads, memory and state", "gate.honest"),
    _works("honest work, Node", "the same, by Node: a folder, a program, a thread, the list of interfaces", "honest",
           server="node"),
    _works("honest work, sh", "the same, by sh: programs and a pipe", "honest", server="sh"),
    _works("allowed host", "connects to a host that it may reach, by name", "gate.honest_name",
           facts={"name": "allowed.example.com", "port": 443}),
]  # fmt: skip
