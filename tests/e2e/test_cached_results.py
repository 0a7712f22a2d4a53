"""Lists, handshakes and results that are known come from the gateway, for whom they are for, without a process."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, result_of, tool_text
from tests.support.scripted_http_server import Reply, Seen, discovered, running_scripted_server
from tests.support.scripted_http_server import result_of as answered
from tests.support.stdio_server import text, tools
from tests.support.table_server import CHANGED, table_server
from tests.support.waiting import eventually

WHO = ("ann", "bob")
SERVERS = {"public": ("public", False), "private": ("private", False), "common": ("private", True)}
CACHING = {
    "era": "modern",
    "ttl_ms": 60_000,
    "capabilities": {"tools": {"listChanged": True}, "resources": {}},
    "answers": {
        "tools/list": tools("change", description="list @COUNT"),
        "tools/call": [["announce"], text("@PID")],
        "resources/list": {"resources": [{"uri": "note://1", "name": "n"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": {"contents": [{"uri": "@URI", "text": "read @COUNT by @PID"}]},
    },
}
"""Each list and each resource has the number of its request in it."""


def headers_of(who: str, key: str) -> dict[str, str]:
    """The credential of a client, and the name of its session if it has one."""
    return bearer(who) | ({"MCP-Gateway-Session-Key": key} if key else {})


class Asked:
    """A gateway, and what the processes of its servers were asked."""

    def __init__(self, gateway: InProcessGateway, folder: Path, http: httpx.Client) -> None:
        self.gateway = gateway
        self.folder = folder
        self.http = http

    def url(self, name: str) -> str:
        return f"{self.gateway.base}/servers/{name}/mcp" if name else self.gateway.url

    def lines(self, name: str) -> list[list[str]]:
        """Process and method of each request."""
        file = self.folder / name
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def processes(self, name: str) -> set[str]:
        return {line[0] for line in self.lines(name)}


class Served(Asked):
    """With servers whose results say how long they are fresh."""

    def client(self, who: str, name: str, key: str = "") -> Modern:
        return Modern(self.url(name), self.http, headers=headers_of(who, key))

    def asked(self, name: str) -> Counter[str]:
        return Counter(line[1] for line in self.lines(name))

    def is_probed(self, name: str) -> bool:
        return self.asked(name)["tools/list"] == 1


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """New for each test: what one changes, none after it is given from memory."""
    servers = {
        name: table_server(CACHING | {"scope": scope}, log=tmp_path / name, shared=shared)
        for name, (scope, shared) in SERVERS.items()
    }
    keys = {name: sha256(name) for name in WHO}
    with in_process_gateway(servers, options={"api_keys": keys}) as gateway, httpx.Client(timeout=30.0) as http:
        served = Served(gateway, tmp_path, http)
        for name in SERVERS:  # until the probe is done
            assert eventually(partial(served.is_probed, name))
        yield served


def result(answer: httpx.Response) -> Any:
    return result_of(answer)


@requirement("cache.servers", "cache.hints")
def test_a_public_list_of_the_probe_is_for_all_and_starts_no_process(served: Served) -> None:
    for who in (*WHO, *WHO):
        for name in ("public", ""):
            listed = result(served.client(who, name).send("tools/list"))
            assert any(tool["name"].endswith("change") for tool in listed["tools"])
            assert 0 < listed["ttlMs"] <= 60_000
            assert listed["cacheScope"] == ("public" if name else "private"), "of several, the most private"
    assert served.asked("public")["tools/list"] == 1 and len(served.processes("public")) == 1


@requirement("cache.servers")
def test_a_resource_is_read_once_for_all_or_once_for_each(served: Served) -> None:
    def read(who: str, name: str, key: str) -> str:
        answer = result(served.client(who, name, key).send("resources/read", {"uri": "note://1"}))
        text: str = answer["contents"][0]["text"]
        return text

    readers = [("ann", "k1"), ("ann", "k1"), ("ann", "k2"), ("bob", "k1")]
    assert len({read(who, "public", key) for who, key in readers}) == 1
    assert served.asked("public")["resources/read"] == 1
    private = [read(who, "private", key) for who, key in readers]
    assert private[0] == private[1] and len(set(private)) == 3, "each session has its own"
    common = [read(who, "common", key) for who, key in readers]
    assert len(set(common[:3])) == 1 and common[3] != common[0], "each principal has its own"


@requirement("cache.servers", "wall.return")
def test_what_a_process_says_after_a_call_is_for_its_session_alone(served: Served) -> None:
    def read(client: Modern) -> str:
        text: str = result(client.send("resources/read", {"uri": "note://after"}))["contents"][0]["text"]
        return text

    caller = served.client("ann", "public", "caller")
    caller.tool("change")
    said = read(caller)
    assert read(caller) == said and read(served.client("bob", "public", "other")) != said


UI = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}


def _seen_from(seen: Seen) -> Reply:
    """Answer with what the server can tell callers apart by: a tenant in a header, and what the client declares."""
    if seen.body["method"] == "server/discover":
        return Reply(body=answered(seen, discovered(resources={})))
    declared = seen.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    about = f"{seen.headers.get('mcp-param-tenant', '')} {'extensions' in declared}"
    fresh = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
    if seen.body["method"] == "tools/list":
        return Reply(body=answered(seen, tools("find", description=about) | fresh))
    if seen.body["method"] == "resources/read":
        uri = seen.body["params"]["uri"]
        return Reply(body=answered(seen, {"contents": [{"uri": uri, "text": about}]} | fresh))
    return Reply(body=answered(seen, {"resources": [], "resourceTemplates": []} | fresh))


@requirement("cache.servers", "wall.return")
def test_no_caller_gets_what_a_server_said_to_the_headers_or_declarations_of_another() -> None:
    keys = {name: sha256(name) for name in WHO}

    def read(who: str, uri: str, capabilities: Any = None, **headers: str) -> str:
        client = Modern(gateway.url, http, headers=headers_of(who, who) | headers)
        meta = {"io.modelcontextprotocol/clientCapabilities": capabilities or {}}
        text: str = result(client.send("resources/read", {"uri": uri}, meta=meta))["contents"][0]["text"]
        return text

    with running_scripted_server(_seen_from) as server, httpx.Client(timeout=30.0) as http:
        options = {"api_keys": keys}
        with in_process_gateway({"one": {"url": server.url}}, options=options) as gateway:
            assert read("ann", "note://1", **{"Mcp-Param-Tenant": "ann"}) == "ann False"
            assert read("bob", "note://1") == " False" == read("ann", "note://1")
            assert read("ann", "note://2", {"experimental": UI}) == " False"
            assert read("bob", "note://2", {"extensions": UI}) == " True"
            assert len(server.posted("resources/read")) == 4, "what depends on neither is from the cache"


@requirement("cold.lists")
@pytest.mark.parametrize("name", ["public", ""])
def test_a_legacy_session_has_no_process_of_a_modern_server_before_its_first_call(served: Served, name: str) -> None:
    open_session = partial(Legacy, served.url(name), served.http, headers=bearer("ann"))
    methods = ("tools/list", "resources/list")
    first = open_session().open()  # which finds out that the server has no handshake
    assert all(result(first.call(method)) for method in methods)
    before = served.processes("public")
    client = open_session().open()
    assert all(result(client.call(method)) for method in methods)
    assert served.processes("public") == before
    client.tool("change" if name else "public__change")
    assert len(served.processes("public") - before) == 1
    (own,) = served.processes("public") - before
    asked = [line[1] for line in served.lines("public") if line[0] == own]
    assert asked == ["subscriptions/listen", "tools/call"]


LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


FILED = {
    "era": "legacy",
    "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
    "answers": {
        "tools/list": tools("add", "announce", description="@WHO"),
        "tools/call add": [["add", "tools/list", *tools("mine", description="@WHO")["tools"]], text("@PID")],
        "tools/call announce": [
            ["add", "tools/list", *tools("later", description="@WHO")["tools"]],
            ["send", CHANGED],
            text("@PID"),
        ],
        "prompts/list": {"prompts": [{"name": "greet", "description": "@WHO"}]},
        "resources/list": {"resources": [{"uri": "note://1", "name": "@WHO"}]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "@WHO"}]},
    },
}
"""The lists have the principal in them. A call of `add` or `announce` adds a tool."""


class Learnt(Asked):
    """With a server of the handshake era, whose lists the operator says to be fresh."""

    def open(self, who: str) -> Legacy:
        self.http.cookies.clear()
        return Legacy(self.gateway.url, self.http, headers=bearer(who)).open()

    def lists(self, client: Legacy) -> dict[str, Any]:
        return {key: result_of(client.call(method))[key] for method, key in LISTS.items()}

    def started(self) -> set[str]:
        return self.processes("one")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learnt]:
    folder = tmp_path_factory.mktemp("asked")
    servers = {"one": table_server(FILED, log=folder / "one", lists_fresh_s=600)}
    keys = {name: sha256(name) for name in ("ann", "cat", "dan", "eve")}
    with in_process_gateway(servers, options={"api_keys": keys}) as gateway, httpx.Client(timeout=30.0) as http:
        served = Learnt(gateway, folder, http)
        served.lists(served.open("dan"))  # the probe needs a process of its own
        yield served


@requirement("cold.lists")
def test_a_session_like_an_earlier_one_gets_its_handshake_and_its_lists_without_a_process(learnt: Learnt) -> None:
    learned = learnt.lists(learnt.open("ann"))
    before = learnt.started()
    again = [learnt.open("ann") for _ in range(3)]
    assert [learnt.lists(client) for client in again] == [learned] * 3
    assert learnt.started() == before, "no process was started"
    pids = {tool_text(client.tool("add")) for client in again}
    assert len(pids) == 3 and learnt.started() - before == pids, "each call has its session's own process"
    listed = [tool["name"] for tool in learnt.lists(again[0])["tools"]]
    assert listed == ["add", "announce", "mine"], "a session that has a process asks it"
    assert learnt.lists(learnt.open("ann")) == learned, "what a session does to its lists is not for others"
    before = learnt.started()
    assert learnt.lists(learnt.open("cat")) != learned and len(learnt.started() - before) == 1, "nor are hers"
