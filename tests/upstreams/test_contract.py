"""Every kind of upstream keeps the one contract, one from outside the packages too."""

import os
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx
import pytest
from mcp.server.mcpserver import MCPServer

from session_store.redaction import output_scrubber
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, ROOT, running_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.scripted_http_server import running_http_probe
from tests.toys.echo_upstream import EchoUpstream
from transports.testing import ForgetfulUpstreamContract, UnreachableUpstreamContract, UpstreamContract
from transports.upstream.child_process import Command
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.in_process import InProcessUpstream
from transports.upstream.stdio import StdioUpstream
from transports.upstream.streamable_http import HttpUpstream
from transports.upstream_port import Upstream


def child(fork_server: ForkServer, *argv: str) -> StdioUpstream:
    return StdioUpstream(
        name="child",
        command=Command(argv=argv, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}, cwd=str(ROOT)),
        fork_server=fork_server,
        max_line_bytes=1 << 20,
        grace_s=5.0,
        scrubber=partial(output_scrubber, ()),
    )


class TestStdio(UpstreamContract, UnreachableUpstreamContract):
    @pytest.fixture
    async def upstream(self) -> AsyncIterator[Upstream]:
        async with ForkServer() as fork_server:
            yield child(fork_server, *DEMO)

    @pytest.fixture
    async def unreachable(self) -> AsyncIterator[Upstream]:
        async with ForkServer() as fork_server:
            yield child(fork_server, "/does/not/exist")


class TestStreamableHttp(UpstreamContract, UnreachableUpstreamContract, ForgetfulUpstreamContract):
    @pytest.fixture
    async def upstream(self) -> AsyncIterator[Upstream]:
        with running_http_probe() as probe:
            upstream = HttpUpstream(name="remote", url=probe.url, headers={}, max_event_bytes=1 << 20)
            yield upstream
            await upstream.close()

    @pytest.fixture
    async def unreachable(self) -> AsyncIterator[Upstream]:
        url = f"http://127.0.0.1:{free_port()}/mcp"
        upstream = HttpUpstream(name="remote", url=url, headers={}, max_event_bytes=1 << 20)
        yield upstream
        await upstream.close()

    @pytest.fixture
    async def forgetful(self) -> AsyncIterator[tuple[Upstream, Callable[[], object]]]:
        with running_http_probe() as probe:
            upstream = HttpUpstream(name="remote", url=probe.url, headers={}, max_event_bytes=1 << 20)
            yield upstream, probe.sessions.clear
            await upstream.close()


class TestInProcess(UpstreamContract):
    @pytest.fixture
    def upstream(self) -> Upstream:
        return InProcessUpstream("object", MCPServer("contract"))


class TestEcho(UpstreamContract):
    @pytest.fixture
    def upstream(self) -> Upstream:
        return EchoUpstream()


def test_a_tool_is_called_through_an_upstream_of_another_package(http: httpx.Client) -> None:
    servers = {"echo": {"in_process": "tests.toys.echo_upstream:upstream"}}
    with running_gateway(servers) as gateway:
        one, two = (Legacy(gateway.url, http).open() for _ in range(2))
        assert [tool_text(one.tool("echo", {"text": text})) for text in "ab"] == ["1: a", "2: b"]
        assert tool_text(two.tool("echo", {"text": "c"})) == "1: c", "each session has a link of its own"
