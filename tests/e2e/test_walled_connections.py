"""What a sandbox refuses to a server, as its client and its operator see it."""

import socket
import sys
from pathlib import Path

import httpx

import tests.support.reaching_server
from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually

REACHING = (sys.executable, str(Path(tests.support.reaching_server.__file__)))
PRIVATE = (
    "server 'x' was refused 10.0.0.5:443 (a private address); to allow it: sandbox.reach = [\"10.0.0.5:443\"]",
    "server 'x' was refused name.example.test (not listed); to allow it: sandbox.reach = [\"name.example.test\"]",
)


@requirement("box.refusals-seen", "box.network", "box.names")
def test_a_refused_connection_is_an_error_a_log_line_an_event_and_a_metric(http: httpx.Client) -> None:
    key = bearer(KEYS["alice"])
    options = {"admin": {"keys": {"olga": sha256(KEYS["alice"])}}}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        sandbox = {"profile": "strict", "reach": [f"localhost:{port}"]}
        with running_gateway({"x": server(REACHING, sandbox=sandbox)}, options=options) as gateway:
            client = Legacy(gateway.url, http).open()

            def reach(host: str, port: int) -> str:
                return tool_text(client.tool("reach", {"host": host, "port": port}))

            def told() -> dict[str, str]:
                events = http.get(f"{gateway.base}/admin/api/events", headers=key).json()
                return {event["reason"]: event["session"] for event in events if event["event"] == "blocked"}

            assert reach("127.0.0.1", port) == reach("localhost", port) == "connected"
            for _ in range(3):
                assert reach("10.0.0.5", 443).startswith("PermissionError")
            own_port = int(gateway.base.rpartition(":")[2])
            assert reach("127.0.0.1", own_port).startswith("PermissionError")
            assert "not known" in reach("name.example.test", 443)
            assert eventually(lambda: len(told()) >= 3), told()
            assert set(PRIVATE) <= told().keys() and any(f"127.0.0.1:{own_port} (" in reason for reason in told())
            assert len(set(told().values())) == 1 and all(told().values()), "they are of one session"
            assert gateway.stderr().count("10.0.0.5:443 (a private address)") == 1
            metrics = http.get(f"{gateway.base}/metrics", headers=key).text
            assert 'mcp_gateway_sandbox_refusals_total{kind="connect"}' in metrics
