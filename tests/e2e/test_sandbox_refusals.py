"""What sandboxes refuse is shown to operators: in the log, among events and metrics, and on the page of the session."""

import socket
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import ROOT
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually
from transports.upstream.walls.kernel import probe

pytestmark = pytest.mark.skipif(bool(probe().gate), reason=f"nothing of the network is refused here: {probe().gate}")

OPERATOR = bearer("operator-key-of-the-tests")
BOX = {"command": sys.executable, "args": [str(ROOT / "tests/support/evaluating_server.py")]}
REFUSED = (
    "server 'strict' was refused 10.0.0.5:443 (a private address); to allow it: sandbox.reach = [\"10.0.0.5:443\"]",
    "server 'strict' was refused name.example.test (not listed); to allow it: sandbox.reach = [\"name.example.test\"]",
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Something listens there, and `strict` may reach it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def gateway(port: int) -> Iterator[InProcessGateway]:
    servers = {
        "box": {**BOX, "sandbox": "standard"},
        "seen": {**BOX, "sandbox": {"profile": "strict", "watch": True}},
        "strict": {**BOX, "sandbox": {"profile": "strict", "reach": [f"localhost:{port}"]}},
    }
    options = {"admin": {"keys": {"olga": sha256("operator-key-of-the-tests")}}}
    with in_process_gateway(servers, options=options) as running:
        yield running


class Reaching:
    """A client of its own name, and what operators are shown of its session."""

    def __init__(self, gateway: InProcessGateway, http: httpx.Client, name: str) -> None:
        self._client = Legacy(gateway.url, http).open(name=name)
        self._base = f"{gateway.base}/admin"
        self._name = name

    def does(self, server: str, code: str) -> str:
        return tool_text(self._client.tool(f"{server}__python", {"code": code}))

    def connects(self, server: str, host: str, port: int) -> str:
        return self.does(server, f"socket.create_connection(({host!r}, {port}), 5).close()")

    def get(self, path: str) -> httpx.Response:
        answer = self._client.http.get(f"{self._base}/{path}", headers=OPERATOR)
        assert answer.status_code == 200, answer.text
        return answer

    def shown(self) -> Any:
        [row] = self.get(f"api/sessions?q={self._name}").json()["sessions"]
        return self.get(f"api/sessions/{row['session']}").json()

    def refused(self, part: str = "") -> list[Any]:
        """Of these refusals. A machine's libraries may try more than the program: a name service, for example."""
        return [row for row in self.shown()["refused"] if part in row["what"]]

    def told(self, part: str = "") -> list[str]:
        """The reasons of such events of the session."""
        events = self.get(f"api/events?session={self.shown()['session']}").json()
        return [event["reason"] for event in events if event["event"] == "blocked" and part in event["reason"]]


@requirement("box.refusals-seen", "box.network", "box.names")
def test_a_refused_connection_is_an_error_a_log_line_an_event_and_a_metric(
    gateway: InProcessGateway, http: httpx.Client, port: int
) -> None:
    client = Reaching(gateway, http, "connecting-agent")
    assert client.connects("strict", "127.0.0.1", port) == client.connects("strict", "localhost", port) == "None"
    for _ in range(3):
        assert client.connects("strict", "10.0.0.5", 443) == "PermissionError"
    own_port = int(gateway.base.rpartition(":")[2])
    assert client.connects("strict", "127.0.0.1", own_port) == "PermissionError"
    assert client.connects("strict", "name.example.test", 443) == "gaierror"
    assert eventually(lambda: {*REFUSED} <= {*client.told()} and len(client.told()) >= 3), client.told()
    assert any(f"127.0.0.1:{own_port} (" in reason for reason in client.told())
    assert gateway.stderr().count("10.0.0.5:443 (a private address)") == 1
    metrics = http.get(f"{gateway.base}/metrics", headers=OPERATOR).text
    assert 'mcp_gateway_sandbox_refusals_total{kind="connect"}' in metrics


@requirement("box.refusals-seen", "box.files-seen")
def test_what_a_sandbox_refuses_is_on_the_page_of_the_session(gateway: InProcessGateway, http: httpx.Client) -> None:
    client, other = (Reaching(gateway, http, name) for name in ("reaching-agent", "honest-agent"))
    other.does("box", "1")
    address = "169.254.169.254"
    for _ in range(3):
        assert client.connects("box", address, 80) == "PermissionError"
    assert eventually(lambda: [row["count"] for row in client.refused(address)] == [3]), client.refused()
    [row] = client.refused(address)
    assert (row["server"], row["kind"], row["what"]) == ("box", "connect", "169.254.169.254:80")
    assert row["why"] == "a metadata address" and row["allows"] == 'sandbox.reach = ["169.254.169.254:80"]'
    assert other.refused(address) == []
    page = client.get(f"sessions/{client.shown()['session']}").text
    assert "Refused by sandboxes" in page and page.count("sandbox.reach = [&#34;169.254.169.254:80&#34;]") >= 1
    assert eventually(lambda: len(client.told(f"{address}:80")) == 1), client.told()
    assert client.does("seen", "Path('/etc/shadow').read_text()") == "PermissionError"
    assert client.does("box", "Path('/etc/gshadow').read_text()") == "PermissionError"
    files = [("/etc/shadow", 'sandbox.read = ["/etc/shadow"]')]
    assert eventually(lambda: [(row["what"], row["allows"]) for row in client.refused("shadow")] == files)
