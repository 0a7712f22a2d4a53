"""Changes at 2026-07-28 servers that clients with a handshake are notified of without asking."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually

CHANGED = "notifications/tools/list_changed"


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    late = server((*PROBE, "modern-only", "notifies", "listens-late"))
    with in_process_gateway({"one": late, "two": late}) as running:
        yield running


class Stream:
    """The client's own stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_text()
        self._text = ""

    def until(self, count: int) -> None:
        """Read until so many changes have come."""
        while self._text.count(CHANGED) < count:
            self._text += next(self._chunks)
        assert self._text.count(CHANGED) == count


@contextmanager
def listening(client: Legacy) -> Iterator[Stream]:
    with client.get() as response:
        yield Stream(response)


@requirement("spec.relayed-changes")
@pytest.mark.parametrize(("path", "prefix"), [("/mcp", "one__"), ("/servers/one/mcp", "")])
def test_no_change_is_missed_from_the_first_call_on_and_after_a_server_was_killed(
    gateway: InProcessGateway, path: str, prefix: str
) -> None:
    """The server has the subscription 0.4 s after it was asked for it, and calls overtake that."""
    with httpx.Client(timeout=20) as own, httpx.Client(timeout=20) as other:
        client = Legacy(gateway.base + path, own).open()
        calling = Legacy(gateway.base + path, other)
        calling.session = client.session
        with listening(client) as stream:
            calling.tool(f"{prefix}announce")
            stream.until(1)
            os.kill(int(tool_text(calling.tool(f"{prefix}pid"))), signal.SIGKILL)
            assert eventually(lambda: "restarted" in calling.tool(f"{prefix}pid").text)
            stream.until(2)  # what it has changed meanwhile may be missed
            calling.tool(f"{prefix}announce")
            stream.until(3)
