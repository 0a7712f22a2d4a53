"""`gateway.doctor.checks`: which checks run, in which order, and what is said of servers and clients."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config.settings import Settings
from gateway.doctor import servers
from gateway.doctor.checks import check_everything, check_settings
from gateway.doctor.findings import Finding
from gateway.doctor.machine import check_workspaces
from gateway.doctor.running_gateways import check_running, is_gateway
from gateway.doctor.servers import check_servers
from gateway.upstreams.server_facts import ServerState
from tests.requirements import requirement
from tests.support.http_thread import Handler, answering

UNREADABLE = {"gateway": {"port": "x"}}


def written(folder: Path, config: object) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps(config))
    return path


async def found(config: Path, check: str = "", url: str = "", admin_url: str = "", **overrides: str) -> list[Finding]:
    """The findings of a check, or of all."""
    findings = check_everything(config, overrides, url=url, key="key", admin_url=admin_url)
    return [finding async for finding in findings if check in ("", finding.check)]


async def test_a_configuration_that_cannot_be_read_is_the_only_finding(tmp_path: Path) -> None:
    [finding] = await found(written(tmp_path, UNREADABLE))
    assert (finding.check, finding.state) == ("configuration", "error") and "gateway.port" in finding.what


async def test_every_part_of_the_surroundings_is_checked() -> None:
    checks = [finding.check async for finding in check_settings(Settings())]
    assert checks[:3] == ["keys", "access", "workspaces"]
    assert checks.index("files") < checks.index("store") < checks.index("policy")


@requirement("wall.secrets", "ops.check")
async def test_a_client_secret_that_cannot_be_read_is_an_error_whichever_server_it_is_for(tmp_path: Path) -> None:
    client = {"token_endpoint": "https://id.example/token", "client_id": "us", "client_secret_file": "/missing"}
    exchange = {**client, "audience": "https://a.example", "resource": "https://a.example/mcp", "id_jag": client}
    auth = {"issuer": "https://id.example", "audience": "us", "jwks_url": "https://id.example/jwks"}
    gateway = {"auth": {"resource": "https://mcp.example/mcp", "jwt": [auth]}, "secrets": {"a": {"exchange": exchange}}}
    told = [finding.what for finding in await found(written(tmp_path, {"gateway": gateway}), "secrets")]
    assert [what.split(": ")[0] for what in told] == [
        "gateway.secrets.a.exchange.client_secret_file",
        "gateway.secrets.a.exchange.id_jag.client_secret_file",
    ]


@requirement("box.keys", "ops.check")
async def test_a_server_that_could_read_the_keys_is_an_error_and_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(tmp_path / "keys"))
    (tmp_path / "keys").write_text("k" * 40)
    entry = {"command": "cat", "sandbox": {"read": [str(tmp_path)]}}
    config = written(tmp_path, {"mcpServers": {"a": entry}})
    findings = await found(config)
    told = [(finding.state, finding.what.partition(",")[0]) for finding in findings if "sandbox" in finding.check]
    assert told[1:] == [
        ("warning", f"its processes can read {config}"),
        ("error", f"{config}: mcpServers.a: its sandbox grants {tmp_path}"),
    ]
    assert "server a" not in {finding.check for finding in findings}, "the gateway would not start it"


@requirement("box.secrets", "ops.check")
async def test_a_server_that_nothing_keeps_from_the_files_of_secrets_is_told(tmp_path: Path) -> None:
    gateway = {"secrets": {"a": {"file": str(tmp_path / "{subject}")}}}
    servers = {"free": {"command": "cat", "sandbox": "off"}, "walled": {"command": "cat"}}
    findings = await found(written(tmp_path, {"mcpServers": servers, "gateway": gateway}))
    [told] = [finding for finding in findings if "gateway.secrets.a" in finding.what]
    assert (told.state, told.check) == ("warning", "sandbox free") and "sandbox standard or strict" in told.do


@requirement("ops.check")
async def test_what_is_ignored_or_missing_is_a_finding(tmp_path: Path) -> None:
    path = written(tmp_path, {"theme": "dark", "mcpServers": {"a": {"type": "sse", "url": "https://a.example"}}})
    findings = await found(path, "configuration")
    assert {one.what.removeprefix(f"{path}: ").partition(",")[0]: one.state for one in findings} == {
        "0 servers": "ok",
        "nothing to serve": "warning",
        "ignored theme: not mcpServers or gateway": "ok",
        "mcpServers.a: not served": "warning",
    }


@requirement("ops.check", "pol.operation")
async def test_eval_tools_that_take_everything_are_a_warning_of_doctor_and_check(tmp_path: Path) -> None:
    tools = {"run": {"operation": "eval"}}
    document = {"mcpServers": {"a": {"command": "true", "tools": tools}}, "gateway": {"policy": {"eval_tools": True}}}
    path = written(tmp_path, document)
    (warned,) = (one for one in await found(path, "configuration") if one.state == "warning")
    assert "tools.run: eval tools are on" in warned.what and "Expressions to start with" in warned.do
    checked = CliRunner().invoke(app, ["check", "--offline", "--config", str(path)])
    assert "Expressions to start with" in " ".join(checked.output.split())


@requirement("ops.check")
async def test_a_policy_is_not_fine_while_a_server_does_not_answer() -> None:
    missing = {"command": "/does/not/exist", "tools": {"drop_*": {"operation": "eval"}}}
    settings = Settings.model_validate({"mcpServers": {"notes": missing, "search": {"command": "/nor/this"}}})
    findings = [finding async for finding in check_servers(settings)]
    assert [(finding.check, finding.state) for finding in findings] == [
        ("server notes", "error"),
        ("server search", "error"),
        ("memory", "ok"),
        ("policy", "warning"),
    ]
    assert "not checked: notes, search" in findings[-1].what and findings[-1].do
    assert "install it" in findings[0].do, "what is missing cannot be run by hand"


@requirement("ops.check")
@pytest.mark.parametrize(("command", "do"), [("./server", "run it by hand"), ("./other", "install it")])
def test_a_program_is_looked_for_in_the_working_directory_of_its_server(tmp_path: Path, command: str, do: str) -> None:
    (tmp_path / "server").touch(mode=0o700)
    entry = Settings.model_validate({"mcpServers": {"a": {"command": command, "cwd": str(tmp_path)}}}).mcpServers["a"]
    failed = SimpleNamespace(name="a", settings=entry, state=ServerState("failing", "it exited"), is_left_out=False)
    assert do in servers._finding(cast(Any, failed), "", {}).do


@requirement("wall.provenance")
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"trust_announced_workspace": True}, "any client may take any workspace"),
        ({"rules": [{"workspaces": ["team-*"], "trust": "direct"}]}, "policy.rules[0].workspaces"),
        ({"workspaces": {"a": {}, "*": {}}}, "policy.workspaces.a"),
        ({"rules": [{"workspaces": ["team-*"]}, {"principals": ["api-key:*"], "workspace": "team-a"}]}, ""),
        ({"rules": [{"workspaces": ["*"], "trust": "direct"}]}, ""),
    ],
)
def test_what_announced_workspaces_do_is_found_out(policy: Any, words: str) -> None:
    [finding] = check_workspaces(Settings.model_validate({"gateway": {"policy": policy}}))
    assert (finding.state, words in finding.what) == ("warning" if words else "ok", True)


class Operators(Handler):
    """Serves operators alone, and says that it is ready."""

    def do_GET(self) -> None:
        ready = b'{"ready": true, "draining": false}'
        known = {"/admin/api/warnings": b"[]", "/readyz": ready}
        known |= {"/deep/readyz": b"[" * 9_000, "/long/readyz": ready + b" " * 20_000, "/list/readyz": b"[]"}
        self.respond(200 if self.path in known else 404, body=known.get(self.path, b"no"))

    do_POST = do_GET


@pytest.fixture
def base() -> Iterator[str]:
    with answering(Operators) as port:
        yield f"http://127.0.0.1:{port}"


@requirement("ops.config")
async def test_clients_are_asked_for_where_operators_are_served(base: str, tmp_path: Path) -> None:
    config = written(tmp_path, UNREADABLE)
    [clients] = await found(config, "clients", f"{base}/elsewhere/mcp", base)
    assert clients.state == "ok"
    [clients] = await found(config, "clients", f"{base}/elsewhere/mcp")
    assert clients.state == "warning" and "answers 404" in clients.what and "--admin-url" in clients.do
    [endpoint] = await found(config, "endpoint", base)
    assert endpoint.state == "error" and "--admin-url" in endpoint.do


@requirement("ops.config")
async def test_the_gateway_is_looked_for_where_the_configuration_says(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    port = int(base.rpartition(":")[2])

    async def told(**settings: object) -> list[str]:
        config = written(tmp_path, {"gateway": settings})
        return [finding.what async for finding in check_running(config, "", "", is_named=True)]

    assert (await told(port=port))[0] == f"http://127.0.0.1:{port}/mcp is served"
    assert await told(port=1) == ["no gateway of yours is found at http://127.0.0.1:1/mcp: --url checks another one"]
    assert await told(sesion={}) == [], "another check reports that"
    assert await is_gateway(f"{base}/mcp")
    assert not any([await is_gateway(f"{base}/{other}/mcp") for other in ("deep", "long", "list", "none")])


@requirement("ops.config")
async def test_a_store_that_is_given_is_checked_in_place_of_the_configured_one(tmp_path: Path) -> None:
    config = written(tmp_path, {"gateway": {"store": f"sqlite:///{tmp_path}/configured.db"}})
    [finding] = await found(config, "store", store="redis://127.0.0.1:1/0")
    assert finding.state == "error" and "redis://127.0.0.1:1" in finding.what
    assert not (tmp_path / "configured.db").exists()


@requirement("ops.config")
async def test_a_store_that_does_not_exist_yet_is_no_fault_and_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS", "k" * 40)
    config = written(tmp_path, {"gateway": {"store": f"sqlite:///{tmp_path}/sessions.db"}})
    [finding] = await found(config, "store")
    assert finding.state == "ok" and "sessions.db: there is no such file yet" in finding.what
    assert os.listdir(tmp_path) == [config.name]
    [finding] = await found(config, "store", store=f"sqlite:///{tmp_path}/none/sessions.db")
    assert finding.state == "error" and "there is no folder" in finding.what
