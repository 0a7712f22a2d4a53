"""What clients are answered behind a load balancer whose gateways die, are away, or are cut off from Redis."""

import contextlib
import socket
from typing import Any

import httpx
import pytest

from gateway.errors import OUTCOME_UNKNOWN, STORE_UNAVAILABLE
from tests.cluster.stand_in import StandIn, balanced
from tests.requirements import requirement
from tests.support.compose_topology import BALANCERS, KEYS, running_balancer, running_nginx
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, UNLIMITED, running_gateway, server
from tests.support.mcp_clients import Modern, messages
from tests.support.redis_server import running_redis
from tests.support.tcp_relay import running_relay
from tests.support.waiting import eventually
from tests.support.wire import Wire
from transports.jsonrpc import INVALID_REQUEST

REQUEST = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


def asked(wire: Wire, request: bytes = REQUEST) -> Any:
    assert wire.send(request)
    answer = wire.answer()
    assert answer is not None, "closed without a word"
    return answer


@requirement("ops.deploy", "rep.takeover")
@pytest.mark.parametrize("kind", BALANCERS)
def test_a_gateway_that_dies_with_a_call_leaves_an_error_not_a_closed_connection(kind: str) -> None:
    with balanced(kind) as (port, stand_in), Wire(port) as wire:
        for _ in range(3):
            assert asked(wire).status == 200
        stand_in.dies = True
        for _ in range(2):  # after each, nginx leaves out one of its three servers for a while
            before = len(stand_in.requests)
            answer = asked(wire)
            assert (answer.status, answer.headers["content-type"]) == (502, "application/json")
            assert answer.message()["error"]["code"] == OUTCOME_UNKNOWN and answer.message()["id"] is None
            assert "retry-after" not in answer.headers
            assert len(stand_in.requests) == before + 1, "it is not executed a second time"
        stand_in.dies = False
        assert asked(wire).status == 200, "on the same connection"


@requirement("ops.deploy")
@pytest.mark.parametrize("kind", BALANCERS)
def test_without_a_gateway_nothing_was_executed_and_the_error_says_so(kind: str) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "haproxy":  # it is waited for until a gateway is ready
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            url = stack.enter_context(running_balancer([StandIn(listener).place] * 3))
            listener.shutdown(socket.SHUT_RDWR)
        else:
            url = stack.enter_context(running_nginx([f"127.0.0.1:{free_port()}"] * 3))
        with Wire(int(url.rpartition(":")[2])) as wire:
            for _ in range(4):
                answer = asked(wire)
                assert (answer.status, answer.headers["content-type"]) == (503, "application/json"), answer
                assert answer.message()["error"]["code"] == STORE_UNAVAILABLE and answer.headers["retry-after"] == "1"


@requirement("ops.deploy")
@pytest.mark.parametrize(
    ("kind", "head", "status"),
    [
        ("haproxy", b"Host: a\r\nX_User: b", 403),
        ("nginx", b"Host: a\r\nContent-Length: 99999999", 413),
        ("nginx", b"Host: a b", 400),
    ],
)
def test_a_request_that_the_balancer_refuses_gets_a_json_rpc_error(kind: str, head: bytes, status: int) -> None:
    with balanced(kind) as (port, _), Wire(port) as wire:
        answer = asked(wire, b"POST /mcp HTTP/1.1\r\n" + head + b"\r\n\r\n")
        assert (answer.status, answer.headers["content-type"]) == (status, "application/json"), answer
        assert answer.message()["error"]["code"] == INVALID_REQUEST


# -- what clients behind the shipped load balancer see while Redis is away, for all gateways or for one of them


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
        assert eventually(lambda: "store" in http.get(f"{cut_off.base}/readyz", timeout=10).json())
        assert http.get(f"{cut_off.base}/readyz").status_code == 200, "it cannot know that it is alone"

        def thirty_are_served() -> bool:
            return all(judge(Modern(f"{url}/mcp", http).tool("count")) == "served" for _ in range(30))

        assert eventually(thirty_are_served)
        relay.mend()
