"""Apps (`ui://`) of several servers, when the replica that owns the session is killed."""

from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import replicas
from tests.support.mcp_clients import Legacy, messages
from tests.support.redis_server import RunningRedis
from tests.support.stdio_server import text
from tests.support.table_server import table_server


def board(name: str) -> Any:
    """A server whose tool `show` names an app, which nothing else lists; the app may call `turn`."""
    show = {"name": "show", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": f"ui://{name}/board"}}}
    turn = {"name": "turn", "inputSchema": {"type": "object"}, "_meta": {"ui": {"visibility": ["app"]}}}
    answers = {
        "tools/list": {"tools": [show, turn]},
        "tools/call turn": text(f"turn at {name}"),
        "resources/list": {"resources": [{"uri": f"{name}://1", "name": "1"}]},
        "resources/templates/list": {"resourceTemplates": []},
        f"resources/read ui://{name}/*": {"contents": [{"uri": "@URI", "text": f"of {name}"}]},
        "resources/read": [["error", -32602, "not found"]],
    }
    can = {"resources": {"subscribe": True}, "tools": {}}
    return table_server({"era": "modern", "capabilities": can, "answers": answers, "scope": "private"})


@requirement("ext.apps", "ext.resource-owner", "rep.takeover")
def test_apps_are_read_and_call_their_server_after_a_takeover(redis_server: RunningRedis, http: httpx.Client) -> None:
    servers = {name: board(name) for name in ("first", "second")}
    with replicas(redis_server.url, servers, api_keys={"alice": sha256(KEYS["alice"])}) as (owner, other):
        client = Legacy(owner.url, http, headers=bearer(KEYS["alice"])).open()

        def send(method: str, **params: Any) -> Any:
            return messages(client.call(method, params))[-1]

        def read(uri: str) -> str:
            return str(send("resources/read", uri=uri)["result"]["contents"][0]["text"])

        tools = {tool["name"]: tool for tool in send("tools/list")["result"]["tools"]}
        assert tools["second__show"]["_meta"]["ui"] == {"resourceUri": "ui://second/board"}
        assert read("ui://second/board") == "of second"
        assert send("tools/call", name="turn", arguments={})["result"]["content"][0]["text"] == "turn at second"

        owner.kill()
        client.url = other.url
        # What the session had opened is gone with its owner, and nobody guesses which app calls (ADR 22).
        assert "first__turn or second__turn" in send("tools/call", name="turn", arguments={})["error"]["message"]
        assert read("ui://second/board") == "of second"
        assert send("tools/call", name="turn", arguments={})["result"]["content"][0]["text"] == "turn at second"
        for uri in ("ui://second/part", "ui://first/part"):
            assert read(uri) == f"of {uri.split('/')[2]}"
        assert (
            send("resources/read", uri="ui://nobody/board")["error"]["message"]
            == "Resource not found: ui://nobody/board"
        )
