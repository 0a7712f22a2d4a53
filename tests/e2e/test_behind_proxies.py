"""Behind nginx and HAProxy: nobody gets another's answer, and a certificate that was checked is a principal."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.certificates import Authority
from tests.support.compose_topology import nginx
from tests.support.credentials import KEYS, bearer
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, RunningGateway, server
from tests.support.http_bytes import connected, post, read_answers
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.waiting import eventually
from tests.tools.programs import program

ROUNDS = 3
PATH = "/servers/probe/mcp"


UPGRADES = """
map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
upstream gateway { server GATEWAY; keepalive 1; }
server {
  listen 127.0.0.1:PORT;
  location / {
    proxy_pass http://gateway;
    proxy_http_version 1.1;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $connection_upgrade;
    proxy_set_header Host $http_host;
    proxy_request_buffering BUFFERING;
  }
}
"""
"""The map of nginx's own documentation (nginx.org/en/docs/http/websocket.html), and upstream keepalive."""


def call(client: Legacy, said: str, *headers: str) -> bytes:
    """A call as this client sends it, in bytes."""
    params = {"name": "echo", "arguments": {"text": said}}
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).encode()
    named = [f"{name}: {value}" for name, value in client.request_headers().items()]
    return post(PATH, body, "Host: 127.0.0.1", "Content-Type: application/json", *named, *headers)


@requirement("wall.framing")
@pytest.mark.parametrize("buffering", ["on", "off"])
@pytest.mark.parametrize("offer", [
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
])  # fmt: skip
def test_two_principals_never_get_each_others_answers(
    keyed: RunningGateway, buffering: str, offer: tuple[str, ...]
) -> None:
    port, behind = free_port(), keyed.base.removeprefix("http://")
    config = UPGRADES.replace("GATEWAY", behind).replace("PORT", str(port)).replace("BUFFERING", buffering)
    with nginx(config, port) as before, httpx.Client() as one, httpx.Client() as other:
        url = f"{before}{PATH}"
        alice = Legacy(url, one, headers=bearer(KEYS["alice"])).open()
        bob = Legacy(url, other, headers=bearer(KEYS["bob"])).open()
        for n in range(ROUNDS):
            hidden = call(alice, f"hidden-{n}")
            outer = post(PATH, hidden, "Host: 127.0.0.1", "Content-Type: application/json", *offer)
            head, _, body = outer.partition(b"\r\n\r\n")
            with connected(("127.0.0.1", port)) as sock:
                sock.sendall(head + b"\r\n\r\n")
                threading.Event().wait(0.05)  # as the attack has it: the head arrives alone
                sock.sendall(body)
                said = sock.recv(1 << 16)
                mine = [json.loads(tool_text(bob.tool("echo", {"text": f"bob-{n}-{k}"})))["text"] for k in range(3)]
                assert mine == [f"bob-{n}-{k}" for k in range(3)]
            assert len(read_answers(said, closed=True).statuses) == 1 and b"hidden" not in said
            # An honest offer, with its body, beside it.
            with connected(("127.0.0.1", port)) as sock:
                sock.sendall(call(alice, f"alice-{n}", *offer))
                said = sock.recv(1 << 16)
                assert b" 200 " in said and f"alice-{n}".encode() in said, said


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
    with in_process_gateway({"demo": server(DEMO)}, options={"auth": {"proxies": proxies}}) as gateway:
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

        assert eventually(answers)
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
