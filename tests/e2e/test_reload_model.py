"""Random reloads against a model: each call is decided by the configuration in effect, and by none before it."""

import random
from typing import Any, Final

import httpx
import pytest

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.upstreams import former_servers
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, UNLIMITED, server, with_patience
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, restarted, tool_text

KEYS: Final = ("one", "two", "three")
SERVERS: Final = ("a", "b")
TOOLS: Final = ("pid", "env")
ERAS: Final = ("legacy", "modern")


class Model:
    """What a configuration says: the keys of the one principal, the servers, and their tools."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.keys = list(KEYS)
        self.servers = dict.fromkeys(SERVERS, 0)
        self.tools = {f"{name}__{tool}" for name in SERVERS for tool in TOOLS}
        self.losing: set[tuple[str, str]] = set()
        """Sessions whose server was removed since their process was last another: they lose it once, soon after. A
        server that is back before that still answers with it."""

    def settings(self, **more: Any) -> Settings:
        policy = {**UNLIMITED, "unmatched_patterns": "allow"}
        options = {
            "port": 0,
            "api_keys": {"ann": [sha256(key) for key in self.keys]},
            "policy": {**policy, "workspaces": {"*": {"tools": sorted(self.tools)}}},
        }
        entries = {name: server(PROBE, env={"VERSION": str(version)}) for name, version in self.servers.items()}
        given = with_patience(options)
        return Settings.model_validate({"mcpServers": entries, "gateway": given | more})

    def change(self) -> None:
        """Change one thing."""
        kind = self._chance.choices(("tools", "keys", "servers", "entry"), (10, 8, 1, 1))[0]
        name = self._chance.choice(SERVERS)
        if kind == "tools":
            self.tools ^= {f"{name}__{self._chance.choice(TOOLS)}"}
        elif kind == "keys":
            self.keys = self._chance.sample(KEYS, self._chance.randint(1, len(KEYS)))
        elif kind == "servers" and name in self.servers:
            del self.servers[name]
            self.losing |= {(name, era) for era in ERAS}
        elif kind == "servers":
            self.servers[name] = 0
        elif name in self.servers:
            self.servers[name] += 1


class Calls:
    """Clients of both eras at each server, each with one connection, whose calls take the fast path."""

    def __init__(self, gateway: InProcessGateway, http: httpx.Client) -> None:
        self.clients: dict[tuple[str, str], Legacy | Modern] = {}
        self.pids: dict[tuple[str, str], str] = {}
        for name in SERVERS:
            url, headers = f"{gateway.base}/servers/{name}/mcp", bearer(KEYS[0])
            legacy = self.clients[name, "legacy"] = Legacy(url, http, headers=headers).open()
            first = Modern(url, http, headers=headers).tool("pid")
            token = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
            modern = self.clients[name, "modern"] = Modern(url, http, headers=headers | token)
            self.pids[name, "legacy"] = tool_text(legacy.tool("pid"))
            self.pids[name, "modern"] = tool_text(modern.tool("pid"))

    def check(self, model: Model, tool: str, key: str, *some: tuple[str, str]) -> None:
        """Call a tool with a key in some sessions, or in each, and compare the outcomes with the model."""
        for name, era in some or self.clients:
            client = self.clients[name, era]
            client.headers |= bearer(key)
            answer = client.tool(tool)
            where = (name, era, tool, key, answer.text)
            assert (answer.status_code == 401) is (key not in model.keys), where
            if key not in model.keys:
                continue
            may = name in model.servers and f"{name}__{tool}" in model.tools
            assert ("result" in messages(answer)[-1]) is may, where
            if may and tool == "pid":
                self._same_process(model, (name, era), answer)

    def _same_process(self, model: Model, which: tuple[str, str], answer: httpx.Response) -> None:
        """Only a server that was removed loses its process, and a session loses it once."""
        if (pid := tool_text(answer)) != self.pids[which]:
            assert which in model.losing, (which, pid, self.pids[which])
            model.losing.remove(which)
            self.pids[which] = pid
        else:
            assert restarted(answer) is None, which


def keep_former(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions keep their processes, however long the reloads take."""
    monkeypatch.setattr(former_servers, "KEPT_S", 3_600.0)
    monkeypatch.setattr(former_servers, "IDLE_S", 360.0)


def run(http: httpx.Client, steps: int, seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance)
    loaded = model.settings().model_dump(mode="json", exclude_unset=True)
    with in_process_gateway(loaded["mcpServers"], options=loaded["gateway"]) as gateway:
        calls = Calls(gateway, http)
        for _ in range(steps):
            tool, key, which = chance.choice(TOOLS), chance.choice(KEYS), chance.choice([*calls.clients])
            for _ in range(3):  # so that the call after the reload would be fast
                calls.check(model, tool, key, which)
            if chance.random() < 0.1:
                with pytest.raises(ConfigurationError):
                    gateway.reload(model.settings(api_keys={}))
            else:
                model.change()
                gateway.reload(model.settings())
            calls.check(model, tool, key, which)
            if chance.random() < 0.1:
                calls.check(model, tool, key)
        assert gateway.gateway.metrics.counters["connection_memory"]["fast"] > steps // 10


@requirement("live.reload")
def test_random_reloads(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_former(monkeypatch)
    run(http, 60, 1)


@pytest.mark.timeout(1_200)
@requirement("live.reload", "live.epoch")
def test_many_random_reloads(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_former(monkeypatch)
    run(http, 150, 2)
