"""A `subscriptions/listen` at servers whose processes have to start: it is acknowledged before they have started."""

import contextlib
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Modern, events, messages, modern_body, modern_headers
from tests.support.waiting import eventually

START_S = 2.0
CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Cold:
    """A gateway whose servers run a line of shell before they start."""

    def __init__(self, gateway: RunningGateway, line: Path) -> None:
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
    with running_gateway(servers, options={"limits": {"list_timeout_s": 20}}) as gateway:
        yield Cold(gateway, line)


class Stream:
    """The messages of a stream, and when its first one came. `session` is the token of its session."""

    def __init__(self, response: httpx.Response, began: float) -> None:
        self.session = response.headers["mcp-gateway-session"]
        self._chunks = response.iter_text()
        self._text = ""
        self.first = self.until(1)[0]
        self.acknowledged_s = time.monotonic() - began

    @property
    def seen(self) -> list[Any]:
        return [json.loads(data) for _, data in events(self._text[: self._text.rfind("\n\n") + 2]) if data]

    def until(self, count: int) -> list[Any]:
        while len(self.seen) < count:
            self._text += next(self._chunks)
        return self.seen

    def rest(self) -> list[Any]:
        self._text += "".join(self._chunks)
        return self.seen


@contextlib.contextmanager
def listening(url: str) -> Iterator[Stream]:
    body = modern_body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id="mine")
    began = time.monotonic()
    with (
        httpx.Client(timeout=20) as own,
        own.stream("POST", url, json=body, headers=modern_headers(body)) as response,
    ):
        yield Stream(response, began)


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
        assert stream.first["method"] == ACKNOWLEDGED
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
        assert stream.first["method"] == ACKNOWLEDGED
        _, last = stream.rest()
    assert last["id"] == "mine" and last["error"]["code"] == code and name in last["error"]["message"]


@requirement("spec.cold-listen")
def test_a_stream_of_several_servers_waits_for_those_that_do_not_start(cold: Cold, http: httpx.Client) -> None:
    cold.start_with("exit 3")
    with listening(cold.url("/mcp")) as stream:
        assert stream.first["method"] == ACKNOWLEDGED
        cold.start_with("true")
        client = Modern(cold.url("/mcp"), http, headers={"MCP-Gateway-Session": stream.session})
        assert eventually(lambda: "result" in messages(client.tool("old__change"))[-1])
        assert stream.until(2)[1]["method"] == CHANGED


@requirement("spec.cold-listen", "proc.late")
def test_lists_of_a_session_that_listens_wait_for_its_servers(cold: Cold, http: httpx.Client) -> None:
    cold.start_with("sleep 0.8")
    with listening(cold.url("/mcp")) as stream:
        client = Modern(cold.url("/mcp"), http, headers={"MCP-Gateway-Session": stream.session})
        listed = client.send("tools/list").json()["result"]
    assert "io.github.mcp-session-gateway/missing" not in listed.get("_meta", {})
    assert {tool["name"].split("__")[0] for tool in listed["tools"]} == {"new", "old"}
