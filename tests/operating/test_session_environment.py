"""What the servers of a session were given and why it sees what it sees, told without any secret by each replica."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, expect

from tests.operating.conftest import ADMIN, OPERATOR, Cli
from tests.operating.console_browser import signed_in
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, SIGNED, RunningGateway, replicas, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import running_redis

SECRET = "hunter2-of-ann"
CONFIGURED = "only-in-the-configuration"
SERVERS = {
    "files": server(PROBE, env={"TOKEN": "${secret:token}", "PLAIN": CONFIGURED}),
    "common": server(DEMO, shared=True),
    "vault": server(DEMO, permissions=["vault.open"]),
}
OPTIONS: dict[str, Any] = {
    "api_keys": {"ann": sha256("ann"), "bob": sha256("bob")},
    "secrets": {"token": {"env": "TOKEN_OF_{subject}"}},
    "context": {"env": {"MCP_SESSION_ID": "session_id", "MCP_SESSION_FILES": "temp_dir"}},
    "policy": {
        "read_only": ["sandboxed"],
        "rules": [{"principals": ["api-key:ann"], "workspace": "team", "env": {"RULED": CONFIGURED}}],
    },
}


@pytest.fixture(scope="module")
def pair() -> Iterator[Sequence[RunningGateway]]:
    env = {"TOKEN_OF_ann": SECRET, "TOKEN_OF_bob": SECRET}
    with running_redis() as redis, replicas(redis.url, SERVERS, env=env, admin=ADMIN, **OPTIONS) as gateways:
        yield gateways


@pytest.fixture
def session(pair: Sequence[RunningGateway], ops: httpx.Client) -> Iterator[str]:
    """How the id of a session of ann begins, which the first replica serves. It has called the server `files`."""
    with httpx.Client(timeout=30, headers=bearer("ann")) as http:
        client = Legacy(f"{pair[0].base}/mcp", http).open(name="agent")
        client.tool("files__pid")
        rows = ops.get(f"{pair[0].base}/admin/api/sessions").json()["sessions"]
        (row,) = [row for row in rows if row["client"].split()[0] == "agent"]
        yield row["session"]
        client.delete()


def environment(gateway: RunningGateway, ops: httpx.Client, session: str) -> Any:
    answer = ops.get(f"{gateway.base}/admin/api/sessions/{session}/environment")
    assert answer.status_code == 200 and SECRET not in answer.text and CONFIGURED not in answer.text
    return answer.json()


@requirement("ops.environment")
def test_every_replica_tells_what_the_one_that_serves_the_session_has_injected(
    pair: Sequence[RunningGateway], ops: httpx.Client, session: str
) -> None:
    found = environment(pair[1], ops, session)
    assert found == environment(pair[0], ops, session) and found["held"]
    assert (found["principal"], found["endpoint"]) == ("api-key:ann", "/mcp")
    rows = ops.get(f"{pair[1].base}/admin/api/sessions").json()["sessions"]
    assert [row["owner"] for row in rows if row["session"] == session] == [found["replica"]] != [""]
    files = found["servers"][0]
    variables = {one["name"]: one for one in files["variables"]}
    assert files["injected"] and files["pid"] and files["profile"] == "standard"
    assert variables["TOKEN"]["where"] == "mcpServers.files.env, with gateway.secrets.token"
    assert variables["RULED"] == {
        "name": "RULED", "origin": "rule", "where": "gateway.policy.rules[0].env", "value": None,
    }  # fmt: skip
    assert variables["MCP_SESSION_ID"]["value"] == session and len(session) == 8
    assert variables["PLAIN"]["value"] is variables["MCP_SESSION_ACCESS"]["value"] is None
    assert files["cwd"] == files["home"] == variables["HOME"]["value"] and files["temporary"].endswith("/tmp")
    folder = files["home"].removesuffix("/home")
    assert f"  write: {folder}" in files["sandbox"], "the profile is that of the process, with its own folder"
    assert variables["MCP_SESSION_FILES"]["value"] in "".join(files["sandbox"])


@requirement("ops.environment")
def test_the_names_are_those_that_the_process_has(
    pair: Sequence[RunningGateway], ops: httpx.Client, session: str
) -> None:
    found = environment(pair[1], ops, session)["servers"][0]
    with open(f"/proc/{found['pid']}/environ", "rb") as file:
        process = dict(entry.decode().split("=", 1) for entry in file.read().split(b"\0") if entry)
    told = {one["name"]: one["value"] for one in found["variables"]}
    assert {*process} == {*told}
    shown = {name: value for name, value in told.items() if value is not None and name != "MCP_SESSION_ID"}
    assert len(shown) > 5 and shown == {name: process[name][:300] for name in shown}
    assert process["TOKEN"] == SECRET


@requirement("ops.environment")
def test_a_session_that_nobody_serves_is_explained_by_its_record(
    tmp_path_factory: pytest.TempPathFactory, ops: httpx.Client
) -> None:
    path = tmp_path_factory.mktemp("store") / "store.db"
    options = {"store": f"sqlite:///{path}", "admin": ADMIN}
    with running_gateway({"files": server(PROBE)}, options=options, env=SIGNED) as gateway:
        with httpx.Client(timeout=30) as http:
            Legacy(f"{gateway.base}/mcp", http).open().tool("pid")
    with running_gateway({"files": server(PROBE)}, options=options, env=SIGNED) as gateway:
        [row] = ops.get(f"{gateway.base}/admin/api/sessions").json()["sessions"]
        found = environment(gateway, ops, row["session"])
    [files] = found["servers"]
    assert not found["held"] and not files["injected"] and files["pid"] is None
    assert files["cwd"] == "HOME" and files["sandbox"][0].startswith("server files, ")
    values = {one["name"]: one["value"] for one in files["variables"]}
    assert "MCP_SESSION_SOCKET" in values and values["MCP_SESSION_ID"] is None


@requirement("ops.environment", "ops.timeline-in-terminal")
def test_the_command_line_shows_environment_and_timeline_also_after_the_end(
    pair: Sequence[RunningGateway], ops: httpx.Client, cli: Cli, session: str
) -> None:
    text = cli("sessions", "show", session, url=pair[1].base).stdout
    assert "Its workspace is team: gateway.policy.rules[0].workspace." in text and "TOKEN  (secret: " in text
    assert "timeline" in text and SECRET not in text and CONFIGURED not in text
    assert any(line.split()[1:4] == ["call", "files", "pid"] for line in text.splitlines() if line)
    found = json.loads(cli("sessions", "show", session, "--json", url=pair[1].base).stdout)
    assert found["environment"] == environment(pair[0], ops, session)
    assert ["session", "created"] in [[entry["kind"], entry["name"]] for entry in found["timeline"]]
    ops.delete(f"{pair[0].base}/admin/api/sessions/{session}")
    text = cli("sessions", "show", session, url=pair[1].base).stdout
    assert "ended" in text and "the operator olga ended it" in text and "pid" in text
    gone = cli("sessions", "show", "zzzzzzzz", url=pair[1].base)
    assert gone.returncode == 2 and "no session of the last day begins with 'zzzzzzzz'" in gone.stderr


@requirement("ops.environment", "ops.try-here")
def test_the_page_of_a_session_explains_it_and_offers_no_call_that_is_refused(
    pair: Sequence[RunningGateway], ops: httpx.Client, session: str
) -> None:
    page = ops.get(f"{pair[1].base}/admin/sessions/{session}").text
    assert "it needs vault.open (mcpServers.vault.permissions)" in page and "gateway.secrets.token" in page
    assert SECRET not in page and CONFIGURED not in page and "not shown" in page
    assert "Try a tool here" not in page, "the session is ann's"


@requirement("ops.try-here")
def test_a_tool_is_tried_in_the_session_that_its_page_names(context: BrowserContext) -> None:
    """On loopback without credentials, all sessions are of one person."""
    servers = {"files": server(PROBE), "other": server(DEMO)}
    with running_gateway(servers, options={"admin": ADMIN}, env=SIGNED) as gateway, httpx.Client(timeout=30) as http:
        own = Legacy(f"{gateway.base}/servers/files/mcp", http).open()
        pid = tool_text(own.tool("pid"))
        [row] = http.get(f"{gateway.base}/admin/api/sessions", headers=bearer(OPERATOR)).json()["sessions"]
        page = signed_in(context, gateway)
        page.goto(f"{gateway.base}/admin/sessions/{row['session']}")
        page.get_by_role("link", name="Try a tool here").click()
        expect(page.get_by_text(f"A tool is called in session {row['session']}")).to_be_visible()
        expect(page.get_by_role("cell", name="other")).to_have_count(0)
        page.get_by_role("link", name="pid", exact=True).click()
        page.get_by_role("button", name="Call pid").click()
        result = page.locator("section", has=page.get_by_role("heading", name="Result"))
        expect(result.locator("> pre").first).to_contain_text(pid)
