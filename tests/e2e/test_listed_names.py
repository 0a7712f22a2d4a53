"""Policy decides on what a server lists, and on methods that are known; the same for tools, prompts and resources."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from mcp.shared.inbound import NAME_BEARING_METHODS, encode_header_value

from tests.requirements import requirement
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, WORK, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import (
    ACCEPT,
    Legacy,
    Modern,
    error_of,
    messages,
    modern_body,
    modern_headers,
    streamed,
    tool_text,
    without_id,
)
from tests.support.table_server import listing, table_server

SCHEMA = {"type": "object"}
LISTS: dict[str, Any] = {
    "tools": [{"name": n, "inputSchema": SCHEMA} for n in ("read", "delete_all", "\uff45rase", "relist")],
    "prompts": [{"name": "greet"}, {"name": "secret_plan"}],
    "resources": [{"uri": "note://open/a", "name": "a"}, {"uri": "note://secret/b", "name": "b"}],
    "resourceTemplates": [
        {"uriTemplate": "note://open/{id}", "name": "open"},
        {"uriTemplate": "note://secret/{id}", "name": "secret"},
        {"uriTemplate": "file:///pub/{+path}", "name": "files"},
    ],
}
BOSS = {"permissions": ["boss"]}
RULES: dict[str, Any] = {
    "tools": {"delete_*": BOSS, "erase": BOSS},
    "prompts": {"secret_*": BOSS},
    "resource_uris": {"note://secret/*": BOSS, "file:///etc*": BOSS, "file:///pub/private*": BOSS},
}
OPTIONS = {
    "api_keys": API_KEYS,
    "policy": {
        "rules": [{"principals": ["api-key:alice"], "permissions": ["boss"]}],
        "unmatched_patterns": "allow",  # some are for names that only an attacker uses
    },
}
Send = Callable[[str, dict[str, Any]], Any]


@pytest.fixture(scope="module", params=["legacy server", "modern server", "two servers"])
def gateway(request: pytest.FixtureRequest) -> Iterator[InProcessGateway]:
    era = "" if request.param == "modern server" else "legacy"
    servers = {"s": table_server(listing(era, **LISTS), **RULES)}
    if request.param == "two servers":
        servers["t"] = table_server(listing(), **RULES)
    with in_process_gateway(servers, options=OPTIONS) as running:
        running.prefix = "s__" if request.param == "two servers" else ""  # type: ignore[attr-defined]  # of this fixture
        yield running


@pytest.fixture(params=["legacy", "modern"])
def senders(request: pytest.FixtureRequest, gateway: InProcessGateway, http: httpx.Client) -> tuple[Send, Send, str]:
    """A client that may all, one that may not, and what stands before names."""

    def sender(who: str) -> Send:
        headers = bearer(KEYS[who])
        if request.param == "legacy":
            legacy = Legacy(gateway.url, http, headers=headers).open()
            return lambda method, params: messages(legacy.call(method, params))[-1]
        modern = Modern(gateway.url, http, headers=headers)

        def send(method: str, params: dict[str, Any]) -> Any:
            name = params.get("name", params.get("uri", ""))
            named = {"Mcp-Name": encode_header_value(name)} if method in NAME_BEARING_METHODS else {}
            return messages(modern.send(method, params, headers=named))[-1]

        return send

    return sender("alice"), sender("bob"), gateway.prefix  # type: ignore[attr-defined]  # of this fixture


@requirement("wall.decoded")
def test_only_what_is_listed_and_allowed_is_there(senders: tuple[Send, Send, str]) -> None:
    alice, bob, prefix = senders

    def call(send: Send, name: str) -> Any:
        return send("tools/call", {"name": prefix + name, "arguments": {}})

    assert "result" in call(alice, "read") and "result" in call(alice, "delete_all") and "result" in call(bob, "read")
    for name in ("delete_all", "Delete_All", "delete_all ", "de\uff4cete_all", "unlisted", "\uff45rase", "erase"):
        error = call(bob, name)["error"]
        unknown = {"code": -32602, "message": f"Unknown tool: {prefix}{name}", "data": {"reason": "unknown_tool"}}
        assert without_id(error) == unknown
    # What nobody has listed is not there for those who may all either.
    assert "Unknown tool" in call(alice, "Delete_All")["error"]["message"]
    for name in ("secret_plan", "unlisted", "SECRET_plan"):
        assert bob("prompts/get", {"name": prefix + name})["error"]["message"] == f"Unknown prompt: {name}"
    assert "result" in bob("prompts/get", {"name": prefix + "greet"})
    assert "result" in alice("prompts/get", {"name": prefix + "secret_plan"})


@requirement("wall.decoded")
def test_lists_have_what_may_be_asked_for(senders: tuple[Send, Send, str]) -> None:
    alice, bob, prefix = senders
    wanted = {
        "tools/list": ("tools", "name", {"read", "relist"}),
        "prompts/list": ("prompts", "name", {"greet"}),
        "resources/list": ("resources", "uri", {"note://open/a"}),
        "resources/templates/list": ("resourceTemplates", "uriTemplate", {"note://open/{id}", "file:///pub/{+path}"}),
    }
    for method, (key, name, seen) in wanted.items():
        told = {item[name].removeprefix(prefix) for item in bob(method, {})["result"][key]}
        assert told == seen, method
        assert len(alice(method, {})["result"][key]) == len(LISTS[key])


@requirement("wall.decoded")
def test_a_resource_is_what_its_uri_means(senders: tuple[Send, Send, str]) -> None:
    alice, bob, _ = senders
    for uri in ("note://open/a", "note://open/new", "file:///pub/a/b"):
        assert "result" in bob("resources/read", {"uri": uri}), uri
    hidden = [
        "note://secret/b",
        "note://secret/new",
        "NOTE://secret/b",
        "note://open/%2e%2e/x",
        "file:///pub/../etc/passwd",
        "file:///pub/%2e%2e/etc/passwd",
        "file:///pub/%252e%252e/etc/passwd",
        "file:///pub//private/x",
        "file:///pub/./private/x",
        "file:///pub/\uff50rivate/x",
        "file:///pub/%2525252525252e/x",
        "other://thing",
    ]
    for uri in hidden:
        error = bob("resources/read", {"uri": uri})["error"]
        assert error["code"] in (-32602, -32002) and error["message"] == f"Resource not found: {uri}", uri
    assert "result" in alice("resources/read", {"uri": "note://secret/new"})
    assert "result" in alice("resources/read", {"uri": "file:///pub/../etc/passwd"})


@requirement("wall.decoded")
def test_a_completion_follows_what_it_completes(senders: tuple[Send, Send, str]) -> None:
    alice, bob, prefix = senders
    argument = {"name": "id", "value": "x"}

    def complete(send: Send, ref: dict[str, str]) -> Any:
        return send("completion/complete", {"ref": ref, "argument": argument})

    secret = {"type": "ref/prompt", "name": prefix + "secret_plan"}
    template = {"type": "ref/resource", "uri": "note://secret/{id}"}
    assert complete(bob, secret)["error"]["message"] == "Unknown prompt: secret_plan"
    assert complete(bob, template)["error"]["message"] == "Resource not found: note://secret/{id}"
    for ref in (secret, template):
        assert "result" in complete(alice, ref)
    assert "result" in complete(bob, {"type": "ref/prompt", "name": prefix + "greet"})
    assert "result" in complete(bob, {"type": "ref/resource", "uri": "note://open/{id}"})
    assert "error" in complete(bob, {"type": "ref/other", "name": "x"})


@requirement("wall.decoded")
def test_methods_that_nobody_knows_do_not_pass(senders: tuple[Send, Send, str]) -> None:
    alice, bob, _ = senders
    for send in (alice, bob):
        for method in ("tools/run", "TOOLS/CALL", "resources/get", "x"):
            assert send(method, {"name": "delete_all", "uri": "note://secret/b"})["error"]["code"] == -32601, method


@requirement("wall.decoded")
def test_nobody_hears_of_resources_that_are_hidden(gateway: InProcessGateway, http: httpx.Client) -> None:
    bob = Legacy(gateway.url, http, headers=bearer(KEYS["bob"])).open()
    error = error_of(bob.call("resources/subscribe", {"uri": "note://secret/b"}))
    assert error["message"] == "Resource not found: note://secret/b"
    for method in ("resources/subscribe", "resources/unsubscribe"):
        assert "result" in messages(bob.call(method, {"uri": "note://open/a"}))[-1]
    wanted = {"notifications": {"resourceSubscriptions": ["note://open/a", "note://secret/b"]}}
    body = modern_body("subscriptions/listen", wanted)
    headers = {**modern_headers(body), **bearer(KEYS["bob"])}
    with http.stream("POST", gateway.url, json=body, headers=headers) as response:
        acknowledged = next(streamed(response))["params"]["notifications"]
    assert acknowledged["resourceSubscriptions"] == ["note://open/a"]


@pytest.fixture(scope="module")
def working(ledger: Path) -> Iterator[InProcessGateway]:
    """Two servers that execute requests without an id, as JSON-RPC permits. One tool of each is hidden."""
    env = {"LEDGER": str(ledger), "ANSWERS_NOTIFICATIONS": "1"}
    servers = {era: server((*WORK, era), env=env, hidden_tools=["work"]) for era in ("legacy", "modern")}
    with in_process_gateway(servers) as running:
        yield running


@requirement("pol.doors")
@pytest.mark.parametrize("path", ["/mcp", "/servers/legacy/mcp", "/servers/modern/mcp"])
def test_a_request_without_an_id_reaches_no_server(
    working: InProcessGateway, http: httpx.Client, ledger: Path, path: str
) -> None:
    for version in ("2025-11-25", "2025-03-26"):
        client = Legacy(f"{working.base}{path}", http, version=version).open()
        look = "legacy__look" if path == "/mcp" else "look"
        assert tool_text(client.tool(look, {"job": "before"})) == "done before"
        for name in ("work", "legacy__work"):
            params = {"name": name, "arguments": {"job": "hidden"}}
            assert client.notify("tools/call", params).status_code == 202
            if version == "2025-03-26":
                body = [{"jsonrpc": "2.0", "method": "tools/call", "params": params}]
                assert client.post(body).status_code == 202
        client.notify("tasks/cancel", {"taskId": "1"})
        assert tool_text(client.tool(look, {"job": "after"})) == "done after"
    assert "hidden" not in ledger.read_text(encoding="utf-8")


@requirement("pol.doors")
def test_requests_of_the_other_era_reach_no_server(working: InProcessGateway, http: httpx.Client) -> None:
    old, new = Legacy(working.url, http).open(), Modern(working.url, http)
    for method in ("subscriptions/listen", "server/discover", "tasks/update", "sampling/createMessage"):
        refused = old.call(method, {"notifications": {"taskIds": ["1"]}})
        assert error_of(refused)["code"] == -32601, refused.text
    for method in ("tasks/list", "tasks/result", "roots/list", "notifications/initialized"):
        answer = new.send(method)
        assert (answer.status_code, error_of(answer)["code"]) == (404, -32601), answer.text


# -- names and resources of several servers behind one URL: known to those who see the servers, and to nobody else


SERVERS: Final = {"seen-one": server(DEMO), "hidden": server(DEMO, direct_only=True)}
GUESTS: Final = [{"principals": ["api-key:bob"], "trust": "sandboxed"}]
_TELLING: Final = frozenset({"content-length", "date", "mcp-session-id", "mcp-gateway-session", "set-cookie"})
"""Headers that differ with each request. Of which there is one is compared."""
_RANDOM: Final = re.compile(r'"(correlation_id|io\\.github\\.mcp-session-gateway/[a-z]+)":"[^"]*"')


@pytest.fixture(scope="module")
def hiding() -> Iterator[InProcessGateway]:
    options = {"api_keys": API_KEYS, "policy": {"rules": GUESTS}, "sse": True}
    with in_process_gateway(SERVERS, options=options) as running:
        yield running


def told(answer: httpx.Response) -> Any:
    headers = {name: "" if name in _TELLING else value for name, value in answer.headers.items()}
    return answer.status_code, headers, _RANDOM.sub("", answer.text)


def answers(base: str, name: str, http: httpx.Client, headers: dict[str, str]) -> Iterator[Any]:
    """What is told to whoever sends these headers to the URL of that server."""
    url = f"{base}/servers/{name}/mcp"
    for method in ("GET", "DELETE", "OPTIONS", "PUT"):
        yield method, told(http.request(method, url, headers=headers))
    for kind in ("text/plain", "application/json"):
        yield kind, told(http.post(url, content=b"{", headers={**ACCEPT, "Content-Type": kind, **headers}))
    yield "host", told(http.post(url, json={}, headers={**ACCEPT, "Host": "evil.example", **headers}))
    for path in ("sse", "sse/messages", "mcp/", "other"):
        yield path, told(http.post(f"{base}/servers/{name}/{path}", json={}, headers={**ACCEPT, **headers}))
    status, fields, page = told(http.get(url, headers={"Accept": "text/html", **headers}))
    yield "page", (status, fields, page.replace(name, "NAME"))  # it repeats its own address
    legacy = Legacy(url, http, headers=headers)
    yield "initialize", told(legacy.initialize())
    legacy.session = ""
    modern: list[tuple[str, Any]] = [
        *((method, {}) for method in ("server/discover", "tools/list", "prompts/list", "resources/list")),
        ("tools/call", {"name": "count", "arguments": {}}),
        ("prompts/get", {"name": "introduce"}),
        ("resources/read", {"uri": "note://one"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a"}, "argument": {"name": "a", "value": ""}}),
        ("com.example/method", {}),
    ]
    for method, params in modern:
        body = modern_body(method, params)
        yield method, told(http.post(url, json=body, headers={**modern_headers(body), **headers}))


@requirement("wall.order", "pol.trust")
@pytest.mark.parametrize("who", ["nobody", "a wrong key", "a guest"])
def test_a_server_that_may_not_be_seen_and_one_that_is_not_there_answer_alike(
    hiding: InProcessGateway, http: httpx.Client, who: str
) -> None:
    headers = {"nobody": {}, "a wrong key": {"Authorization": "Bearer wrong"}, "a guest": bearer(KEYS["bob"])}[who]
    hidden = dict(answers(hiding.base, "hidden", http, headers))
    absent = dict(answers(hiding.base, "absent", http, headers))
    different = {what for what in hidden if hidden[what] != absent[what]}
    assert not different, {what: (hidden[what], absent[what]) for what in sorted(different)}
    if who != "a guest":
        seen = dict(answers(hiding.base, "seen-one", http, headers))
        assert seen == absent
        assert hidden["initialize"][0] == 401


@requirement("wall.order")
def test_who_sees_a_server_is_served_and_an_open_gateway_says_what_is_not_there(
    hiding: InProcessGateway, demo: RunningGateway, http: httpx.Client
) -> None:
    client = Modern(f"{hiding.base}/servers/hidden/mcp", http, headers=bearer(KEYS["alice"]))
    assert tool_text(client.tool("count")) == "1"
    assert http.post(demo.at("absent"), json={}, headers=ACCEPT).status_code == 404
