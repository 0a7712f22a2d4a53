"""Resources of several servers behind one URL, by clients and servers of both eras."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages
from tests.support.table_server import table_server

pytestmark = requirement("ext.resource-owner")

SHELVES = {"old": "legacy", "new": "modern", "secret": "legacy"}
KEYS = {"ann": "a key of ann, for tests", "bob": "a key of bob, for tests"}
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
        headers = {"Authorization": f"Bearer {KEYS[who]}"}
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
    keys = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    options = {"api_keys": keys, "policy": POLICY}
    with in_process_gateway(servers, options=options) as gateway, httpx.Client(timeout=30.0) as http:
        yield Shelves(gateway, folder, http)


def text(answer: Any) -> str:
    return str(answer["result"]["contents"][0]["text"])


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


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_what_policy_hides_is_unknown_and_its_server_is_not_asked(shelves: Shelves, era: str) -> None:
    ask = shelves.client(era, "ann")
    before = shelves.asked("secret")
    hidden, unknown = (ask("resources/read", uri=uri)["error"] for uri in ("secret-hidden://x", "nobody-hidden://x"))
    assert hidden["message"].replace("secret", "nobody") == unknown["message"] and hidden["code"] == unknown["code"]
    assert shelves.asked("secret") == before


def test_a_legacy_client_subscribes_where_the_resource_is(shelves: Shelves) -> None:
    ask = shelves.client("legacy", "bob")
    for uri in ("old://9", "old-hidden://x"):
        assert ask("resources/subscribe", uri=uri)["result"] == {}
        assert ask("resources/unsubscribe", uri=uri)["result"] == {}
        for method in ("subscribe", "unsubscribe"):
            assert f"resources/{method} {uri}" in shelves.asked("old")
            assert f"resources/{method} {uri}" not in shelves.asked("new", "secret")
