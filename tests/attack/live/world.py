"""What is attacked: two gateways on Redis, one that asks who calls and one that does not, with their doors."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from tests.attack.honest import Felt, Honest, Lane, running_honest
from tests.attack.live.doors import Door, running_doors
from tests.attack.live.rows import DOORS
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import SIGNED, RunningGateway, running_gateway, server
from tests.support.issuer import Issuer, running_issuer
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.wire import Answer, ask, call_body, head, rpc

__all__ = ["OPERATOR", "PROXY", "World", "key_of", "running_world"]

OPERATOR: Final = "operators-key-0123456789"
PROXY: Final = "127.0.0.77"
"""The address of a proxy that is trusted to say who calls."""

FRESH: Final = 64
"""Principals who never called before."""

_NAMES: Final = (
    "mallory",
    "victim",
    "guest",
    "flooder",
    "pinger",
    *(f"honest-{n}" for n in range(12)),
    *(f"fresh-{n}" for n in range(FRESH)),
)
_SERVER: Final = (sys.executable, str(Path(__file__).with_name("server.py")))
_TOOLS: Final = {
    "notes": {"permissions": ["notes.write"]},
    "inner": {"direct_only": True},
    "query": {"blocked": [r"drop\s+table", '"quoted"', "(a+)+$"]},
}
_RULES: Final = [
    {"principals": ["api-key:guest", "api-key:fresh-*"], "trust": "sandboxed"},
    {"workspaces": ["team-*"], "trust": "direct", "permissions": ["notes.write"]},
]
_DEADLINES: Final = {"client_timeout_s": 2.0}
"""So that attacks are over soon. The defaults have tests of their own."""


@dataclasses.dataclass(slots=True, kw_only=True)
class World:
    """The gateway that asks who calls, and what stands around it; `open` serves anybody at `open_doors`."""

    gateway: RunningGateway
    open: RunningGateway
    doors: dict[str, Door]
    open_doors: dict[str, Door]
    redis: RunningRedis
    issuer: Issuer
    honest: Honest
    quiet: dict[str, Felt] = dataclasses.field(default_factory=dict)
    admin_port: int = 0
    _fresh: int = 0

    def fresh(self) -> str:
        """The name of a principal who never called before."""
        self._fresh += 1
        return f"fresh-{self._fresh - 1}"

    def rss_mb(self) -> float:
        """Resident memory of the gateway's process."""
        return float(psutil.Process(self.gateway.pid).memory_info().rss) / (1 << 20)

    def call(self, door: Door, key: str, tool: str, arguments: Any = None, **headers: str) -> Answer:
        """A call of one tool of the `tool` server."""
        request = rpc(call_body(tool, arguments), {**bearer(key), **headers})
        return ask(door.port, request)

    def seen(self) -> Mapping[str, int]:
        """What has reached the server, by method and name."""
        told: dict[str, int] = json.loads(self.call(self.doors["direct"], key_of("victim"), "seen").text())
        return told

    def listening(self) -> list[int]:
        """The ports the gateway's process listens on beside its own."""
        found = psutil.Process(self.gateway.pid).net_connections(kind="tcp")
        return [c.laddr.port for c in found if c.status == psutil.CONN_LISTEN and c.laddr.port != self.gateway.port]

    def audit(self) -> list[bytes]:
        """The ids of the events of sessions that the trail keeps: what happened, not what was refused."""
        found: list[bytes] = []
        client = self.redis.client()
        for key in client.scan_iter("mcp:audit*"):
            entries: Any = client.xrange(key)
            found += [bytes(entry) for entry, values in entries if b"created" in b"".join(values.values())]
        return found

    def operators(self, method: str, path: str, door: Door | None = None, **headers: str) -> Answer:
        """A request of the operator's."""
        given = {"Host": "localhost", "Authorization": f"Bearer {OPERATOR}", **headers}
        return ask((door or self.doors["direct"]).port, head(method, path, given.items()))


def key_of(name: str) -> str:
    """The API key of that name."""
    return f"{name}-key-0123456789"


def settings(redis: RunningRedis, issuer: Issuer) -> dict[str, Any]:
    """Of the gateway that asks who calls."""
    claims = {"trust": "mcp.trust", "permissions": "may"}
    auth = issuer.settings(claims=claims)
    proxies = {"networks": [f"{PROXY}/32"], "subject_header": "X-User", "trust_header": "X-Trust"}
    return {
        "store": redis.url,
        "sse": True,
        "api_keys": {name: sha256(key_of(name)) for name in _NAMES},
        "admin": {"keys": {"ops": [sha256(OPERATOR)]}},
        "auth": {**auth, "proxies": proxies},
        "limits": _DEADLINES,
        "policy": {"rules": _RULES, "session_rate": {"per_s": 100, "burst": 1_000}},
        "log_level": "warning",
    }


def servers() -> dict[str, Any]:
    """`tool` is what is attacked, `own` has a process for each session, `calm` is what honest clients use."""
    return {
        "tool": server(_SERVER, shared=True, tools=_TOOLS),
        "other": server(_SERVER, shared=True),
        "odd": server((*_SERVER, "escapes"), shared=True),
        # Without a sandbox, whose socket to the session's state answers nobody here: the attack is on that socket.
        "own": server(_SERVER, handles=True, sandbox="off"),
        "calm": server(_SERVER),
    }


@contextlib.contextmanager
def running_world(doors: tuple[str, ...] = DOORS, *, sessions: int = 4, quiet_s: float = 3.0) -> Iterator[World]:
    """All of it; the honest clients use those doors, each with so many sessions. With the direct one only, there is
    neither a proxy nor a gateway that serves anybody."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        issuer = stack.enter_context(running_issuer())
        options = settings(redis, issuer)
        gateway = stack.enter_context(running_gateway(servers(), options=options, env=SIGNED, must_stop=False))
        unguarded = gateway
        ways = {"direct": Door(name="direct", port=gateway.port)}
        open_ways = ways
        if doors != ("direct",):
            ways = stack.enter_context(running_doors(gateway.port))
            # Its metrics need a listener of their own; where that is, the process knows.
            anybody = {
                "store": redis.url.replace("/0", "/1"),
                "admin": {"listen": "127.0.0.1:0"},
                "audit": {"calls": True},
                "log_level": "warning",
            }
            unguarded = stack.enter_context(running_gateway(servers(), options=anybody, env=SIGNED, must_stop=False))
            open_ways = stack.enter_context(running_doors(unguarded.port))
        lanes = [
            Lane(
                name=name,
                port=ways[name].port,
                keys=tuple(key_of(f"honest-{number * sessions + n}") for n in range(sessions)),
                per_s=20.0,
            )
            for number, name in enumerate(doors)
        ]
        honest = stack.enter_context(running_honest(lanes))
        world = World(
            gateway=gateway, open=unguarded, doors=ways, open_doors=open_ways, redis=redis, issuer=issuer, honest=honest
        )
        world.admin_port = _admin_port(unguarded) if unguarded is not gateway else 0
        begin = time.monotonic()
        time.sleep(quiet_s)
        world.quiet = {lane.name: honest.felt(lane.name, begin) for lane in lanes}
        yield world


def _admin_port(gateway: RunningGateway) -> int:
    """Where a gateway serves its operators: the port of its own that answers for metrics."""
    connections = psutil.Process(gateway.pid).net_connections(kind="tcp")
    ports = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN} - {gateway.port}
    for port in ports:
        with contextlib.suppress(ConnectionError):
            if ask(port, head("GET", "/metrics", [("Host", "localhost")])).status == 200:
                return int(port)
    raise AssertionError("operators are not served")
