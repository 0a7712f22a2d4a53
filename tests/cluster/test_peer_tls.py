"""Gateways speak TLS with each other, and with nobody who has no certificate of their authority."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from session_store import KeyRing
from session_store.token_signing import Purpose
from tests.cluster.test_impostors import internal_port
from tests.cluster.test_replicas import KEYS, SERVERS, through
from tests.requirements import requirement
from tests.support.certificates import Authority
from tests.support.gateway_process import running_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis
from transports.peer_channel import PeerUnproven, open_channel


def options(redis: RunningRedis, authority: Authority, name: str) -> dict[str, Any]:
    files = {"certificate": str(authority.issue(name)), "authority": str(authority.folder / "ca.pem")}
    return {"store": redis.url, "peer_tls": files}


@requirement("rep.sealed", "rep.any")
def test_sessions_are_forwarded_over_tls_and_nobody_else_gets_in(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    authority, servers = Authority(tmp_path), {"probe": SERVERS["probe"]}
    with contextlib.ExitStack() as stack:
        owner, other = (
            stack.enter_context(running_gateway(servers, options=options(redis_server, authority, name), env=KEYS))
            for name in ("one", "two")
        )
        client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
        pid = tool_text(client.tool("pid"))
        far = through(other, "probe", client)
        assert tool_text(far.tool("pid")) == pid, "a small call"
        assert tool_text(far.tool("echo", {"text": "x" * 200_000})), "a large one, in pieces"
        port = internal_port(owner)
        for context in (ssl.create_default_context(cafile=str(tmp_path / "ca.pem")), None):
            with contextlib.ExitStack() as closing:
                wire = closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                if context is not None:
                    wire = closing.enter_context(context.wrap_socket(wire, server_hostname="127.0.0.1"))
                got = b""
                with contextlib.suppress(OSError):
                    wire.sendall(b"mcp-peer/2\n" + b"n" * 32)
                    got = wire.recv(100)
                assert not got.startswith(b"mcp-peer/"), "without a certificate nobody is answered"
        with pytest.raises(PeerUnproven, match=r"gateway\.peer_tls"):
            asyncio.run(opened_without_tls(port))


async def opened_without_tls(port: int) -> None:
    await open_channel(f"127.0.0.1:{port}", "any", KeyRing([*KEYS.values()]).derive(Purpose.PEER))
