"""Fresh results come from the gateway, for those whom they are for, and start no process."""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, messages, modern_body, modern_headers
from tests.support.waiting import eventually

KEYS = {"ann": "a key of ann, for tests", "bob": "a key of bob, for tests"}
SERVERS = {"public": ("public", False), "private": ("private", False), "common": ("private", True)}
PROGRAM = str(Path(__file__).parents[1] / "support/caching_server.py")


def headers_of(who: str, key: str) -> dict[str, str]:
    """The credential of a client, and the name of its session if it has one."""
    return {"Authorization": f"Bearer {KEYS[who]}"} | ({"MCP-Gateway-Session-Key": key} if key else {})


class Served:
    """A gateway, and what its servers were asked."""

    def __init__(self, gateway: RunningGateway, folder: Path, http: httpx.Client) -> None:
        self.gateway = gateway
        self.folder = folder
        self.http = http

    def client(self, who: str, name: str, key: str = "") -> Modern:
        url = f"{self.gateway.base}/servers/{name}/mcp" if name else self.gateway.url
        return Modern(url, self.http, headers=headers_of(who, key))

    def asked(self, name: str) -> Counter[str]:
        return Counter(line.split()[1] for line in (self.folder / name).read_text().splitlines())

    def is_probed(self, name: str) -> bool:
        return (self.folder / name).exists() and self.asked(name)["tools/list"] == 1

    def processes(self, name: str) -> set[str]:
        return {line.split()[0] for line in (self.folder / name).read_text().splitlines()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("asked")
    servers = {
        name: server((sys.executable, PROGRAM, str(folder / name), scope, "60000"), shared=shared)
        for name, (scope, shared) in SERVERS.items()
    }
    keys = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    with running_gateway(servers, options={"api_keys": keys}) as gateway, httpx.Client(timeout=30.0) as http:
        served = Served(gateway, folder, http)
        for name in SERVERS:  # until the probe is done
            assert eventually(partial(served.is_probed, name))
        yield served


def result(answer: httpx.Response) -> Any:
    return messages(answer)[-1]["result"]


@requirement("cache.servers", "cache.hints")
def test_a_public_list_of_the_probe_is_for_all_and_starts_no_process(served: Served) -> None:
    for who in (*KEYS, *KEYS):
        for name in ("public", ""):
            listed = result(served.client(who, name).send("tools/list"))
            assert any(tool["name"].endswith("change") for tool in listed["tools"])
            assert 0 < listed["ttlMs"] <= 60_000
            assert listed["cacheScope"] == ("public" if name else "private"), "of several, the most private"
    assert served.asked("public")["tools/list"] == 1 and len(served.processes("public")) == 1


@requirement("cache.servers")
def test_a_private_list_is_for_one_principal(served: Served) -> None:
    before = served.asked("private")["tools/list"]
    found = {who: [result(served.client(who, "private").send("tools/list")) for _ in range(3)] for who in KEYS}
    assert served.asked("private")["tools/list"] - before <= 2, "at most one for each: earlier tests may have asked"
    texts = {who: {each["tools"][0]["description"] for each in lists} for who, lists in found.items()}
    assert all(len(each) == 1 for each in texts.values()) and texts["ann"] != texts["bob"]
    assert all(each["cacheScope"] == "private" for lists in found.values() for each in lists)


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


@requirement("cache.servers")
def test_a_legacy_client_gets_it_in_the_form_of_its_era(served: Served) -> None:
    before = served.asked("public")["tools/list"]
    url = f"{served.gateway.base}/servers/public/mcp"
    client = Legacy(url, served.http, headers={"Authorization": f"Bearer {KEYS['ann']}"}).open()
    answer = result(client.call("tools/list"))
    assert answer["tools"] and not answer.keys() & {"ttlMs", "cacheScope", "resultType"}
    assert served.asked("public")["tools/list"] == before


@requirement("cache.servers")
def test_a_change_that_the_server_announces_ends_it(served: Served) -> None:
    client = served.client("ann", "public", "changing")
    first = result(client.send("tools/list"))["tools"][0]["description"]
    before = served.asked("public")
    body = modern_body("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    headers = {**modern_headers(body), **headers_of("ann", "changing")}
    with served.http.stream("POST", f"{served.gateway.base}/servers/public/mcp", json=body, headers=headers) as stream:
        lines = (line for line in stream.iter_lines() if "data:" in line)
        assert "acknowledged" in next(lines)
        client.tool("change")
        assert "list_changed" in next(lines)
        assert result(client.send("tools/list"))["tools"][0]["description"] != first
    result(served.client("bob", "public").send("tools/list"))
    assert served.asked("public")["tools/list"] - before["tools/list"] == 2, "the session's own, and one for the others"


@requirement("cache.servers")
def test_a_request_with_facts_that_only_the_server_knows_is_never_answered_from_what_is_kept(served: Served) -> None:
    client, before = served.client("ann", "public"), served.asked("public")["tools/list"]
    for _ in range(2):
        result(client.send("tools/list", meta={"acme/tenant": "x"}))
    assert served.asked("public")["tools/list"] == before + 2


@requirement("cold.lists")
@pytest.mark.parametrize("name", ["public", ""])
def test_a_legacy_session_has_no_process_of_a_modern_server_before_its_first_call(served: Served, name: str) -> None:
    url = f"{served.gateway.base}/servers/{name}/mcp" if name else served.gateway.url
    open_session = partial(Legacy, url, served.http, headers={"Authorization": f"Bearer {KEYS['ann']}"})
    methods = ("tools/list", "resources/list")
    first = open_session().open()  # which finds out that the server has no handshake
    assert all(result(first.call(method)) for method in methods)
    before = served.processes("public")
    client = open_session().open()
    assert all(result(client.call(method)) for method in methods)
    assert served.processes("public") == before
    client.tool("change" if name else "public__change")
    assert len(served.processes("public") - before) == 1
    asked = (served.folder / "public").read_text().splitlines()
    (own,) = served.processes("public") - before
    assert [line.split()[1] for line in asked if line.startswith(own)] == ["subscriptions/listen", "tools/call"]
