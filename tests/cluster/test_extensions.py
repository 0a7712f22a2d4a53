"""A vendor's extension through a replica that does not have the session."""

import json
import sys

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import replicas, server
from tests.support.mcp_clients import Legacy, Modern, messages, modern_body, modern_headers, result_of
from tests.support.redis_server import RunningRedis
from tests.support.vendor_server import BURST

SENT = "notifications/com.x/orders/sent"


@requirement("ext.relay")
def test_notifications_and_bursts_of_a_vendor_pass_between_replicas(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    servers = {"x": server((sys.executable, "-m", "tests.support.vendor_server", "legacy", "x"))}
    with replicas(redis_server.url, servers) as pair:
        owner, other = (gateway.url for gateway in pair)
        first = Modern(owner, http).send("com.x/orders/echo", {"payload": 1})
        carried = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
        body = modern_body(SENT, {"v": 1})
        del body["id"]
        assert http.post(other, json=body, headers={**modern_headers(body), **carried}).status_code == 202
        got = result_of(Modern(other, http).send("com.x/orders/got", headers=carried))["got"]
        methods = [json.loads(line)["method"] for line in got if "com.x" in line]
        assert methods == ["com.x/orders/echo", SENT, "com.x/orders/got"]

        legacy = Legacy(owner, http).open()
        legacy.url = other
        assert legacy.notify(SENT, {"v": 2}).status_code == 202
        assert any('"v":2' in line for line in result_of(legacy.call("com.x/orders/got"))["got"])
        *ticks, _ = messages(legacy.call("com.x/orders/burst"))
        assert [tick["params"]["i"] for tick in ticks] == list(range(BURST))
