"""What sandboxes refuse is shown to operators: on the page of the session, in its REST answer, and among the events."""

import sys
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import ROOT, RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually
from transports.upstream.walls.kernel import probe

pytestmark = pytest.mark.skipif(bool(probe().gate), reason=f"nothing of the network is refused here: {probe().gate}")

EVALUATING = str(ROOT / "tests/support/evaluating_server.py")
OPERATOR = "operator-key-of-the-tests"
METADATA = "__import__('socket').create_connection(('169.254.169.254', 80), 5)"


def session_of(http: httpx.Client, gateway: RunningGateway, name: str) -> dict[str, Any]:
    """The session of the client with that name, as REST shows it."""

    def asked(path: str) -> Any:
        answer = http.get(f"{gateway.base}/admin/api/{path}", headers=bearer(OPERATOR))
        assert answer.status_code == 200, answer.text
        return answer.json()

    [row] = asked(f"sessions?q={name}")["sessions"]
    found: dict[str, Any] = asked(f"sessions/{row['session']}")
    found["events"] = asked(f"events?session={row['session']}")
    return found


@requirement("box.refusals-seen", "box.files-seen")
def test_what_a_sandbox_refuses_is_on_the_page_of_the_session(http: httpx.Client) -> None:
    servers: dict[str, Any] = {"box": {"command": sys.executable, "args": [EVALUATING], "sandbox": "standard"}}
    servers["seen"] = {**servers["box"], "sandbox": {"profile": "strict", "watch": True}}
    with running_gateway(servers, options={"admin": {"keys": {"olga": sha256(OPERATOR)}}}) as gateway:
        client, other = (Legacy(gateway.url, http).open(name=name) for name in ("reaching-agent", "honest-agent"))
        other.tool("box__python", {"code": "1"})
        for _ in range(3):
            assert tool_text(client.tool("box__python", {"code": METADATA})) == "PermissionError"

        def metadata() -> list[dict[str, Any]]:
            """A machine's libraries may try more than the program: a name service, for example."""
            refused = session_of(http, gateway, "reaching-agent")["refused"]
            return [row for row in refused if row["what"].startswith("169.254.169.254")]

        assert eventually(lambda: [row["count"] for row in metadata()] == [3]), metadata()
        found = session_of(http, gateway, "reaching-agent")
        [row] = metadata()
        assert (row["server"], row["kind"], row["what"]) == ("box", "connect", "169.254.169.254:80")
        assert row["why"] == "a metadata address" and row["allows"] == 'sandbox.reach = ["169.254.169.254:80"]'
        assert session_of(http, gateway, "honest-agent")["refused"] == []
        page = http.get(f"{gateway.base}/admin/sessions/{found['session']}", headers=bearer(OPERATOR)).text
        assert "Refused by sandboxes" in page and page.count("sandbox.reach = [&#34;169.254.169.254:80&#34;]") >= 1

        def told() -> list[str]:
            events = session_of(http, gateway, "reaching-agent")["events"]
            return [event["reason"] for event in events if event["event"] == "blocked"]

        assert eventually(lambda: len(told()) == 1 and "169.254.169.254:80" in told()[0])
        assert tool_text(client.tool("seen__python", {"code": "Path('/etc/shadow').read_text()"})) == "PermissionError"
        assert tool_text(client.tool("box__python", {"code": "Path('/etc/gshadow').read_text()"})) == "PermissionError"

        def files() -> list[tuple[str, str]]:
            rows = session_of(http, gateway, "reaching-agent")["refused"]
            return [(row["what"], row["allows"]) for row in rows if "shadow" in row["what"]]

        assert eventually(lambda: files() == [("/etc/shadow", 'sandbox.read = ["/etc/shadow"]')]), files()
        client.delete()
