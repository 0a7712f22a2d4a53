"""Streams of notifications: acknowledged before servers have started, and ended or begun again with them."""

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.listening import SUBSCRIPTION, listening
from tests.support.mcp_clients import Legacy, Modern, messages, streamed, tool_text
from tests.support.waiting import eventually

START_S = 2.0
CHANGED = "notifications/tools/list_changed"


class Cold:
    """A gateway whose servers run a line of shell before they start."""

    def __init__(self, gateway: InProcessGateway, line: Path) -> None:
        self._gateway = gateway
        self._line = line

    def url(self, path: str) -> str:
        return self._gateway.base + path

    def start_with(self, line: str) -> None:
        self._line.write_text(line, encoding="utf-8")


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cold]:
    line = tmp_path_factory.mktemp("cold") / "before"
    line.write_text("true")

    def slow(*flags: str) -> Any:
        return server(("/bin/sh", "-c", f". {shlex.quote(str(line))}; exec {shlex.join((*PROBE, *flags))}"))

    servers = {"new": slow("modern-only", "notifies", "listens-late"), "old": slow("legacy-only", "notifies")}
    # Longer than a start takes: what does not wait for one is told apart from what waits as long as it may.
    with in_process_gateway(servers, options={"limits": {"list_timeout_s": 20}}) as gateway:
        yield Cold(gateway, line)


@requirement("spec.cold-listen")
@pytest.mark.parametrize(
    ("path", "changes", "notified"),
    [
        ("/servers/new/mcp", ["announce"], 1),
        ("/servers/old/mcp", ["change"], 2),
        ("/mcp", ["new__announce", "old__change"], 3),
    ],
)
def test_no_change_is_missed_after_an_acknowledgement_that_servers_have_not_started_for(
    cold: Cold, http: httpx.Client, path: str, changes: list[str], notified: int
) -> None:
    """The new server makes its change before it has the subscription, and notifies nobody: the gateway does. The old
    server notifies by itself, and the gateway once it is up."""
    cold.start_with(f"sleep {START_S}")
    with listening(cold.url(path)) as stream:
        assert stream.first["params"]["notifications"] == {"toolsListChanged": True}
        assert stream.acknowledged_s < START_S
        client = Modern(cold.url(path), http, headers={"MCP-Gateway-Session": stream.session})
        for change in changes:
            assert "result" in messages(client.tool(change))[-1]
        seen = stream.until(1 + notified)
        assert {message["method"] for message in seen[1:]} == {CHANGED}
        assert {message["params"]["_meta"][SUBSCRIPTION] for message in seen} == {"mine"}


@requirement("spec.cold-listen")
@pytest.mark.parametrize(("name", "code"), [("new", -32014), ("old", -32013)])
def test_a_stream_ends_with_an_error_if_its_only_server_does_not_start(cold: Cold, name: str, code: int) -> None:
    """A modern server has no handshake, so that it has the subscription when it fails."""
    cold.start_with("sleep 0.5; exit 3")
    with listening(cold.url(f"/servers/{name}/mcp")) as stream:
        _, last = stream.rest()
    assert last["id"] == "mine" and last["error"]["code"] == code and name in last["error"]["message"]


NOTIFIES = (*PROBE, "notifies", "modern-only")


@pytest.mark.parametrize(
    ("servers", "wanted"),
    [
        ({"one": server(NOTIFIES)}, {}),
        ({"one": server(NOTIFIES)}, {"toolsListChanged": True}),
        ({"one": server(NOTIFIES), "two": server(NOTIFIES)}, {"toolsListChanged": True}),
        ({"old": server((*PROBE, "legacy-only"))}, {"toolsListChanged": True}),
    ],
    ids=["of nothing", "one", "several", "legacy"],
)
@requirement("spec.ended-listen")
def test_a_stream_whose_client_is_gone_ends_and_leaves_room_for_others(servers: Any, wanted: Any) -> None:
    with in_process_gateway(servers, options={"limits": {"exchanges": 2}}) as gateway:
        token: dict[str, str] = {}
        for number in range(1, 5):
            with listening(gateway.url, wanted={"notifications": wanted}, headers=token) as stream:
                token = {"MCP-Gateway-Session": stream.session}
            assert eventually(lambda number=number: gateway.stderr().count("=subscriptions/listen") == number)  # type: ignore[misc]  # bound in this round


@pytest.fixture(scope="module")
def notifying() -> Iterator[InProcessGateway]:
    """Two servers, each of one process for all."""
    with in_process_gateway({name: server(NOTIFIES, shared=True) for name in ("one", "two")}) as running:
        yield running


@requirement("spec.ended-listen")
def test_a_stream_that_the_only_server_ends_is_ended_gracefully(
    notifying: InProcessGateway, http: httpx.Client
) -> None:
    url = f"{notifying.base}/servers/one/mcp"
    with listening(url, "mine") as stream:
        assert Modern(url, http).tool("unlisten").status_code == 200
        last = stream.rest()[-1]
    assert last["id"] == "mine" and last["result"]["resultType"] == "complete"
    assert last["result"]["_meta"][SUBSCRIPTION] == "mine"


@requirement("spec.ended-listen")
def test_a_stream_of_several_servers_ends_with_the_last_of_them(
    notifying: InProcessGateway, http: httpx.Client
) -> None:
    client = Modern(notifying.url, http)
    with listening(notifying.url, 7) as stream:
        client.tool("one__unlisten")
        client.tool("one__announce")
        client.tool("two__announce")
        assert stream.until(2)[1]["method"] == "notifications/tools/list_changed", "the other server's"
        client.tool("two__unlisten")
        seen = stream.rest()
    assert len(seen) == 3 and seen[-1]["id"] == 7 and seen[-1]["result"]["_meta"][SUBSCRIPTION] == 7

    with listening(notifying.url, 8) as stream:
        client.tool("one__unlisten")
        client.tool("two__crash")
        last = stream.rest()[-1]
    assert last["id"] == 8 and last["error"]["code"] == -32013, "a server that is gone has ended nothing gracefully"


@requirement("spec.lost-listen")
def test_a_server_that_was_killed_has_its_part_of_a_stream_again_once_it_is_used() -> None:
    servers = {"one": server(NOTIFIES), "two": server(NOTIFIES)}
    with in_process_gateway(servers) as gateway, listening(gateway.url, 9) as stream, httpx.Client(timeout=20) as own:
        client = Modern(gateway.url, own, headers={"MCP-Gateway-Session": stream.session})
        for round_ in range(1, 3):
            os.kill(int(tool_text(client.tool("one__pid"))), signal.SIGKILL)
            assert eventually(lambda: "restarted" in client.tool("one__pid").text)
            seen = stream.until(2 * round_)
            assert seen[-1]["method"] == "notifications/tools/list_changed", "what it changed meanwhile may be missed"
            client.tool("one__announce")
            stream.until(2 * round_ + 1)
        client.tool("two__announce")
        seen = stream.until(6)
    assert {message["method"] for message in seen[1:]} == {"notifications/tools/list_changed"}
    assert {message["params"]["_meta"][SUBSCRIPTION] for message in seen} == {9}


@requirement("spec.relayed-changes")
def test_a_legacy_client_misses_no_change_from_its_first_call_on_and_after_a_server_was_killed(
    http: httpx.Client,
) -> None:
    """The server has the subscription 0.4 s after it was asked for it, and calls overtake that."""
    late = server((*NOTIFIES, "listens-late"))
    with in_process_gateway({"one": late, "two": late}) as gateway, httpx.Client(timeout=20) as own:
        client, listener = Legacy(gateway.url, http).open(), Legacy(gateway.url, own)
        listener.session = client.session
        with listener.get() as response:
            told = streamed(response)
            client.tool("one__announce")
            assert next(told)["method"] == CHANGED
            os.kill(int(tool_text(client.tool("one__pid"))), signal.SIGKILL)
            assert eventually(lambda: "restarted" in client.tool("one__pid").text)
            assert next(told)["method"] == CHANGED, "what it has changed meanwhile may be missed"
            client.tool("one__announce")
            assert next(told)["method"] == CHANGED
