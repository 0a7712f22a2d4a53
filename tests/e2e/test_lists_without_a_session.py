"""A list before the first call shows what this client can use, by its credential and workspace."""

import hashlib

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import BAD, running_gateway, server
from tests.support.mcp_clients import Modern, messages

KEYS = {"ann": "a key of ann, for tests", "bob": "a key of bob, for tests"}
POLICY = {
    "rules": [
        {"principals": ["api-key:ann"], "workspace": "red"},
        {"principals": ["api-key:bob"], "workspace": "blue"},
    ],
    "workspaces": {"red": {"servers": ["one", "hidden"]}, "blue": {"servers": ["two"]}},
}


@requirement("spec.sessionless-lists", "proc.late")
def test_it_is_reduced_by_policy_and_names_no_hidden_server(http: httpx.Client) -> None:
    servers = {"one": server((*BAD, "good")), "two": server((*BAD, "good")), "hidden": server((*BAD, "exit"))}
    keys = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    with running_gateway(servers, options={"api_keys": keys, "policy": POLICY}) as gateway:
        found = {}
        for name, key in KEYS.items():
            client = Modern(gateway.url, http, headers={"Authorization": f"Bearer {key}"})
            answer = client.send("tools/list")
            assert "mcp-gateway-session" not in answer.headers, "no session was opened"
            result = messages(answer)[-1]["result"]
            missing = result.get("_meta", {}).get("io.github.mcp-session-gateway/missing", [])
            found[name] = [tool["name"] for tool in result["tools"]], [entry["server"] for entry in missing]
        assert found == {"ann": (["one__who"], ["hidden"]), "bob": (["two__who"], [])}
