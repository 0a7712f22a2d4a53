"""What strangers have named cannot steer the terminal of whoever operates."""

from pathlib import Path

import httpx

from tests.e2e.test_policy import told
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, running_gateway, server
from tests.support.hostile_text import HOSTILE, STEERING, shows_only_text
from tests.support.mcp_clients import Legacy


@requirement("wall.decoded")
def test_the_commands_show_what_servers_are_called(http: httpx.Client, tmp_path: Path) -> None:
    tool = {"name": HOSTILE, "description": HOSTILE, "inputSchema": {"type": "objekt"}}
    for command in (["manifest"], ["doctor"], ["doctor", "--json"], ["check"], ["check", "--json"]):
        _, words = told(tmp_path, command, {}, {}, {"tools": [tool]})
        assert shows_only_text(words), command
    options = {"log_level": "info", "audit": {"to": ["store", "stderr"], "calls": True}}
    with running_gateway({"p": server(PROBE, tools={"crash": {"direct_only": True}})}, options=options) as gateway:
        client = Legacy(gateway.url, http).open(name=HOSTILE)
        client.tool(HOSTILE)
        client.tool("\u202eecho")
    assert not any(character in gateway.stderr() for character in STEERING)
