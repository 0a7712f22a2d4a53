"""What clients behind the shipped load balancer see while Redis is away, for all gateways or for one of them."""

import contextlib
from typing import Any

import httpx

from gateway.errors import STORE_UNAVAILABLE
from tests.requirements import requirement
from tests.support.compose_topology import KEYS, running_balancer
from tests.support.gateway_process import DEMO, UNLIMITED, running_gateway, server
from tests.support.mcp_clients import Modern, messages
from tests.support.redis_server import running_redis
from tests.support.tcp_relay import running_relay
from tests.support.waiting import eventually

SERVERS = {"demo": server(DEMO)}


def judge(answer: httpx.Response) -> str:
    if answer.status_code == 200 and "result" in messages(answer)[-1]:
        return "served"
    if answer.status_code == 503 and answer.headers["content-type"] == "application/json":
        error = answer.json()["error"]
        if error["code"] == STORE_UNAVAILABLE and answer.headers["retry-after"] and error["data"]["correlation_id"]:
            return "refused"
    return f"{answer.status_code} {answer.text[:100]}"


@requirement("rep.store-down", "ops.deploy")
def test_a_gateway_that_alone_is_cut_off_from_redis_gets_no_requests(http: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        relay = stack.enter_context(running_relay(redis.port))

        def start(port: int) -> Any:
            options = {"policy": UNLIMITED, "store": f"redis://127.0.0.1:{port}/0"}
            return stack.enter_context(running_gateway(SERVERS, options=options, env=KEYS, must_stop=False))

        gateways = [start(relay.port), start(redis.port), start(redis.port)]
        url = stack.enter_context(running_balancer([g.base.removeprefix("http://") for g in gateways]))
        cut_off = gateways[0]
        relay.cut()
        assert eventually(lambda: "store" in http.get(f"{cut_off.base}/readyz", timeout=10).json(), within_s=10)
        assert http.get(f"{cut_off.base}/readyz").status_code == 200, "it cannot know that it is alone"

        def thirty_are_served() -> bool:
            return all(judge(Modern(f"{url}/mcp", http).tool("count")) == "served" for _ in range(30))

        assert eventually(thirty_are_served, within_s=20)
        relay.mend()
