"""Heads that clients repeat on a connection: real clients have them, and nothing is remembered that has ended."""

import gc
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.calls.live_session import LiveSession
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, operators_of, server
from tests.support.http_bytes import Answer, listener_of, post
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, modern_body, modern_headers
from tests.support.waiting import eventually
from tests.support.wire import Wire
from tests.tools.obtain import node

pytestmark = requirement("hot.memory")
FETCH = Path(__file__).parents[1] / "clients/fetch_calls.mjs"
ON: dict[str, Any] = {"admin": {"listen": "127.0.0.1:0"}, "log_format": "json"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    with in_process_gateway({"p": server(PROBE)}, options=ON) as running:
        yield running


def became(gateway: InProcessGateway | RunningGateway) -> dict[str, int]:
    """What became of POSTs at the memories of their connections."""
    pattern = r'^mcp_gateway_connection_memory_total\{outcome="(\w+)"\} ([\d.]+)$'
    return {
        name: int(float(n))
        for name, n in re.findall(pattern, httpx.get(f"{operators_of(gateway)}/metrics").text, re.MULTILINE)
    }


class Counted:
    """What has become of POSTs since."""

    def __init__(self, gateway: InProcessGateway | RunningGateway) -> None:
        self._gateway = gateway
        self._before = became(gateway)

    def __call__(self, *outcomes: str) -> int:
        now = became(self._gateway)
        return sum(now[outcome] - self._before[outcome] for outcome in outcomes)


class Raw:
    """A client whose calls of tools are sent as bytes on one connection, by default in a legacy session of its own."""

    def __init__(
        self, gateway: InProcessGateway | RunningGateway, client: Legacy | None = None, *, modern: str = ""
    ) -> None:
        if client is None:
            with httpx.Client() as http:
                client = Legacy(gateway.url, http).open()
        self._names = {"Host": "127.0.0.1", "Content-Type": "application/json"}
        self._names |= {"MCP-Gateway-Session": modern} if modern else client.request_headers()
        self._is_modern = bool(modern)
        self._wire = Wire(int(listener_of(gateway.url)[1]))

    def request(self, tool: str, arguments: Any = None) -> bytes:
        body = modern_body("tools/call", {"name": tool, "arguments": arguments or {}})
        names = self._names | (modern_headers(body) if self._is_modern else {})
        if not self._is_modern:
            del body["params"]["_meta"]
        return post("/mcp", json.dumps(body).encode(), *(f"{name}: {value}" for name, value in names.items()))

    def send(self, data: bytes) -> None:
        assert self._wire.send(data)

    def answer(self) -> Answer:
        """The next response."""
        answer = self._wire.answer(10)
        assert answer is not None and answer.complete, "the connection has ended"
        return answer

    def call(self, tool: str, arguments: Any = None, *, cut: int = 0) -> Answer:
        """The answer to a call. `cut`: where it is sent in two segments; negative: from the end of the head."""
        data = self.request(tool, arguments)
        if cut:
            place = data.index(b"\r\n\r\n") + 4 + max(cut, 0)
            self.send(data[:place])
            time.sleep(0.02)
            data = data[place:]
        self.send(data)
        return self.answer()

    def warm(self, tool: str = "pid", arguments: Any = None) -> "Raw":
        """Calls after which the connection remembers the head, and what was decided on a call like the last."""
        for _ in range(4):
            assert self.call(tool, arguments).status == 200
        return self

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> "Raw":
        return self.warm()

    def __exit__(self, *_: object) -> None:
        self.close()


def test_calls_of_fetch_are_served_from_memory(gateway: InProcessGateway) -> None:
    counted = Counted(gateway)
    done = subprocess.run([str(node()), str(FETCH), gateway.url, "20"], capture_output=True, text=True, timeout=240)
    legacy, modern = map(json.loads, done.stdout.splitlines())
    assert "x" * 20 in legacy["result"]["content"][0]["text"] and "y" * 20 in modern["result"]["content"][0]["text"]
    assert counted("direct", "fast") >= 2 * (20 - 5), done.stderr


@requirement("wall.authority")
def test_the_connections_of_a_pool_share_what_they_remember_until_it_is_refused(gateway: InProcessGateway) -> None:
    with httpx.Client() as http:
        client = Legacy(gateway.url, http).open()
        with Raw(gateway, client):
            pool = [Raw(gateway, client) for _ in range(4)]
            counted = Counted(gateway)
            assert {raw.call("pid").status for raw in pool} == {200} and counted("fast") == 4, "each for the first time"
            for number, raw in enumerate(pool):
                raw.send(raw.request("echo", {"text": str(number)}))
            for number, raw in enumerate(pool):
                text = json.loads(raw.answer().body)["result"]["content"][0]["text"]
                assert str(number) in text, "each has the answer to its own call"
            assert client.delete().status_code == 200
            counted = Counted(gateway)
            assert {raw.call("pid").status for raw in pool} == {404} and counted("fast") == 0
            for raw in pool:
                raw.close()


def test_a_session_that_has_ended_is_not_kept_by_a_connection_that_remembers_it(gateway: InProcessGateway) -> None:
    def kept() -> bool:
        gc.collect()
        return any(type(each) is LiveSession and each.ended for each in gc.get_objects())

    with httpx.Client() as http:
        legacy, counted = Legacy(gateway.url, http).open(), Counted(gateway)
        with Raw(gateway, legacy) as raw:
            assert raw.call("pid").status == 200 and counted("fast")
            legacy.delete()
            assert eventually(lambda: not kept())
            assert raw.call("pid").status == 404
