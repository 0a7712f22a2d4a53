"""One line for each request, and never so many that they are the load."""

import json
import re

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, PROBE, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern

TRACE = "0af7651916cd43dd8448eb211c80319c"


@requirement("ctx.correlation", "ops.redact")
def test_each_request_has_one_line_with_what_one_searches_for(http: httpx.Client) -> None:
    servers = {"probe": server(PROBE), "demo": server(DEMO)}
    with running_gateway(servers, options={"log_format": "json"}) as gateway:
        parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        Modern(f"{gateway.base}/servers/probe/mcp", http).tool("fail", meta=parent)
        client = Legacy(f"{gateway.base}/servers/demo/mcp", http).open()
        client.tool("whoami")
        client.call("tools/call", {"name": "no\nline=forged", "arguments": {}})
        Legacy(gateway.url, http).call("tools/list")
        gateway.stop()
    lines = [json.loads(line) for line in gateway.stderr().splitlines() if line.startswith("{")]
    ended = [line for line in lines if "outcome" in line]
    assert [(line["event"], line["outcome"].split()[0]) for line in ended] == [
        ("tools/call", "tool"),
        ("initialize", "ok"),
        ("tools/call", "ok"),
        ("tools/call", "error"),
        ("tools/list", "refused"),
    ]
    failed = ended[0]
    assert (failed["correlation"], failed["server"], failed["tool"]) == (TRACE, "probe", "fail")
    assert failed["reason"] == "it failed" and failed["took_ms"] > 0 and len(failed["session"]) == 8
    assert all(len(line["correlation"]) == 32 for line in ended)
    assert client.session not in gateway.stderr()


def test_under_load_lines_are_left_out_and_counted(http: httpx.Client) -> None:
    options = {"log_calls_per_s": 5}
    with running_gateway({"probe": server(PROBE)}, options=options) as gateway:
        client = Legacy(gateway.url, http).open()
        for _ in range(100):
            client.tool("pid")
        gateway.stop()
    lines = gateway.stderr().splitlines()
    written = [line for line in lines if "outcome=" in line]
    told = [int(line.split('event="')[1].split()[0]) for line in lines if "more requests were answered" in line]
    assert len(written) <= 5 * 10 and len(written) + sum(told) == 101, "what is not written is counted"


def test_at_a_terminal_lines_are_for_people(http: httpx.Client) -> None:
    with running_gateway({"probe": server(PROBE)}, options={"log_format": "pretty"}) as gateway:
        Legacy(gateway.url, http).open().tool("pid")
        gateway.stop()
    lines = gateway.stderr().splitlines()
    (call,) = (line for line in lines if re.search(r"  pid +ok +[\d.]+ ms ", line))
    assert len(call) < 120 and "probe" in call and "anonymous" not in call and "correlation" not in call
    # The log goes to a file: the greeting has no link, and programs find their line.
    assert any("MCP Session Gateway" in line for line in lines) and f"ready {gateway.url}" in lines
    assert "sign-in" not in gateway.stderr()
