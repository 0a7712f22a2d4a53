"""Any replica serves any session: round robin, dead owners, paused owners, rolling restarts."""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.concurrent_clients import AsyncModern, run_concurrently
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, error_of, restarted, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import descendants, eventually, gone
from transports.peer_frames import frame

KEYS = {"MCP_GATEWAY_KEYS": "k" * 40}
# Without a sandbox: calls tell the probe of files to leave a note in.
SERVERS = {"demo": server(DEMO), "probe": server(PROBE, sandbox="off")}
LEASE_S = 5.0
T = TypeVar("T")


@contextlib.contextmanager
def replica(redis: RunningRedis, *names: str) -> Iterator[RunningGateway]:
    """A replica with the servers of these names, or with both."""
    servers = {name: SERVERS[name] for name in names or SERVERS}
    with running_gateway(servers, options={"store": redis.url}, env=KEYS, must_stop=False) as gateway:
        yield gateway


@contextlib.contextmanager
def replicas(redis: RunningRedis, count: int, *names: str) -> Iterator[list[RunningGateway]]:
    """As many replicas, which a test may kill."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(replica(redis, *names)) for _ in range(count)]


@pytest.fixture
def two(redis_server: RunningRedis) -> Iterator[list[RunningGateway]]:
    """Two replicas of a test's own, which it may kill."""
    with replicas(redis_server, 2, "probe") as gateways:
        yield gateways


@pytest.fixture(scope="module")
def steady() -> Iterator[list[RunningGateway]]:
    """Three replicas that stay. They have a store of their own, because replicas of a test's own have another file:
    those with the newer file would take over the sessions of the others."""
    with running_redis() as redis, replicas(redis, 3) as gateways:
        yield gateways


class Wandering(Legacy):
    """A legacy client behind a round-robin load balancer: every message goes to the next replica."""

    def __init__(self, gateways: list[RunningGateway], path: str, http: httpx.Client) -> None:
        self.urls = [f"{gateway.base}/servers/{path}/mcp" for gateway in gateways]
        super().__init__(self.urls[0], http)
        self.turn = 0

    def post(self, body: Any, headers: Any = None) -> httpx.Response:
        self.turn += 1
        self.url = self.urls[self.turn % len(self.urls)]
        return super().post(body, headers)


def through(gateway: RunningGateway, path: str, client: Legacy, http: httpx.Client | None = None) -> Legacy:
    """The same client, at that replica."""
    other = Legacy(gateway.at(path), http or client.http)
    other.session = client.session
    return other


def in_background(call: Callable[[], T]) -> "Future[T]":
    """A call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(call)
    pool.shutdown(wait=False)
    return begun


def owner_of(gateways: list[RunningGateway], client: Legacy) -> RunningGateway:
    """The replica that has the session's process."""
    pid = int(tool_text(client.tool("pid")))
    return next(g for g in gateways if pid in [p.pid for p in descendants(g.pid)])


@requirement("rep.any")
def test_messages_of_legacy_clients_may_land_anywhere(steady: list[RunningGateway]) -> None:
    def work(n: int) -> None:
        with httpx.Client(timeout=30) as http:
            client = Wandering(steady, "demo", http)
            client.turn = n
            client.open(meta={"orbit.workspace": f"w{n}"})
            assert [tool_text(client.tool("count")) for _ in range(10)] == [str(i) for i in range(1, 11)]
            assert json.loads(tool_text(client.tool("whoami")))["workspace"] == f"w{n}"

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))


@requirement("rep.drain")
def test_a_replica_that_stops_ends_the_streams_that_it_relays(two: list[RunningGateway], http: httpx.Client) -> None:
    client = Wandering(two, "probe", http).open()
    owner = owner_of(two, client)
    relay = next(gateway for gateway in two if gateway is not owner)
    with http.stream("GET", f"{relay.base}/servers/probe/mcp", headers=client.request_headers()) as stream:
        assert stream.status_code == 200
        stopped = threading.Thread(target=relay.stop)
        stopped.start()
        for _ in stream.iter_raw():  # raises if the connection is cut
            pass
        stopped.join(30)
    assert "graceful shutdown exceeded" not in relay.stderr() and "Traceback" not in relay.stderr()


@requirement("rep.any", "spec.legacy")
def test_a_question_on_one_replica_is_answered_on_another(steady: list[RunningGateway], http: httpx.Client) -> None:
    for n in range(3):
        client = Wandering(steady, "demo", http).open(capabilities={"elicitation": {}})
        client.url = client.urls[n]
        with client.streaming("tools/call", {"name": "ask", "arguments": {}}) as coming:
            for message in coming:
                if "method" in message:
                    client.reply(message, result={"action": "accept", "content": {"name": "Ada"}})
        assert message["id"] == 7 and message["result"]["content"][0]["text"] == "Hello, Ada!"


@requirement("life.end", "proc.gone")
def test_delete_on_one_replica_ends_the_process_on_another(steady: list[RunningGateway], http: httpx.Client) -> None:
    for n in range(3):
        client = Wandering(steady, "probe", http).open()
        child = psutil.Process(int(tool_text(client.tool("pid"))))
        client.url = client.urls[n]
        assert client.delete().status_code == 200
        assert gone([child])
        assert [client.tool("pid").status_code for _ in range(3)] == [404] * 3


@requirement("rep.takeover", "proc.reset-told", "proc.gone")
def test_a_killed_owner_is_replaced_without_initialize(two: list[RunningGateway], http: httpx.Client) -> None:
    clients = [Wandering(two, "probe", http).open(meta={"orbit.workspace": f"w{n}"}) for n in range(4)]
    owners = [owner_of(two, client) for client in clients]
    dead = owners[0]
    children = descendants(dead.pid)
    dead.kill()
    began = time.monotonic()
    alive = [gateway for gateway in two if gateway is not dead]
    for client, owner in zip(clients, owners, strict=True):
        client.urls = [f"{gateway.base}/servers/probe/mcp" for gateway in alive]
        answer = client.tool("env", {"prefix": "MCP_SESSION_WORKSPACE"})
        assert answer.status_code == 200, answer.text
        assert restarted(answer) == ({"reason": "takeover"} if owner is dead else None)
        if client is clients[0]:
            assert time.monotonic() - began < LEASE_S, "nobody waits for the lease of an owner that is gone"
    assert json.loads(tool_text(clients[1].tool("env")))["MCP_SESSION_WORKSPACE"] == "w1"
    assert gone(children)


@requirement("rep.fence", "rep.takeover")
def test_a_paused_owner_loses_its_sessions_and_never_answers_for_them(
    two: list[RunningGateway], http: httpx.Client
) -> None:
    client = Wandering(two, "probe", http).open()
    owner = owner_of(two, client)
    # Looked at while all of them live: one that is ending has no command line any more.
    servers = [p for p in descendants(owner.pid) if "probe_server" in " ".join(p.cmdline())]
    others = [gateway for gateway in two if gateway is not owner]
    direct = through(owner, "probe", client, httpx.Client(timeout=60))
    call = in_background(lambda: direct.tool("sleep", {"seconds": 2}))
    time.sleep(1.0)
    owner.process.send_signal(signal.SIGSTOP)
    try:
        client.urls = [f"{gateway.base}/servers/probe/mcp" for gateway in others]
        began = time.monotonic()
        answer = retried(lambda: client.tool("pid"), within_s=LEASE_S + 5)
        assert restarted(answer) == {"reason": "takeover"}
        assert time.monotonic() - began < LEASE_S + 3
    finally:
        owner.process.send_signal(signal.SIGCONT)
    assert error_of(call.result(20))["code"] == -32014, "it does not answer for what it has lost"
    direct.http.close()
    pid = int(tool_text(client.tool("pid")))
    assert psutil.Process(others[0].pid) in psutil.Process(pid).parents(), (owner.pid, psutil.Process(pid).parents())
    assert servers and eventually(lambda: sum(not gone([p], within_s=0) for p in servers) <= 1), "one lists, for nobody"


def retried(call: Any, within_s: float) -> httpx.Response:
    """Again while the answer is 503, as it asks."""
    deadline = time.monotonic() + within_s
    while True:
        answer: httpx.Response = call()
        if answer.status_code != 503 or time.monotonic() > deadline:
            assert answer.status_code == 200, answer.text
            return answer
        assert answer.headers["retry-after"]
        time.sleep(0.2)


@requirement("rep.drain")
def test_a_rolling_restart_loses_no_call(redis_server: RunningRedis) -> None:
    with contextlib.ExitStack() as stack:
        gateways = [stack.enter_context(replica(redis_server, "demo")) for _ in range(3)]
        urls = [f"{gateway.base}/servers/demo/mcp" for gateway in gateways]
        stop = threading.Event()
        failures: list[str] = []

        async def working(http: httpx.AsyncClient, n: int) -> int:
            client = AsyncModern(http, workspace=f"w{n}")
            calls = 0
            while not stop.is_set():
                for url in list(urls):
                    try:
                        answer = await client.result(url, "slow", {"steps": 1, "interval_s": 0.02})
                    except httpx.ConnectError:
                        continue  # a load balancer would have asked the next one
                    except (httpx.HTTPError, AssertionError) as error:
                        failures.append(repr(error))
                        continue
                    assert answer["content"][0]["text"] == "done"
                    calls += 1
                    break
                if n == 0 and calls == 1:
                    rolling.start()
            whoami = json.loads(await client.tool(urls[-1], "whoami"))
            assert whoami["workspace"] == f"w{n}"
            return calls

        def roll() -> None:
            for old in gateways[:3]:
                new = stack.enter_context(replica(redis_server, "demo"))
                urls.append(f"{new.base}/servers/demo/mcp")
                urls.remove(f"{old.base}/servers/demo/mcp")
                assert old.stop() in (0, -signal.SIGTERM)
            stop.set()

        rolling = threading.Thread(target=roll)
        calls = run_concurrently(working, 8)
        rolling.join(60)
        assert not failures and min(calls) > 3, failures[:3]


@requirement("id.purpose", "rep.any")
def test_only_replicas_are_let_in_at_the_internal_listener(steady: list[RunningGateway], http: httpx.Client) -> None:
    ports = {
        c.laddr.port for g in steady for c in psutil.Process(g.pid).net_connections("inet") if c.status == "LISTEN"
    }
    public = {int(gateway.base.rpartition(":")[2]) for gateway in steady}
    assert len(ports - public) == 3
    token = Wandering(steady, "demo", http).open().session
    strangers = [frame(b"q", 1, b"\x00\x00\x00\x40" + b"x" * 64 + b"{}"), frame(b"h", 1, b"x")]
    strangers.append(b"GET /mcp HTTP/1.1\r\nMcp-Session-Id: " + token.encode() + b"\r\n\r\n")
    for port in ports - public:
        for knock in strangers:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(knock)
                assert connection.recv(64) == b""
    assert eventually(lambda: all(http.get(f"{g.base}/readyz").status_code == 200 for g in steady))
