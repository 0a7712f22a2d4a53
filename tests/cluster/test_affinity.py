"""Load balancers that send requests to the gateway that owns their session: how many are forwarded still."""

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.compose_topology import KEYS, running_balancer, running_nginx
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import DECLARES_TASKS, Legacy, modern_body, modern_headers, tool_text
from tests.support.redis_server import running_redis

pytestmark = requirement("rep.affinity")

# Sessions are no multiple of three, so that the turns of a round robin move on, and calls are, so that all turns come.
SESSIONS, CALLS = 5, 6
COUNT = modern_body("tools/call", {"name": "count", "arguments": {}})


class Gateways:
    """Three gateways on one store."""

    def __init__(self, running: list[RunningGateway], operators: list[int]) -> None:
        self.running = running
        self.places = [gateway.base.removeprefix("http://") for gateway in running]
        self._operators = operators

    def forwarded(self) -> int:
        """How many requests were forwarded."""
        return sum(map(_forwarded, self._operators))

    def sessions_of_first(self) -> int:
        """How many sessions the first gateway serves."""
        return _metric(self._operators[0], r"mcp_gateway_sessions")


def _forwarded(port: int) -> int:
    try:
        return _metric(port, r"mcp_gateway_forwarded_total\{.*\}")
    except httpx.ConnectError:
        return 0  # it was killed


def _metric(port: int, name: str) -> int:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    return int(sum(map(float, re.findall(rf"^{name} (\S+)$", text, re.MULTILINE))))


@contextlib.contextmanager
def running_gateways() -> Iterator[Gateways]:
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        ports, running = [free_port() for _ in range(3)], []
        for port in ports:
            own = {"admin": {"listen": f"127.0.0.1:{port}"}, "tasks": {"after_s": 0.1}}
            options = {"policy": UNLIMITED, "store": redis.url, **own}
            gateway = running_gateway({"demo": server(DEMO)}, options=options, env=KEYS, must_stop=False)
            running.append(stack.enter_context(gateway))
        yield Gateways(running, ports)


@pytest.fixture(scope="module")
def gateways() -> Iterator[Gateways]:
    with running_gateways() as running:
        yield running


@pytest.fixture(scope="module")
def by_session(gateways: Gateways) -> Iterator[str]:
    """The endpoint at HAProxy, which looks for sessions."""
    with running_balancer(gateways.places, by_session=True) as url:
        yield f"{url}/servers/demo/mcp"


@pytest.fixture(scope="module")
def by_client(gateways: Gateways) -> Iterator[str]:
    """The endpoint at nginx, which looks at clients."""
    with running_nginx(gateways.places, by_client=True) as url:
        yield f"{url}/servers/demo/mcp"


Http = Callable[[], httpx.Client]


@pytest.fixture
def fresh() -> Iterator[Http]:
    """HTTP clients of addresses of their own, which keep no connection, so that a balancer decides on each request."""
    with contextlib.ExitStack() as stack:
        made = 0

        def client() -> httpx.Client:
            nonlocal made
            made += 1
            transport = httpx.HTTPTransport(
                local_address=f"127.0.0.{made + 1}", limits=httpx.Limits(max_keepalive_connections=0)
            )
            return stack.enter_context(httpx.Client(transport=transport, timeout=30))

        yield client


# Each makes the calls of one session and returns what `count` says.


def by_legacy_header(url: str, http: httpx.Client) -> Iterator[str]:
    client = Legacy(url, http).open()
    http.cookies.clear()
    while True:
        yield tool_text(client.tool("count"))


def by_gateway_header(url: str, http: httpx.Client) -> Iterator[str]:
    yield from by_header(url, http, "MCP-Gateway-Session", "new")


def by_key(url: str, http: httpx.Client) -> Iterator[str]:
    yield from by_header(url, http, "MCP-Gateway-Session-Key", secrets.token_hex(16))


def by_header(url: str, http: httpx.Client, name: str, value: str) -> Iterator[str]:
    while True:
        answer = http.post(url, json=COUNT, headers={**modern_headers(COUNT), name: value})
        http.cookies.clear()
        value = answer.headers["mcp-gateway-session"] if value == "new" else value
        yield tool_text(answer)


def by_cookie(url: str, http: httpx.Client) -> Iterator[str]:
    while True:
        yield tool_text(http.post(url, json=COUNT, headers=modern_headers(COUNT)))


CARRIERS = [by_cookie, by_gateway_header, by_key, by_legacy_header]


def hops_of_each_call(gateways: Gateways, url: str, fresh: Http, carrier: Any) -> float:
    """How many of the calls after the first one of each session are forwarded."""
    sessions = [carrier(url, fresh()) for _ in range(SESSIONS)]
    assert [next(session) for session in sessions] == ["1"] * SESSIONS
    before = gateways.forwarded()
    for number in range(2, CALLS + 2):
        assert [next(session) for session in sessions] == [str(number)] * SESSIONS
    return (gateways.forwarded() - before) / (SESSIONS * CALLS)


@pytest.mark.parametrize("running", [running_balancer, running_nginx])
def test_most_requests_are_forwarded_behind_round_robin(gateways: Gateways, fresh: Http, running: Any) -> None:
    with running(gateways.places) as url:
        hops = hops_of_each_call(gateways, f"{url}/servers/demo/mcp", fresh, by_gateway_header)
    assert 0.5 < hops < 0.8, "two of three"


@pytest.mark.parametrize("carrier", CARRIERS)
def test_haproxy_sends_a_request_to_the_owner_of_its_session(
    gateways: Gateways, by_session: str, fresh: Http, carrier: Any
) -> None:
    assert hops_of_each_call(gateways, by_session, fresh, carrier) == 0


def test_haproxy_sends_a_request_about_a_task_to_the_owner_of_its_session(
    gateways: Gateways, by_session: str, fresh: Http
) -> None:
    http, before = fresh(), gateways.forwarded()
    slow = modern_body("tools/call", {"name": "slow", "arguments": {"interval_s": 1}}, meta=DECLARES_TASKS)
    for _ in range(6):
        made = http.post(by_session, json=slow, headers={**modern_headers(slow), "MCP-Gateway-Session": "new"}).json()
        http.cookies.clear()
        body = modern_body("tasks/get", {"taskId": made["result"]["taskId"]}, meta=DECLARES_TASKS)
        asked = http.post(by_session, json=body, headers=modern_headers(body))
        http.cookies.clear()
        assert asked.json()["result"]["status"] in ("working", "completed"), asked.text
    assert gateways.forwarded() == before


@pytest.mark.parametrize("carrier", CARRIERS)
def test_nginx_sends_a_client_to_one_gateway(gateways: Gateways, by_client: str, fresh: Http, carrier: Any) -> None:
    assert hops_of_each_call(gateways, by_client, fresh, carrier) == 0


@requirement("rep.takeover")
def test_a_lost_gateway_moves_its_own_sessions_only(fresh: Http) -> None:
    with (
        running_gateways() as gateways,
        running_balancer(gateways.places, by_session=True) as haproxy,
        running_nginx(gateways.places, by_client=True) as nginx,
    ):
        kill_the_first(gateways, f"{haproxy}/servers/demo/mcp", f"{nginx}/servers/demo/mcp", fresh)


def kill_the_first(gateways: Gateways, by_session: str, by_client: str, fresh: Http) -> None:
    """Kill a gateway, whose sessions go on elsewhere, and no others."""
    sessions = [by_gateway_header(by_session, fresh()) for _ in range(SESSIONS)]
    sessions += [by_key(url, fresh()) for url in (by_session, by_client) for _ in range(SESSIONS)]
    earlier = gateways.sessions_of_first()
    for number in (1, 2):
        assert [next(session) for session in sessions] == [str(number)] * len(sessions)
    lost = gateways.sessions_of_first() - earlier
    assert 0 < lost < len(sessions)
    gateways.running[0].kill()
    counts = [next(session) for session in sessions]
    assert set(counts) == {"1", "3"}, "those of the lost gateway have a new process"
    assert counts.count("1") == lost
    before = gateways.forwarded()
    assert [next(session) for session in sessions] == [{"1": "2", "3": "4"}[count] for count in counts]
    assert gateways.forwarded() == before
