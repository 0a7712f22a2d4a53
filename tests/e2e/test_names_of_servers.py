"""Names and resources of several servers behind one URL: known to those who see the servers, and to nobody else."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, messages, modern_body, modern_headers, tool_text
from tests.support.table_server import table_server

SERVERS: Final = {"seen-one": server(DEMO), "hidden": server(DEMO, direct_only=True)}
RULES: Final = [{"principals": ["api-key:bob"], "trust": "sandboxed"}]
_TELLING: Final = frozenset({"content-length", "date", "mcp-session-id", "mcp-gateway-session", "set-cookie"})
"""Headers that differ with each request. Of which there is one is compared."""
_RANDOM: Final = re.compile(r'"(correlation_id|io\\.github\\.mcp-session-gateway/[a-z]+)":"[^"]*"')


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    keys = {name: sha256(key) for name, key in KEYS.items()}
    options = {"api_keys": keys, "policy": {"rules": RULES}, "sse": True}
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
    yield "text", told(http.post(url, content=b"x", headers={"Content-Type": "text/plain", **headers}))
    yield (
        "broken",
        told(http.post(url, content=b"{", headers={**ACCEPT, "Content-Type": "application/json", **headers})),
    )
    yield "host", told(http.post(url, json={}, headers={**ACCEPT, "Host": "evil.example", **headers}))
    for path in ("sse", "sse/messages", "mcp/", "other"):
        yield path, told(http.post(f"{base}/servers/{name}/{path}", json={}, headers={**ACCEPT, **headers}))
    status, fields, page = told(http.get(url, headers={"Accept": "text/html", **headers}))
    yield "page", (status, fields, page.replace(name, "NAME"))  # it repeats its own address
    legacy = Legacy(url, http, headers=headers)
    yield "initialize", told(legacy.initialize())
    legacy.session = ""
    modern: list[tuple[str, Any]] = [
        ("server/discover", {}),
        ("tools/list", {}),
        ("prompts/list", {}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
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
    gateway: InProcessGateway, http: httpx.Client, who: str
) -> None:
    headers = {"nobody": {}, "a wrong key": {"Authorization": "Bearer wrong"}, "a guest": bearer(KEYS["bob"])}[who]
    hidden = dict(answers(gateway.base, "hidden", http, headers))
    absent = dict(answers(gateway.base, "absent", http, headers))
    different = {what for what in hidden if hidden[what] != absent[what]}
    assert not different, {what: (hidden[what], absent[what]) for what in sorted(different)}
    if who != "a guest":
        seen = dict(answers(gateway.base, "seen-one", http, headers))
        assert seen == absent
        assert hidden["initialize"][0] == 401


@requirement("wall.order")
def test_who_sees_a_server_is_served_and_an_open_gateway_says_what_is_not_there(
    gateway: InProcessGateway, demo: RunningGateway, http: httpx.Client
) -> None:
    client = Modern(f"{gateway.base}/servers/hidden/mcp", http, headers=bearer(KEYS["alice"]))
    assert tool_text(client.tool("count")) == "1"
    assert http.post(demo.at("absent"), json={}, headers=ACCEPT).status_code == 404


@requirement("wall.order")
@pytest.mark.parametrize("name", ["$(id)", "-x", "a;b", "a b", "<b>"])
def test_a_page_for_people_repeats_no_name_that_no_server_can_have(
    gateway: InProcessGateway, http: httpx.Client, name: str
) -> None:
    answer = http.get(f"{gateway.base}/servers/{quote(name)}/mcp", headers={"Accept": "text/html"})
    assert answer.status_code == 404 and name not in answer.text


# -- resources of several servers behind one URL, by clients and servers of both eras


SHELVES = {"old": "legacy", "new": "modern", "secret": "legacy"}
OWN_KEYS = {"ann": "a key of ann, for tests", "bob": "a key of bob, for tests"}
POLICY = {
    "rules": [
        {"principals": ["api-key:bob"], "workspace": "all"},
        {"principals": ["api-key:ann"], "workspace": "some"},
    ],
    "workspaces": {"all": {"servers": ["*"]}, "some": {"servers": ["old", "new"]}},
}


def shelf(name: str, era: str, log: Path) -> Any:
    """A server that lists nine resources, two on each page, and a template, and can be read at these, at what the
    template matches, and at `NAME-hidden://…`, which nothing lists."""
    pages = {}
    for first in (9, 7, 5, 3, 1):
        listed = [{"uri": f"{name}://{n}", "name": str(n)} for n in range(first, min(first + 2, 10))]
        more = {"nextCursor": str(first + 2)} if first < 9 else {}
        pages[f"resources/list {first}" if first > 1 else "resources/list"] = {"resources": listed} | more
    content = {"contents": [{"uri": "@URI", "text": f"of {name}"}]}
    answers = {
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": f"{name}-row://{{id}}", "name": "row"}]},
        "resources/*subscribe": {},
        **{f"resources/read {name}{kind}://*": content for kind in ("", "-row", "-hidden")},
        "resources/read": [["error", -32602 if era == "modern" else -32002, "not found"]],
    }
    can = {"resources": {"subscribe": True}}
    table = {"era": era, "capabilities": can, "answers": pages | answers, "scope": "private"}
    return table_server(table, log=log)


Ask = Callable[..., Any]


class Shelves:
    def __init__(self, gateway: InProcessGateway, folder: Path, http: httpx.Client) -> None:
        self.gateway = gateway
        self.folder = folder
        self.http = http

    def client(self, era: str, who: str) -> Ask:
        """A function that sends a request in a session of its own, and returns the answer."""
        headers = bearer(OWN_KEYS[who])
        if era == "legacy":
            legacy = Legacy(self.gateway.url, self.http, headers=headers).open()
            return lambda method, **params: messages(legacy.call(method, params))[-1]
        modern = Modern(self.gateway.url, self.http, headers={**headers, "MCP-Gateway-Session-Key": "mine"})
        return lambda method, **params: messages(modern.send(method, params))[-1]

    def asked(self, *names: str) -> list[str]:
        lines = [line for name in names or SHELVES for line in (self.folder / name).read_text().splitlines()]
        return [line.partition(" ")[2] for line in lines]


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelves]:
    folder = tmp_path_factory.mktemp("asked")
    for name in SHELVES:
        (folder / name).touch()
    servers = {name: shelf(name, era, folder / name) for name, era in SHELVES.items()}
    keys = {name: sha256(key) for name, key in OWN_KEYS.items()}
    options = {"api_keys": keys, "policy": POLICY}
    with in_process_gateway(servers, options=options) as gateway, httpx.Client(timeout=30.0) as http:
        yield Shelves(gateway, folder, http)


def text(answer: Any) -> str:
    return str(answer["result"]["contents"][0]["text"])


@requirement("ext.resource-owner")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_every_resource_is_read_at_its_server_and_known_ones_without_a_list(shelves: Shelves, era: str) -> None:
    ask = shelves.client(era, "bob")
    for name in SHELVES:
        for uri in (f"{name}://9", f"{name}://1", f"{name}-row://7", f"{name}-hidden://x"):
            assert text(ask("resources/read", uri=uri)) == f"of {name}", uri
    before = shelves.asked()
    for name in SHELVES:
        assert text(ask("resources/read", uri=f"{name}://9")) == f"of {name}"
        assert text(ask("resources/read", uri=f"{name}-hidden://x")) == f"of {name}"
    more = shelves.asked()
    assert len(more) == len(before) + 2 * len(SHELVES), "one read for each, and nothing else"


@requirement("ext.resource-owner")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_what_policy_hides_is_unknown_and_its_server_is_not_asked(shelves: Shelves, era: str) -> None:
    ask = shelves.client(era, "ann")
    before = shelves.asked("secret")
    hidden, unknown = (ask("resources/read", uri=uri)["error"] for uri in ("secret-hidden://x", "nobody-hidden://x"))
    assert hidden["message"].replace("secret", "nobody") == unknown["message"] and hidden["code"] == unknown["code"]
    assert shelves.asked("secret") == before


@requirement("ext.resource-owner")
def test_a_legacy_client_subscribes_where_the_resource_is(shelves: Shelves) -> None:
    ask = shelves.client("legacy", "bob")
    for uri in ("old://9", "old-hidden://x"):
        assert ask("resources/subscribe", uri=uri)["result"] == {}
        assert ask("resources/unsubscribe", uri=uri)["result"] == {}
        for method in ("subscribe", "unsubscribe"):
            assert f"resources/{method} {uri}" in shelves.asked("old")
            assert f"resources/{method} {uri}" not in shelves.asked("new", "secret")
