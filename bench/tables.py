"""The tables: which subjects stand beside each other, under which load. The first row of a table bounds the others."""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.load import Load
from bench.subjects import PYTHON, Subject, echo_server

__all__ = ["TABLES", "Place", "Row"]

TOOLS: Final = 25
SERVERS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """A subject under a load. With an `owner` its sessions are that one's, and calls are made here."""

    name: str
    subject: Subject
    load: Load = field(default_factory=Load)
    owner: Subject | None = None


@dataclass(frozen=True)
class Place:
    """Where subjects find what they need."""

    folder: Path
    redis: str

    @property
    def env(self) -> dict[str, str]:
        return {
            "BENCH_REDIS": self.redis.removeprefix("redis://").split("/")[0],
            "BENCH_ECHO": str(echo_server()),
        } | KEYS

    def relay(self) -> Subject:
        return Subject(command=(*PYTHON, "bench.subjects.serve", "bench.subjects.minimal_relay:app"), env=self.env)

    def bare(self) -> Subject:
        return Subject(command=(*PYTHON, "bench.subjects.serve", "bench.subjects.bare:app"), env=self.env)

    def app(self, name: str) -> Subject:
        return Subject(command=(*PYTHON, "bench.subjects.serve", f"bench.subjects.app:{name}"), env=self.env)

    def gateway(
        self,
        store: str = "",
        *more: str,
        options: Mapping[str, Any] | None = None,
        servers: Mapping[str, Any] | None = None,
        **env: str,
    ) -> Subject:
        name = secrets.token_hex(4)
        entries = servers or {"echo": {"command": str(echo_server()), "env": env}}
        given = dict(options or {})
        # What is measured here is one client that hammers: no default is to stand in its way.
        gateway = {"store": store or self.redis, **given, "policy": {**UNLIMITED, **given.get("policy", {})}}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps({"mcpServers": entries, "gateway": gateway}))
        return Subject(command=(*PYTHON, "gateway", "run", "--port", "0", "--config", str(file), *more), env=self.env)


UNLIMITED: Final = dict.fromkeys(
    ("session_rate", "principal_rate", "opening_rate", "principal_sessions", "principal_processes"), 0
)
KEYS: Final = {"MCP_GATEWAY_KEYS": secrets.token_hex(32)}


def stores(place: Place) -> list[Row]:
    """What bounds a gateway, and the gateway on each store, with one worker and two, and from another replica."""
    one = place.gateway()
    return [
        Row(name="minimal relay", subject=place.relay()),
        Row(name="bare ASGI app", subject=place.bare()),
        Row(name="gateway, redis", subject=one),
        Row(name="gateway, memory", subject=place.gateway("memory://")),
        Row(name="gateway, sqlite", subject=place.gateway(f"sqlite:///{place.folder / 'bench.db'}")),
        Row(name="2 workers, redis", subject=place.gateway("", "--workers", "2")),
        Row(name="forwarded, redis", subject=one, owner=one),
    ]


def eras(place: Place) -> list[Row]:
    """The cells of the era matrix; the same with event streams."""
    rows = [Row(name="minimal relay", subject=place.relay())]
    for client in ("legacy", "modern"):
        for server in ("legacy", "modern"):
            subject = place.gateway(ECHO_ERA=server)
            rows.append(Row(name=f"{client} client, {server} server", subject=subject, load=Load(era=client)))
    streams = Load(progress=True)
    return [*rows, Row(name="answers as event streams", subject=place.gateway(), load=streams)]


def sizes(place: Place) -> list[Row]:
    """Results of 100 bytes to a megabyte, each beside the relay."""
    rows = []
    for size in (100, 10_000, 100_000, 1_000_000):
        load = Load(arguments={"size": size}, connections=32 if size < 1_000_000 else 8)
        rows.append(Row(name=f"minimal relay, {size:,} B", subject=place.relay(), load=load))
        rows.append(Row(name=f"gateway, {size:,} B", subject=place.gateway(), load=load))
    return rows


def one(place: Place) -> list[Row]:
    """One connection: what a call takes that waits for nobody."""
    load = Load(connections=1)
    return [
        Row(name="minimal relay", subject=place.relay(), load=load),
        Row(name="bare ASGI app", subject=place.bare(), load=load),
        Row(name="gateway, redis", subject=place.gateway(), load=load),
        Row(name="gateway, memory", subject=place.gateway("memory://"), load=load),
    ]


def policy(place: Place) -> list[Row]:
    """Twenty servers with 500 tools, as they are, and with every kind of policy on them."""
    names = [f"s{n}__tool{n % TOOLS}" for n in range(SERVERS)]
    arguments = {"text": "hello", "team": "red"}
    server = {"command": str(echo_server()), "env": {"ECHO_TOOLS": str(TOOLS)}}
    tools = {
        **{f"tool{n}*": {"permissions": ["write"]} for n in range(5)},
        "*": {"bind": {"team": "workspace"}, "blocked": [r"drop\s+table"], "slow_s": 5, "operation": "write"},
    }
    ruled = {**server, "permissions": ["use"], "tools": tools}
    rules = [{"principals": [f"nobody-{n}"], "trust": "sandboxed"} for n in range(10)]
    options = {
        "api_keys": {"bench": hashlib.sha256(b"key").hexdigest()},
        "policy": {
            "rules": [*rules, {"principals": ["api-key:*"], "workspace": "red", "permissions": ["use", "write"]}],
            "workspaces": {"blue-*": {}, "red": {"servers": ["s*"], "tools": ["s*__tool*"]}},
            "session_rate": {"per_s": 5_000, "burst": 5_000},
            "principal_rate": {"per_s": 100_000, "burst": 100_000},
            "principal_sessions": 1_000,
            "principal_processes": 5_000,
        },
        "audit": {"calls": True},
    }
    plain = {f"s{n}": server for n in range(SERVERS)}
    return [
        Row(name="no policy", subject=place.gateway(servers=plain), load=Load(tools=names, arguments=arguments)),
        Row(
            name="every policy",
            subject=place.gateway(servers=dict.fromkeys(plain, ruled), options=options | {"audit": {}}),
            load=Load(tools=names, arguments=arguments, key="key"),
        ),
        Row(
            name="every policy, calls audited",
            subject=place.gateway(servers=dict.fromkeys(plain, ruled), options=options),
            load=Load(tools=names, arguments=arguments, key="key"),
        ),
    ]


def growth(place: Place) -> list[Row]:
    """What a call costs with more servers, more tools, and with more replicas than the one that owns its session."""
    rows = []
    for servers, tools in ((1, 1), (5, 25), (20, 25), (20, 250)):
        names = [f"s{n % servers}__tool{n % tools}" for n in range(SERVERS)]
        entry = {"command": str(echo_server()), "env": {"ECHO_TOOLS": str(tools)}}
        subject = place.gateway(servers={f"s{n}": entry for n in range(servers)})
        load = Load(tools=names if servers > 1 else ("tool0",), arguments={"text": "hello", "team": "red"})
        rows.append(Row(name=f"{servers} servers, {servers * tools:,} tools", subject=subject, load=load))
    one = place.gateway()
    return [*rows, Row(name="1 of 2 replicas, the other owns", subject=one, owner=one)]


def app(place: Place) -> list[Row]:
    """What `SessionMiddleware` costs an app that does next to nothing else. All clients send a cookie."""
    opener, load = place.app("written"), Load(visits=True)
    return [
        Row(name="bare Starlette app", subject=place.app("bare"), load=load, owner=opener),
        Row(name="one Redis read, no session", subject=place.app("asking"), load=load, owner=opener),
        Row(name="session untouched", subject=place.app("untouched"), load=load, owner=opener),
        Row(name="session read", subject=place.app("read"), load=load, owner=opener),
        Row(name="session written", subject=place.app("written"), load=load, owner=opener),
    ]


TABLES: Final[Mapping[str, Callable[[Place], list[Row]]]] = {
    "stores": stores,
    "one": one,
    "eras": eras,
    "sizes": sizes,
    "policy": policy,
    "growth": growth,
    "app": app,
}
