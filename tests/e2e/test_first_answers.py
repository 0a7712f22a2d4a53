"""Handshake and lists of a legacy server without a process, for sessions like an earlier one (`lists_fresh_s`)."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, messages, tool_text
from tests.support.waiting import eventually

KEYS = {who: f"a key of {who}, for tests" for who in ("ann", "bob", "cat", "dan", "eve")}
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
PROGRAM = str(Path(__file__).parents[1] / "support/filed_server.py")


class Served:
    """A gateway, and what the processes of its servers were asked."""

    def __init__(self, gateway: RunningGateway, folder: Path, http: httpx.Client) -> None:
        self.gateway = gateway
        self.folder = folder
        self.http = http

    def open(self, who: str, name: str = "one", client: str = "raw") -> Legacy:
        self.http.cookies.clear()
        url = f"{self.gateway.base}/servers/{name}/mcp" if name else self.gateway.url
        return Legacy(url, self.http, headers={"Authorization": f"Bearer {KEYS[who]}"}).open(name=client)

    def lists(self, client: Legacy) -> dict[str, Any]:
        return {key: messages(client.call(method))[-1]["result"][key] for method, key in LISTS.items()}

    def learn(self, who: str, name: str = "one") -> dict[str, Any]:
        """The lists that a process of the principal's first session sends."""
        return self.lists(self.open(who, name))

    def processes(self) -> dict[str, set[str]]:
        found = {}
        for name in ("one", "two", "other"):
            file = self.folder / name
            lines = file.read_text().splitlines() if file.exists() else []
            found[name] = {line.split()[0] for line in lines}
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("asked")
    servers = {
        name: server((sys.executable, PROGRAM, str(folder / name)), lists_fresh_s=seconds)
        for name, seconds in (("one", 600), ("two", 600), ("other", 0))
    }
    keys = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    with running_gateway(servers, options={"api_keys": keys}) as gateway, httpx.Client(timeout=30.0) as http:
        served = Served(gateway, folder, http)
        for name in ("one", "two", "other"):  # the probe needs a process of its own
            served.learn("dan", name)
        yield served


@requirement("cold.lists")
def test_a_session_like_an_earlier_one_gets_its_handshake_and_its_lists_without_a_process(served: Served) -> None:
    learned = served.learn("ann")
    before = served.processes()
    again = [served.open("ann") for _ in range(3)]
    assert [served.lists(client) for client in again] == [learned] * 3
    assert served.processes() == before, "no process was started"
    pids = {tool_text(client.tool("add", {"name": "mine"})) for client in again}
    assert len(pids) == 3 and served.processes()["one"] - before["one"] == pids, (
        "each call has its session's own process"
    )
    listed = [tool["name"] for tool in served.lists(again[0])["tools"]]
    assert listed == ["add", "announce", "mine"], "a session that has a process asks it"
    assert served.learn("ann") == learned, "what a session does to its lists is not for others"


@requirement("cold.lists")
def test_several_servers_behind_one_url_need_no_process_either(served: Served) -> None:
    for name in ("one", "two"):
        served.learn("bob", name)
    first = served.learn("bob", "")
    before = served.processes()
    client = served.open("bob", "")
    assert served.lists(client) == first
    after = served.processes()
    assert {name: after[name] - before[name] for name in ("one", "two")} == {"one": set(), "two": set()}
    assert len(after["other"] - before["other"]) == 1, "nobody has said that its lists are fresh"
    assert tool_text(client.tool("two__add")) in served.processes()["two"] - before["two"]
    assert served.processes()["one"] == before["one"], "only the server that was called has a process"


@requirement("cold.lists")
def test_lists_are_for_equal_sessions_only(served: Served) -> None:
    ann, before = served.learn("ann"), served.processes()["one"]
    for count, (who, client) in enumerate((("cat", "raw"), ("ann", "another client")), start=1):
        lists = served.lists(served.open(who, client=client))
        assert len(served.processes()["one"] - before) == count
        assert (lists == ann) is (who == "ann"), "the lists have the principal in them"


@requirement("cold.lists")
def test_a_change_that_a_server_announces_ends_what_is_known_of_its_lists(served: Served) -> None:
    served.learn("eve")
    changing, before = served.open("eve"), served.processes()["one"]
    assert served.lists(changing) and served.processes()["one"] == before
    tool_text(changing.tool("announce", {"name": "later"}))
    assert eventually(lambda: "later" in [tool["name"] for tool in served.lists(changing)["tools"]])
    before = served.processes()["one"]
    fresh = served.lists(served.open("eve"))
    assert [tool["name"] for tool in fresh["tools"]] == ["add", "announce"]
    assert len(served.processes()["one"] - before) == 1, "it had to be asked"
