"""Resources of several servers behind one URL, by clients and servers of both eras."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages

pytestmark = requirement("ext.resource-owner")

PROGRAM = str(Path(__file__).parents[1] / "support/noteshelf_server.py")
SHELVES = {"old": [], "new": ["modern"], "secret": []}
KEYS = {"ann": "a key of ann, for tests", "bob": "a key of bob, for tests"}
POLICY = {
    "rules": [
        {"principals": ["api-key:bob"], "workspace": "all"},
        {"principals": ["api-key:ann"], "workspace": "some"},
    ],
    "workspaces": {"all": {"servers": ["*"]}, "some": {"servers": ["old", "new"]}},
}

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
        return [line for name in names or SHELVES for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelves]:
    folder = tmp_path_factory.mktemp("asked")
    for name in SHELVES:
        (folder / name).touch()
    servers = {
        name: server((sys.executable, PROGRAM, str(folder / name), name, "9", *more)) for name, more in SHELVES.items()
    }
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
