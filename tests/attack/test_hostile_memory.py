"""What stays in memory and in the store after thousands of hostile requests.

A real gateway is warmed up by the same kind of traffic, until its bounded caches are full. Then it gets as much again,
and its RSS (and Redis's memory and keys) must be where they were, give or take 5 %.
"""

import asyncio
import functools
import json
import random
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec.structs import replace

from session_store import AuditEvent, backend_for
from session_store.ports.audit import MAX_AUDIT_EVENTS
from session_store.ports.timelines import MAX_SESSIONS, TimelineEntry, TimelineHead, TimelinePart
from session_store.redis.keys import SHARDS
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, SIGNED, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import ACCEPT, VERSION, Legacy, modern_body
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually
from tests.support.wire import flood, request

GROWTH: Final = 1.05
KEYS: Final = {f"client-{n}": f"key-{n}" for n in range(8)}
SETTLE_S: Final = 6.0
"""All sessions are gone by then, and the store has forgotten what it keeps of their end for some seconds."""

FIXED_KEYS: Final = 3 * SHARDS
"""Keys of the index, which a Redis comes to have however few sessions there are."""

# Rates and quotas would refuse most of this; here it is the memory that has to hold.
OPTIONS: Final[dict[str, Any]] = {
    "api_keys": {name: sha256(key) for name, key in KEYS.items()},
    "session": {"idle_ttl_s": 2.0, "max_sessions": 200},
    "policy": {
        **UNLIMITED,
        "principal_sessions": 50,
        "rules": [{"principals": ["api-key:client-1"], "permissions": ["x"]}],
        "workspaces": {"w*": {}, "*": {"tools": ["demo__*", "desk__*"]}},
    },
}
NO_LINES: Final = {"gateway.observability.request_log.LINES_PER_S": 0}
SERVERS: Final = {
    "demo": server(DEMO, shared=True, tools={"slow": {"operation": "write"}}),
    "desk": server(DEMO, shared=False, handles=True),
}
PATHS: Final = ("/mcp", "/servers/demo/mcp", "/servers/desk/mcp")


class Hostile:
    """Requests by seeded chance: names, URIs, params, tokens, cookies, handles, hosts, workspaces, ids of all sizes.
    `large` of the texts have up to 2 MB: the rest up to 16 KiB, most of them short."""

    def __init__(self, seed: int, netloc: str, sessions: list[tuple[str, str]], large: float) -> None:
        self._random, self._large, self._netloc, self._sessions = random.Random(seed), large, netloc, sessions

    def requests(self, many: int) -> Iterator[bytes]:
        kinds: list[Callable[[], bytes]] = [
            *(functools.partial(self._legacy, *each) for each in self._legacy_kinds()),
            *(functools.partial(self._modern, *each) for each in self._modern_kinds()),
            *(functools.partial(self._ping, each) for each in self._header_kinds()),
            *(self._initialize, self._notification, self._batch, self._handle, self._stream, self._delete),
        ]
        for _ in range(many):
            yield self._random.choice(kinds)()

    def text(self, most: int = 2_000_000) -> str:
        chance = self._random
        if chance.random() < self._large:
            return (chance.choice(string.ascii_letters) * chance.randrange(16_384, 2_000_000))[:most]
        size = min(16_384, int(chance.lognormvariate(3.5, 1.8)) + 1)
        text = f"{chance.getrandbits(64):x}"[: max(1, size)] + chance.choice(string.ascii_letters) * max(0, size - 16)
        return text[:most]

    def label(self) -> str:
        """What may stand in a header."""
        return self.text(20_000)

    # -- kinds: a method and what makes the params, or the headers

    def _legacy_kinds(self) -> list[tuple[str, Callable[[], Any]]]:
        def memo() -> dict[str, str]:
            return {"uri": f"memo://{self._random.randrange(40)}/" + self.text(4_000)}

        return [
            ("tools/call", lambda: {"name": self.text(), "arguments": {"x": self.text()}}),
            ("tools/call", lambda: {"name": self.text(), "arguments": {"x": self.text()}}),
            ("tools/call", lambda: {"name": "count", "_meta": {"progressToken": self.text()}}),
            ("resources/read", lambda: {"uri": "file:///" + self.text()}),
            ("prompts/get", lambda: {"name": self.text()}),
            ("tools/list", lambda: {"cursor": self.text()}),
            ("logging/setLevel", lambda: {"level": self.text()}),
            ("completion/complete", lambda: {"ref": {"type": "ref/prompt", "name": self.text()}, "argument": {}}),
            ("resources/subscribe", memo),
            ("resources/unsubscribe", memo),
            ("ID", dict),
            ("METHOD", dict),
        ]

    def _modern_kinds(self) -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
        who = "io.modelcontextprotocol/"
        return [
            ("tools/call", lambda: {"name": self.label(), "arguments": {}}, dict),
            ("tools/call", lambda: {"name": self.label(), "arguments": {}}, dict),
            (
                "tools/call",
                lambda: {"name": "demo__" + self.text(300), "arguments": {}},
                lambda: {"orbit.workspace": self.text(), "traceparent": self.text()},
            ),
            (
                "tools/list",
                dict,
                lambda: {
                    f"{who}clientInfo": {"name": self.text(), "version": self.text()},
                    f"{who}logLevel": self.text(),
                },
            ),
            (
                "subscriptions/listen",
                lambda: {"notifications": {"resourceSubscriptions": [*(self.text() for _ in "123"), "x" * 70_000]}},
                dict,
            ),
        ]

    def _header_kinds(self) -> list[Callable[[], dict[str, str]]]:
        return [
            lambda: {"Mcp-Session-Id": self.label()},
            lambda: {"MCP-Gateway-Session": "f" * 24 + "." + f"{self._random.getrandbits(252):063x}"[:43]},
            lambda: {"Cookie": f"mcp_session_id={self.label()}"},
            lambda: {"Authorization": "Bearer " + self.label()},
            lambda: {"Host": self.label()},
            lambda: {"Origin": "http://" + self.label()},
            lambda: {"Accept": f"{ACCEPT['Accept']}, x/{self.label()}"},
        ]

    # -- requests

    def _post(self, body: Any, headers: Mapping[str, str], *paths: str) -> bytes:
        known = {"Host": self._netloc, "Content-Type": "application/json", **ACCEPT, **self._who(), **headers}
        return request("POST", self._random.choice(paths or PATHS), known, json.dumps(body).encode())

    def _who(self) -> dict[str, str]:
        return bearer(self._random.choice(list(KEYS.values())))

    def _session(self) -> dict[str, str]:
        return {"Mcp-Session-Id": self._random.choice(self._sessions)[1]}

    def _legacy(self, method: str, params: Callable[[], Any]) -> bytes:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params()}
        if method == "ID":
            body |= {"id": self.text(), "method": "ping"}
        elif method == "METHOD":
            body["method"] = self.text()
        name, session = self._random.choice(self._sessions)
        return self._post(body, {"Mcp-Session-Id": session, **bearer(KEYS[name])}, "/servers/demo/mcp")

    def _modern(self, method: str, params: Callable[[], Any], meta: Callable[[], Any]) -> bytes:
        body = modern_body(method, params(), meta=meta())
        named = {"Mcp-Name": body["params"]["name"]} if "name" in body["params"] else {}
        return self._post(body, {"MCP-Protocol-Version": VERSION, "Mcp-Method": method, **named}, *PATHS[:2])

    def _ping(self, headers: Callable[[], dict[str, str]]) -> bytes:
        return self._post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers())

    def _initialize(self) -> bytes:
        info = {"name": self.text(), "version": self.text()}
        capabilities = {"experimental": {self.text(): self.text()}}
        params = {"protocolVersion": self.text(20), "capabilities": capabilities, "clientInfo": info}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        return self._post(body, {}, "/servers/demo/mcp")

    def _notification(self) -> bytes:
        body = {"jsonrpc": "2.0", "method": "notifications/" + self.text(), "params": {"reason": self.text()}}
        return self._post(body, self._session())

    def _batch(self) -> bytes:
        batch = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": self.text()}} for n in range(4)]
        return self._post(batch, {**self._session(), "MCP-Protocol-Version": "2025-03-26"})

    def _handle(self) -> bytes:
        body = modern_body("tools/call", {"name": "count", "arguments": {"session": "hs-" + self.text()}})
        named = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": "count"}
        return self._post(body, named, "/servers/desk/mcp")

    def _stream(self) -> bytes:
        known = {"Host": self._netloc, "Accept": "text/event-stream", **self._who(), **self._session()}
        return request("GET", "/mcp", {**known, "Last-Event-ID": self.label()})

    def _delete(self) -> bytes:
        return request("DELETE", "/mcp", {"Host": self._netloc, **self._who(), "Mcp-Session-Id": self.label()})


@dataclass
class Measured:
    """What was there before and after, by what it is."""

    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)

    def is_good(self) -> bool:
        grown = {name: self.after[name] / max(1, self.before[name]) for name in self.before}
        few_keys = grown.pop("redis keys", 0.0) <= GROWTH or self.after["redis keys"] <= FIXED_KEYS
        return all(each <= GROWTH for each in grown.values()) and few_keys


def measured(many: int, *, redis: RunningRedis | None = None, large: float = 0.002) -> Measured:
    """Warm a gateway up, measure it, send it `many` requests, and measure it again.

    An allocator that takes one more arena looks like growth, once; a leak grows in every round. So up to three are
    measured, each against the one before, until one of them is good.
    """
    found = Measured()
    store = {"store": "memory://" if redis is None else redis.url}
    if redis is not None:
        asyncio.run(fill_the_records(redis.url))
    given: Any = {"options": OPTIONS | store, "env": SIGNED, "constants": NO_LINES}
    with running_gateway(SERVERS, **given) as gateway, httpx.Client(timeout=60.0) as http:
        for seed in range(15, 19):
            found.before = found.after
            # Sessions that have ended meanwhile are opened anew: the traffic is of the same kind all along.
            hostile = Hostile(seed, urlsplit(gateway.url).netloc, sessions(gateway, http), large)
            found.statuses += flood(gateway.port, hostile.requests(many), connections=16)
            time.sleep(SETTLE_S)
            found.after = facts(gateway, redis)
            if found.before and found.is_good():
                break
    return found


async def fill_the_records(url: str) -> None:
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


def sessions(gateway: RunningGateway, http: httpx.Client) -> list[tuple[str, str]]:
    """A session of each client, which hostile requests come in as well."""
    opened = []
    for name, key in KEYS.items():
        client = Legacy(gateway.base + "/servers/demo/mcp", http, headers=bearer(key))
        # What the hostile requests have opened in its name may have used up its quota; it is idle, and ends in time.
        assert eventually(lambda client=client: client.initialize().status_code == 200)  # type: ignore[misc]  # bound in this round
        opened.append((name, client.session))
    return opened


def facts(gateway: RunningGateway, redis: RunningRedis | None) -> dict[str, int]:
    with open(f"/proc/{gateway.pid}/status", encoding="ascii") as file:
        rss = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))
    if redis is None:
        return {"RSS": rss}
    client: Any = redis.client()
    return {"RSS": rss, "redis used_memory": client.info("memory")["used_memory"], "redis keys": client.dbsize()}


@requirement("wall.memory")
@pytest.mark.timeout(180)
def test_hostile_requests_leave_memory_where_it_was() -> None:
    found = measured(1_500, large=0.02)
    assert found.is_good(), found
    assert {200, 400, 401, 403, 404, 421} <= found.statuses.keys(), found.statuses


@requirement("wall.memory")
@pytest.mark.timeout(180)
def test_hostile_requests_leave_nothing_in_redis() -> None:
    with running_redis() as redis:
        found = measured(1_000, redis=redis)
        client = redis.client()
        assert [key for key in client.scan_iter(count=1_000) if client.ttl(key) == -1] == [], "keys without a TTL"
    assert found.is_good(), found
