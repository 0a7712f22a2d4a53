"""HTTP+SSE of 2024-11-05: the SDK's client for it, and messages that land on another replica than their stream."""

import warnings
from typing import Any

import anyio
import httpx
from mcp.client import Client
from mcp.client.sse import sse_client

from tests.matrix.run import Heard, text
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, replicas, running_gateway, server
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually


@requirement("spec.sse", "proc.gone")
async def test_the_sdks_client_uses_it() -> None:
    warnings.simplefilter("ignore")
    heard = Heard()
    callbacks: dict[str, Any] = {"elicitation_callback": heard.elicit}
    with running_gateway({"demo": server(DEMO)}, options={"sse": True}) as gateway, anyio.fail_after(30):
        before = len(descendants(gateway.pid))
        for n in range(2):
            async with Client(sse_client(f"{gateway.base}/sse"), mode="legacy", **callbacks) as client:
                assert [text(await client.call_tool("count", {})) for _ in range(3)] == ["1", "2", "3"], n
                assert text(await client.call_tool("ask", {})) == "Hello, Ada!"
                assert (await client.list_resources()).resources
        assert eventually(lambda: len(descendants(gateway.pid)) <= before), "each session ended with its stream"
        async with Client(sse_client(f"{gateway.base}/servers/demo/sse"), mode="legacy") as client:
            assert text(await client.call_tool("count", {})) == "1"


@requirement("spec.sse", "rep.any")
async def test_messages_find_their_stream_on_another_replica(redis_server: RunningRedis) -> None:
    with replicas(redis_server.url, {"demo": server(DEMO)}, sse=True) as (first, second), anyio.fail_after(30):
        async with httpx.AsyncClient(timeout=20) as http, http.stream("GET", f"{first.base}/sse") as stream:
            lines = stream.aiter_lines()

            async def data() -> str:
                while not (line := await anext(lines)).startswith("data: "):
                    pass
                return line.removeprefix("data: ")

            address = f"{second.base}{await data()}"
            info = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            for number, (method, params) in enumerate(
                [("initialize", info), ("tools/call", {"name": "count", "arguments": {}})], start=1
            ):
                body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                assert (await http.post(address, json=body)).status_code == 202
                assert f'"id":{number}' in (await data()).replace(" ", "")


@requirement("spec.sse", "spec.origin")
async def test_it_is_off_by_default_and_guarded() -> None:
    async with httpx.AsyncClient(timeout=20) as http:
        with running_gateway({"demo": server(DEMO)}) as gateway:
            assert (await http.get(f"{gateway.base}/sse")).status_code == 404
        with running_gateway({"demo": server(DEMO)}, options={"sse": True}) as gateway:
            evil = {"Origin": "https://evil.example"}
            assert (await http.get(f"{gateway.base}/sse", headers=evil)).status_code == 403
            assert (await http.get(f"{gateway.base}/sse", headers={"Host": "evil.example"})).status_code == 421
            assert (await http.post(f"{gateway.base}/sse/messages", json={})).status_code == 400
            assert (await http.post(f"{gateway.base}/sse", json={})).status_code == 405
