"""Gateways speak TLS with each other, and with nobody who has no certificate of their authority."""

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from session_store import KeyRing
from session_store.tokens import Purpose
from tests.cluster.test_lost_owners import through
from tests.cluster.test_replicas import KEYS, SERVERS
from tests.requirements import requirement
from tests.support.certificates import Authority
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis
from transports.replica_wire import PeerConnectionPool, PeerUnproven


def options(redis: RunningRedis, authority: Authority, name: str) -> dict[str, Any]:
    files = {"certificate": str(authority.issue(name)), "authority": str(authority.folder / "ca.pem")}
    return {"store": redis.url, "peer_tls": files}


def internal_port(gateway: RunningGateway) -> int:
    public = int(gateway.base.rpartition(":")[2])
    connections = psutil.Process(gateway.pid).net_connections("inet")
    return next(c.laddr.port for c in connections if c.status == "LISTEN" and c.laddr.port != public)


@requirement("rep.sealed", "rep.any")
def test_sessions_are_forwarded_over_tls_and_nobody_else_gets_in(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with contextlib.ExitStack() as stack:
        owner, other = (
            stack.enter_context(running_gateway(SERVERS, options=options(redis_server, authority, name), env=KEYS))
            for name in ("one", "two")
        )
        client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
        pid = tool_text(client.tool("pid"))
        far = through(other, "probe", client)
        assert tool_text(far.tool("pid")) == pid, "a small call, on a channel"
        assert tool_text(far.tool("echo", {"text": "x" * 200_000})), "a large one, on a connection of its own"
        far.http.close()
        port = internal_port(owner)
        for context in (ssl.create_default_context(cafile=str(tmp_path / "ca.pem")), None):
            with contextlib.ExitStack() as closing:
                wire = closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                if context is not None:
                    wire = closing.enter_context(context.wrap_socket(wire, server_hostname="127.0.0.1"))
                got = b""
                with contextlib.suppress(OSError):
                    wire.sendall(b"mcp-peer/1\n" + b"n" * 32)
                    got = wire.recv(100)
                assert not got.startswith(b"mcp-peer/1"), "without a certificate nobody is answered"


@pytest.mark.anyio
@requirement("rep.sealed")
async def test_a_gateway_without_tls_is_told_that_its_connections_are_ended(
    redis_server: RunningRedis, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with running_gateway(SERVERS, options=options(redis_server, authority, "one"), env=KEYS) as owner:
        pool = PeerConnectionPool(KeyRing([*KEYS.values()]).derive(Purpose.PEER))
        with pytest.raises(PeerUnproven, match=r"gateway\.peer_tls"):
            await pool.open(f"127.0.0.1:{internal_port(owner)}", "any")
