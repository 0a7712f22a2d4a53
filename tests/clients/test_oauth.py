"""Clients find the authorization server by themselves, log in there, and go on with refreshed tokens: with a certified
provider, and SDK clients of both eras."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import httpx2
import jwt
import pytest
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from gateway.identity import access_tokens
from tests.clients.test_other_sdks import TYPESCRIPT
from tests.requirements import requirement
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy
from tests.support.openid_provider import log_in, running_provider
from tests.tools.obtain import node, npm_packages

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
CALLBACK = "http://localhost:9/callback"
TOKEN_TTL_S = 4


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """The URL of a gateway that trusts a provider, which runs as well. Tokens are good for no longer than they say."""
    ours = free_port()
    resource = f"http://localhost:{ours}/mcp"
    with running_provider((resource, TOKEN_TTL_S)) as issuer:
        entry = {"issuer": issuer, "audience": resource, "jwks_url": f"{issuer}/jwks", "scopes": ["mcp"]}
        options = {"port": ours, "auth": {"resource": resource, "jwt": [entry]}}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(access_tokens, "CLOCK_SKEW_S", 0.0)
            with in_process_gateway({"demo": server(DEMO)}, options=options):
                yield resource


def logged_in(url: str, name: str) -> dict[str, str]:
    """What a client is told after a person has logged in."""
    return {key: values[0] for key, values in parse_qs(urlsplit(log_in(url, name, CALLBACK)).query).items()}


class Kept:
    """What a client keeps of its authorization."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.seen: list[str] = []

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        self.seen.append(tokens.access_token)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def authorized(url: str, kept: Kept, name: str) -> OAuthClientProvider:
    """The SDK's own flow: discovery, registration, PKCE, and tokens; only the browser is ours."""
    told: dict[str, str] = {}

    async def redirect(to: str) -> None:
        told.update(await anyio.to_thread.run_sync(logged_in, to, name))

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=told["code"], state=told.get("state"), iss=told.get("iss"))

    metadata = OAuthClientMetadata(
        client_name="sdk",
        redirect_uris=[CALLBACK],  # type: ignore[list-item]  # pydantic makes it a URL
        token_endpoint_auth_method="none",
        grant_types=["authorization_code", "refresh_token"],
    )
    return OAuthClientProvider(url, metadata, kept, redirect, callback)


@requirement("pol.auth", "id.refresh", "id.bound", "life.affinity")
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_python_client_finds_its_way_and_goes_on_with_a_new_token(gateway: str, era: Any) -> None:
    kept = Kept()
    async with (
        httpx2.AsyncClient(timeout=30, auth=authorized(gateway, kept, f"ada-{era}")) as http,
        Client(streamable_http_client(gateway, http_client=http), mode=era) as client,
    ):

        async def text(tool: str) -> str:
            return str((await client.call_tool(tool, {})).content[0].text)  # type: ignore[union-attr]  # it is text

        who = json.loads(await text("whoami"))
        assert who["principal"].endswith(f":ada-{era}") and await text("count") == "1"
        first = kept.seen[-1]
        claims = jwt.decode(first, options={"verify_signature": False})
        await anyio.sleep(max(0.0, claims["exp"] - time.time()) + 0.2)  # the token itself says until when it is good
        assert await text("count") == "2", "the same session"
        assert kept.seen[-1] != first and json.loads(await text("whoami")) == who
    old = Legacy(gateway, httpx.Client(), headers={"Authorization": f"Bearer {first}"})
    with old.http:
        refused = await anyio.to_thread.run_sync(old.initialize)
    assert refused.status_code == 401 and "expired" in refused.text, "the old token is good no more"


@requirement("pol.auth")
def test_a_typescript_client_finds_its_way(gateway: str) -> None:
    folder = npm_packages(TYPESCRIPT)
    script = folder / "oauth_ts.mjs"
    shutil.copy(HERE / "oauth_ts.mjs", script)
    command = [str(node()), str(script), gateway]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as client:
        where = client.stdout.readline().strip()  # type: ignore[union-attr]  # it is a pipe
        assert where.startswith("http://localhost:"), client.stderr.read()  # type: ignore[union-attr]  # as well
        told = logged_in(where, "bob")
        out, complaints = client.communicate(told["code"] + "\n", timeout=60)
    assert client.returncode == 0, complaints
    said = json.loads(out)
    assert said["whoami"]["principal"].endswith(":bob") and said["counts"] == ["1", "2"]
