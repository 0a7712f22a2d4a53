"""`python -m tests.attack.hostile_memory`: what stays in memory and in the store after 100,000 hostile requests.

A real gateway is warmed up by the same kind of traffic, until its bounded caches are full. Then it gets the number that
is asked for, and its RSS (and Redis's memory and keys) must be where they were, give or take 5 %. 1 when they are not.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import random
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from msgspec.structs import replace

from session_store import AuditEvent, backend_for
from session_store.ports.accounting import MAX_AUDIT_EVENTS
from session_store.ports.timelines import MAX_SESSIONS, TimelineEntry, TimelineHead, TimelinePart
from session_store.redis.keys import SHARDS
from tests.support.credentials import bearer, sha256
from tests.support.flood import flood, request
from tests.support.gateway_process import DEMO, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import ACCEPT, VERSION, Legacy, modern_body
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually

__all__ = ["GROWTH", "Measured", "measured"]

GROWTH: Final = 1.05
KEYS: Final = {f"client-{n}": f"key-{n}" for n in range(8)}
SETTLE_S: Final = 6.0
"""All sessions are gone by then, and the store has forgotten what it keeps of their end for some seconds."""

LARGE: Final = 0.002
"""So many of the texts have up to 2 MB: the rest up to 16 KiB, most of them short."""

FIXED_KEYS: Final = 3 * SHARDS
"""Keys of the index, which a Redis comes to have however few sessions there are."""

# Rates and quotas would refuse most of this; here it is the memory that has to hold.
OPTIONS: Final[dict[str, Any]] = {
    "api_keys": {name: sha256(key) for name, key in KEYS.items()},
    "session": {"idle_ttl_s": 2.0, "max_sessions": 200},
    "log_calls_per_s": 0,
    "policy": {
        **UNLIMITED,
        "principal_sessions": 50,
        "rules": [{"principals": ["api-key:client-1"], "permissions": ["x"]}],
        "workspaces": {"w*": {}, "*": {"tools": ["demo__*", "desk__*"]}},
    },
}
SERVERS: Final = {
    "demo": server(DEMO, shared=True, tools={"slow": {"slow_s": 5.0}}),
    "desk": server(DEMO, shared=False, handles=True),
}


class Hostile:
    """Requests by seeded chance: names, URIs, params, tokens, cookies, handles, hosts, workspaces, ids of all sizes."""

    def __init__(self, seed: int, netloc: str, sessions: list[str], large: float) -> None:
        self._random = random.Random(seed)
        self._large = large
        self._netloc = netloc
        self._sessions = sessions
        self._kinds: list[Callable[[], bytes]] = [
            *(self._tool, self._tool, self._uri, self._prompt, self._handle, self._cursor, self._level, self._progress),
            *(self._initialize, self._modern, self._modern, self._workspace, self._client_name, self._listen),
            *(self._token, self._cookie, self._key, self._host, self._accept, self._stream, self._delete),
            *(self._method, self._notification, self._request_id, self._subscribe, self._complete, self._batch),
        ]

    def requests(self, many: int) -> Iterator[bytes]:
        for _ in range(many):
            yield self._random.choice(self._kinds)()

    # -- texts

    def text(self) -> str:
        chance = self._random
        if chance.random() < self._large:
            return chance.choice(string.ascii_letters) * chance.randrange(16_384, 2_000_000)
        size = min(16_384, int(chance.lognormvariate(3.5, 1.8)) + 1)
        return f"{chance.getrandbits(64):x}"[: max(1, size)] + chance.choice(string.ascii_letters) * max(0, size - 16)

    def label(self) -> str:
        """What may stand in a header."""
        return self.text()[:20_000]

    # -- requests

    def _post(self, body: Any, headers: dict[str, str] | None = None, path: str = "") -> bytes:
        path = path or self._random.choice(("/mcp", "/servers/demo/mcp", "/servers/desk/mcp"))
        known = {"Host": self._netloc, "Content-Type": "application/json", **ACCEPT, **self._who()}
        return request("POST", path, {**known, **(headers or {})}, json.dumps(body).encode())

    def _who(self) -> dict[str, str]:
        return bearer(self._random.choice(list(KEYS.values())))

    def _legacy(self, method: str, params: Any, request_id: Any = 1) -> bytes:
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        token = self._random.choice(self._sessions)
        name, _, session = token.partition(" ")
        return self._post(body, {"Mcp-Session-Id": session, **bearer(KEYS[name])}, "/servers/demo/mcp")

    def _tool(self) -> bytes:
        return self._legacy("tools/call", {"name": self.text(), "arguments": {"x": self.text()}})

    def _uri(self) -> bytes:
        return self._legacy("resources/read", {"uri": "file:///" + self.text()})

    def _prompt(self) -> bytes:
        return self._legacy("prompts/get", {"name": self.text()})

    def _cursor(self) -> bytes:
        return self._legacy("tools/list", {"cursor": self.text()})

    def _level(self) -> bytes:
        return self._legacy("logging/setLevel", {"level": self.text()})

    def _progress(self) -> bytes:
        return self._legacy("tools/call", {"name": "count", "_meta": {"progressToken": self.text()}})

    def _complete(self) -> bytes:
        return self._legacy("completion/complete", {"ref": {"type": "ref/prompt", "name": self.text()}, "argument": {}})

    def _subscribe(self) -> bytes:
        method = self._random.choice(("resources/subscribe", "resources/unsubscribe"))
        return self._legacy(method, {"uri": f"memo://{self._random.randrange(40)}/" + self.text()[:4_000]})

    def _request_id(self) -> bytes:
        return self._legacy("ping", {}, self.text())

    def _method(self) -> bytes:
        return self._legacy(self.text(), {})

    def _notification(self) -> bytes:
        body = {"jsonrpc": "2.0", "method": "notifications/" + self.text(), "params": {"reason": self.text()}}
        return self._post(body, {"Mcp-Session-Id": self._random.choice(self._sessions).partition(" ")[2]})

    def _batch(self) -> bytes:
        batch = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": self.text()}} for n in range(4)]
        session = {"Mcp-Session-Id": self._random.choice(self._sessions).partition(" ")[2]}
        return self._post(batch, {**session, "MCP-Protocol-Version": "2025-03-26"})

    def _initialize(self) -> bytes:
        info = {"name": self.text(), "version": self.text()}
        capabilities = {"experimental": {self.text(): self.text()}}
        params = {"protocolVersion": self.text()[:20], "capabilities": capabilities, "clientInfo": info}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        return self._post(body, path="/servers/demo/mcp")

    def _modern_post(self, method: str, params: dict[str, Any], meta: dict[str, Any], **headers: str) -> bytes:
        body = modern_body(method, params, meta=meta)
        known = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method}
        if "name" in params:
            known["Mcp-Name"] = params["name"]
        return self._post(body, {**known, **headers}, self._random.choice(("/mcp", "/servers/demo/mcp")))

    def _modern(self) -> bytes:
        return self._modern_post("tools/call", {"name": self.label(), "arguments": {}}, {})

    def _workspace(self) -> bytes:
        meta = {"orbit.workspace": self.text(), "traceparent": self.text()}
        return self._modern_post("tools/call", {"name": "demo__" + self.label()[:300], "arguments": {}}, meta)

    def _client_name(self) -> bytes:
        info = {"name": self.text(), "version": self.text()}
        meta = {"io.modelcontextprotocol/clientInfo": info, "io.modelcontextprotocol/logLevel": self.text()}
        return self._modern_post("tools/list", {}, meta)

    def _listen(self) -> bytes:
        wanted = {"resourceSubscriptions": [self.text() for _ in range(3)] + ["x" * 70_000]}
        return self._modern_post("subscriptions/listen", {"notifications": wanted}, {})

    def _handle(self) -> bytes:
        params = {"name": "count", "arguments": {"session": "hs-" + self.text()}}
        body = modern_body("tools/call", params)
        known = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": "count"}
        return self._post(body, known, "/servers/desk/mcp")

    def _ping(self, headers: dict[str, str]) -> bytes:
        return self._post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers)

    def _token(self) -> bytes:
        token = self._random.choice((self.label(), "f" * 24 + "." + f"{self._random.getrandbits(252):063x}"[:43]))
        return self._ping({self._random.choice(("Mcp-Session-Id", "MCP-Gateway-Session")): token})

    def _cookie(self) -> bytes:
        return self._ping({"Cookie": f"mcp_session_id={self.label()}"})

    def _key(self) -> bytes:
        return self._ping({"Authorization": "Bearer " + self.label()})

    def _host(self) -> bytes:
        if self._random.random() < 0.5:
            return self._ping({"Host": self.label()})
        return self._ping({"Origin": "http://" + self.label()})

    def _accept(self) -> bytes:
        return self._ping({"Accept": f"{ACCEPT['Accept']}, x/{self.label()}"})

    def _stream(self) -> bytes:
        known = {"Host": self._netloc, "Accept": "text/event-stream", **self._who()}
        session = self._random.choice(self._sessions).partition(" ")[2]
        return request("GET", "/mcp", {**known, "Mcp-Session-Id": session, "Last-Event-ID": self.label()})

    def _delete(self) -> bytes:
        return request("DELETE", "/mcp", {"Host": self._netloc, **self._who(), "Mcp-Session-Id": self.label()})


@dataclass
class Measured:
    """What was there before and after, by what it is."""

    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    without_ttl: list[str] = field(default_factory=list)
    large: float = LARGE

    @property
    def grown(self) -> dict[str, float]:
        return {name: self.after[name] / max(1, self.before[name]) for name in self.before}

    @property
    def is_good(self) -> bool:
        grown = self.grown
        few_keys = grown.pop("redis keys", 0.0) <= GROWTH or self.after["redis keys"] <= FIXED_KEYS
        return all(each <= GROWTH for each in grown.values()) and few_keys and not self.without_ttl


def measured(
    many: int, *, warm: int, redis: RunningRedis | None = None, large: float = LARGE, rounds: int = 1
) -> Measured:
    """Warm a gateway up, measure it, send it `many` requests, and measure it again.

    An allocator that takes one more arena looks like growth, once; a leak grows in every round. So up to `rounds` are
    measured, each against the one before, until one of them is good.
    """
    found, seed = Measured(large=large), 15
    store = {"store": "memory://" if redis is None else redis.url}
    if redis is not None:
        asyncio.run(_fill_the_records(redis.url))
    with running_gateway(SERVERS, options=OPTIONS | store, env={"MCP_GATEWAY_KEYS": "k" * 40}) as gateway:
        with httpx.Client(timeout=60.0) as http:
            keeping = _sessions(gateway, http)
            _send(gateway, keeping, http, warm, seed, found)
            _settle()
            found.after = _facts(gateway, redis)
            for round_ in range(1, rounds + 1):
                found.before = found.after
                _send(gateway, keeping, http, many, seed + round_, found)
                _settle()
                found.after = _facts(gateway, redis)
                if found.is_good:
                    break
    if redis is not None:
        client = redis.client()
        found.without_ttl = [key.decode() for key in client.scan_iter(count=1_000) if client.ttl(key) == -1]
    return found


def _opens(client: Legacy) -> bool:
    return client.initialize().status_code == 200


async def _fill_the_records(url: str) -> None:
    """The audit trail and the timelines, with as many as they keep, so that what is measured is what displaces them."""
    backend = backend_for(url)
    words = "x" * 96
    stranger = AuditEvent(at=0.0, event="refused", reason=words, correlation=words[:32])
    named = replace(stranger, principal="api-key:client-1")
    for event in (stranger, named, replace(named, event="created")):
        await backend.audit.record([event] * (MAX_AUDIT_EVENTS + 200))
    entries = [TimelineEntry(at=0.0, kind="refusal", server="demo", name="x" * 32, why=words)] * 20
    for first in range(0, MAX_SESSIONS, 1_000):
        heads = [
            TimelineHead(session=f"warm{number:05}", principal=named.principal)
            for number in range(first, first + 1_000)
        ]
        await backend.timelines.add([TimelinePart(head=head, entries=entries) for head in heads])
    await backend.close()


def _sessions(gateway: RunningGateway, http: httpx.Client) -> list[str]:
    """A session of each client, which hostile requests come in as well."""
    opened = []
    for name, key in KEYS.items():
        client = Legacy(gateway.base + "/servers/demo/mcp", http, headers=bearer(key))
        # What the hostile requests have opened in its name may have used up its quota; it is idle, and ends in time.
        assert eventually(functools.partial(_opens, client), 20.0)
        opened.append(f"{name} {client.session}")
    return opened


def _send(
    gateway: RunningGateway, sessions: list[str], http: httpx.Client, many: int, seed: int, found: Measured
) -> None:
    netloc = urlsplit(gateway.url).netloc
    for start in range(0, many, 5_000):
        # Sessions that have ended meanwhile are opened anew: the traffic is of the same kind all along.
        sessions[:] = _sessions(gateway, http)
        hostile = Hostile(seed * 1_000_000 + start, netloc, sessions, found.large)
        found.statuses += asyncio.run(flood(gateway.url, hostile.requests(min(5_000, many - start)), connections=16))


def _settle() -> None:
    time.sleep(SETTLE_S)


def _facts(gateway: RunningGateway, redis: RunningRedis | None) -> dict[str, int]:
    with open(f"/proc/{gateway.pid}/status", encoding="ascii") as file:
        rss = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))
    if redis is None:
        return {"RSS": rss}
    client: Any = redis.client()
    return {"RSS": rss, "redis used_memory": client.info("memory")["used_memory"], "redis keys": client.dbsize()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--warm", type=int, default=0, help="how many before it is measured; as many if not given")
    parser.add_argument("--store", choices=["memory", "redis"], action="append")
    given = parser.parse_args()
    good = True
    for store in given.store or ["memory", "redis"]:
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            redis = stack.enter_context(running_redis()) if store == "redis" else None
            found = measured(given.requests, warm=given.warm or given.requests, redis=redis)
        print(f"{store}: {given.requests} hostile requests, {time.monotonic() - began:.0f} s, {dict(found.statuses)}")
        for name in found.before:
            before, after, grown = found.before[name], found.after[name], found.grown[name] - 1
            print(f"  {name:18} {before:>12,} -> {after:>12,}  {grown:+.1%}")
        if redis is not None:
            print(f"  keys without a TTL: {found.without_ttl or 'none'}")
        print(f"  {'within' if found.is_good else 'NOT within'} {GROWTH - 1:.0%}")
        good = good and found.is_good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
