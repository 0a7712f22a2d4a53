"""What tools learn of their session, in the gateway's process and in a child."""

import hashlib
import json
import time

import httpx

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import TOOL, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text

SERVERS = {
    "object": {"in_process": "tests.support.session_tool:server"},
    "child": server(TOOL, env={"PYTHONPATH": "."}),
}


@requirement("ctx.tool-session")
def test_a_tool_learns_the_times_the_credential_and_the_call_of_its_session(http: httpx.Client) -> None:
    options = {"api_keys": {"alice": sha256(KEYS["alice"])}, "policy": {"rules": [{"idle_ttl_s": 1_234}]}}
    with running_gateway(SERVERS, options=options) as gateway:
        before = time.time()
        client = Legacy(gateway.url, http, headers=bearer(KEYS["alice"])).open()
        correlations = set()
        for name in ("object", "child", "object"):
            created, active, idle_ttl_s, max_age_s, token_hash, correlation = json.loads(
                tool_text(client.tool(f"{name}__times"))
            )
            assert before - 1 <= created <= active <= time.time() + 1
            assert (idle_ttl_s, max_age_s) == (1_234, 86_400)
            assert token_hash == hashlib.sha256(KEYS["alice"].encode()).hexdigest()[:16]
            assert len(correlation) == 32
            correlations.add(correlation)
        assert len(correlations) == 3, "each call of an object in the process has its own"
