"""Names under which a gateway is asked for: web pages reach none of their own (DNS rebinding)."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, operators_of, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy

NAMES = ["mcp.example", "*.pages.example", "[2001:db8::1]"]


@pytest.fixture(scope="module")
def public() -> Iterator[InProcessGateway]:
    options = {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": NAMES}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as running:
        yield running


@requirement("wall.defaults", "spec.origin")
def test_a_page_that_has_its_name_point_here_is_not_served(public: InProcessGateway, http: httpx.Client) -> None:
    port = public.base.rpartition(":")[2]
    for name in (
        "evil.example",
        "pages.example",
        "evilpages.example",
        "mcp.example.evil.example",
        "127.0.0.1",
        "[::1]",
        "*",
    ):
        host = f"{name}:{port}"
        # What a browser sends after rebinding: to it the page and the gateway are of one origin.
        rebound = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        refused = Legacy(public.url, http, headers=rebound).initialize()
        assert refused.status_code == 421 and "allowed_hosts" in refused.text, name
    for name in ("mcp.example", "MCP.example", "a.pages.example", "a.b.pages.example", "[2001:db8::1]"):
        assert Legacy(public.url, http, headers={"Host": f"{name}:{port}"}).initialize().status_code == 200, name
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: 10.1.2.3:8080\r\nConnection: close\r\n\r\n")
        assert b" 200 " in raw.recv(4096), "probes ask by address"


@requirement("wall.defaults")
def test_any_name_is_served_only_where_that_is_spelled_out(http: httpx.Client) -> None:
    options = {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": ["*"]}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as gateway:
        assert Legacy(gateway.url, http, headers={"Host": "whatever.example"}).initialize().status_code == 200


@requirement("ops.console-host")
@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["own listener", "admin.listen"])
def test_a_page_that_has_its_name_point_here_does_not_reach_the_console(http: httpx.Client, listen: str) -> None:
    """Neither the console nor the REST interface, even with a key. Probes and scrapers may use any name."""
    admin = {"keys": {"ops": sha256("key")}, "listen": listen, "allowed_hosts": ["admin.example"]}
    options = {"admin": admin, "host": "127.0.0.1", "allowed_hosts": ["mcp.example", "127.0.0.1"]}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as gateway:
        base = operators_of(gateway) if listen else gateway.base
        port = base.rpartition(":")[2]

        def answer(path: str, host: str) -> httpx.Response:
            return http.get(base + path, headers={**bearer("key"), "Host": f"{host}:{port}"})

        for path in ("/admin", "/admin/sign-in", "/admin/sessions/live", "/admin/api/replicas"):
            refused = answer(path, "evil.example")
            assert refused.status_code == 421 and "gateway.admin.allowed_hosts" in refused.text, path
            for host in ("127.0.0.1", "10.1.2.3", "localhost", "mcp.example", "admin.example"):
                with http.stream("GET", base + path, headers={**bearer("key"), "Host": f"{host}:{port}"}) as served:
                    assert served.status_code == 200, (path, host)
        assert answer("/metrics", "gateway.monitoring.svc").status_code == 200
        assert answer("/healthz", "gateway.monitoring.svc").status_code == 200
