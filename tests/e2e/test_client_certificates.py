"""The subject of a client certificate that a real load balancer has checked comes in by the door of trusted proxies."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.certificates import Authority
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, running_gateway, server
from tests.support.mcp_clients import Modern, tool_text
from tests.support.waiting import eventually
from tests.tools.programs import program

CONFIG = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend tls
  bind 127.0.0.1:{port} ssl crt {folder}/server.pem ca-file {folder}/ca.pem verify optional
  http-request del-header X-Client-Subject
  http-request set-header X-Client-Subject %[ssl_c_s_dn(CN)] if {{ ssl_c_used }}
  http-request set-header X-Forwarded-Proto https
  default_backend gateway
backend gateway
  server one 127.0.0.1:{gateway}
"""


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[str, Authority]]:
    """The URL of the load balancer, and what is behind it."""
    authority, port = Authority(tmp_path), free_port()
    authority.issue("server")
    proxies = {"networks": ["127.0.0.1/32"], "subject_header": "X-Client-Subject", "issuer": "mtls"}
    with running_gateway({"demo": server(DEMO)}, options={"auth": {"proxies": proxies}}) as gateway:
        config = tmp_path / "haproxy.cfg"
        behind = gateway.base.rpartition(":")[2]
        config.write_text(CONFIG.format(port=port, folder=tmp_path, gateway=behind))
        with subprocess.Popen([str(program("haproxy", "haproxy")), "-db", "-q", "-f", str(config)]) as balancer:
            try:
                yield f"https://localhost:{port}/mcp", authority
            finally:
                balancer.terminate()


@requirement("pol.auth", "id.bound")
def test_a_certificate_is_a_principal(proxied: tuple[str, Authority]) -> None:
    url, authority = proxied
    with authority.client("ada") as ada, authority.client("bob") as bob, authority.client() as nobody:

        def answers() -> bool:
            try:
                return ada.get(url.replace("/mcp", "/healthz")).status_code == 200
            except httpx.ConnectError:
                return False

        assert eventually(answers, 10)
        who = json.loads(tool_text(Modern(url, ada).tool("whoami")))
        assert who["principal"] == "mtls:ada"
        assert json.loads(tool_text(Modern(url, ada).tool("whoami"))) == who, "her own session again"
        assert json.loads(tool_text(Modern(url, bob).tool("whoami")))["principal"] == "mtls:bob"
        forged = {"X-Client-Subject": "ada"}
        assert Modern(url, nobody, headers=forged).tool("whoami").status_code == 401, "no certificate, no name"
        spoofed = json.loads(tool_text(Modern(url, bob, headers=forged).tool("whoami")))
        assert spoofed["principal"] == "mtls:bob", "what a client says itself is taken off"
        token = Modern(url, ada).tool("whoami").headers["mcp-gateway-session"]
        assert Modern(url, bob, headers={"MCP-Gateway-Session": token}).tool("whoami").status_code == 404
