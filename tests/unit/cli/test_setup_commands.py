"""`init`, `add` and `connect`, and what the command says of itself."""

import json
import re
import shlex
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.admin.local_gateways import announced
from gateway.cli.main import app
from gateway.cli.sandbox import name_of, said_of
from gateway.config.hosts.client_snippets import CLIENTS
from gateway.config.settings import load
from gateway.doctor import running_gateways
from gateway.version import __version__
from tests.requirements import requirement
from tests.unit.cli.test_options import running


def ran(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env=environment)


def refused(*arguments: str) -> str:
    """What the command complains about, as one line. It is the user's mistake."""
    done = ran(*arguments)
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@requirement("first.init")
def test_init_writes_a_configuration_that_loads_and_add_extends_it(here: Path) -> None:
    entry = '{"command": "true", "env": {"KEY": "${NOT_SET_ANYWHERE}"}}'
    (here / ".mcp.json").write_text(f'{{"mcpServers": {{"files": {entry}}}}}')
    first = ran("init")
    assert first.exit_code == 0 and "mcp.json: 1 server" in first.output
    assert "NOT_SET_ANYWHERE" in first.output, "what has to be mended is told"
    file = here / "mcp.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and f"// from {here / '.mcp.json'}" in file.read_text()
    told = refused("init")
    assert "exists" in told and "begin in another folder" in told
    assert "comes with the gateway" in ran("init", "--force", "--empty").output
    assert [*load(file).settings.mcpServers] == ["demo"]
    for _ in range(2):
        added = ran("add", "notes", "--env", "A=b=c", "--", "true", "-x", "--flag")
        assert added.exit_code == 0, added.output
        is_loaded = "loads it by itself" in added.output
        assert is_loaded is not ("was there already" in added.output), "only a change is loaded"
    assert "was there already" in added.output
    assert ran("add", "far", "--url", "https://a.example/mcp", "--header", "X-Team: red").exit_code == 0
    servers = load(file).settings.mcpServers
    assert servers["notes"].argv == ("true", "-x", "--flag") and servers["notes"].env == {"A": "b=c"}
    assert servers["far"].headers == {"X-Team": "red"} and "Comments are welcome" in file.read_text()


@requirement("first.init")
def test_add_says_what_a_second_server_changes_and_where_a_gateway_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_gateways, "is_gateway", gateways_at())
    (here / "mcp.json").write_text('{"gateway": {"port": 9000}}')
    one, two, three = (ran("add", name, "--", "true").output for name in ("reports", "notes", "files"))
    assert "reports__TOOL at /mcp" in two and not any("__TOOL" in told for told in (one, three))
    assert all("Next: mcp-session-gateway run" in told for told in (one, two, three))
    monkeypatch.setattr(running_gateways, "is_gateway", gateways_at("http://127.0.0.1:9000/mcp"))
    told = ran("add", "mail", "--", "true").output
    assert "A gateway runs at http://127.0.0.1:9000/mcp already" in told and "Next" not in told


@requirement("first.init")
@pytest.mark.parametrize("entries", ['{"\\ud800": {"command": "x"}}', '{"a": {"command": "x", "args": ["\\ud800"]}}'])
def test_half_a_character_in_a_clients_file_is_told(here: Path, entries: str) -> None:
    (here / ".mcp.json").write_text(f'{{"mcpServers": {entries}}}')
    done = ran("init")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "\\ud800" in done.output or "unpaired surrogate" in done.output.replace("\n", " ")


@requirement("first.init")
def test_init_replaces_no_link_of_itself(here: Path) -> None:
    (here / "mine.json").write_text("{}")
    for name, target in (("to-file.json", "mine.json"), ("to-nothing.json", "elsewhere")):
        (here / name).symlink_to(target)
        assert "exists" in refused("init", name, "--empty")
    assert (here / "mine.json").read_text() == "{}" and not (here / "elsewhere").exists()
    assert refused("init", "to-nothing.json", "--empty", "--force")


@requirement("first.init")
def test_init_tells_which_credentials_it_has_copied(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "x")
    entry = {"command": "true", "env": {"API_TOKEN": "s3cr3t", "OTHER_KEY": "${OTHER_KEY}", "MODE": "fast"}}
    (here / ".mcp.json").write_text(json.dumps({"mcpServers": {"mail": entry}}))
    output = " ".join(ran("init").output.split())
    written = (here / "mcp.json").read_text()
    assert "warning mail: copied with" in output
    for text in (output, written):
        assert "(env.API_TOKEN)" in text and "write ${VAR} in its place" in text and "env.OTHER_KEY" not in text
    assert "s3cr3t" not in output and [*load(here / "mcp.json").settings.mcpServers] == ["mail"]


@requirement("first.init")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("notes",), "give a command after --"),
        (("notes", "--url", "https://a.example/mcp", "--", "true"), "give a command after --"),
        (("a__b", "--", "true"), "a server name holds letters"),
        (("notes", "--env", "A", "--", "true"), "write NAME=VALUE"),
        (("notes", "--", "npx -y some-server"), "must be the program alone"),
        (("notes", "--url", "ftp://a.example"), "mcpServers.notes"),
    ],
)
def test_add_says_what_is_wrong_and_writes_nothing(here: Path, arguments: tuple[str, ...], why: str) -> None:
    assert why in refused("add", *arguments)
    assert not (here / "mcp.json").exists()


@requirement("first.init")
def test_add_refuses_the_gateway_itself_though_all_other_servers_have_faults(here: Path) -> None:
    file = here / "mcp.json"
    cards = {"far": {"name": "example.a/far", "description": "Far."}}
    far = {"url": "ftp://a.example"}
    options = {"port": 9999, "public_url": "https://a.example", "cards": cards}
    file.write_text(json.dumps({"mcpServers": {"far": far}, "gateway": options}))
    before = file.read_text()
    assert "the address of the gateway itself" in refused("add", "self", "--url", "http://127.0.0.1:9999/mcp")
    assert file.read_text() == before
    added = ran("add", "other", "--", "true")
    assert added.exit_code == 0, added.output


@requirement("first.init")
def test_add_tells_what_is_missing_and_that_a_running_gateway_refuses_it(here: Path) -> None:
    output = " ".join(ran("add", "search", "--env", "KEY=${NOT_SET_ANYWHERE}", "--", "true").output.split())
    assert "missing mcp.json: mcpServers.search" in output and "NOT_SET_ANYWHERE is not set" in output
    assert "refuses this change" in output and "by itself" not in output
    assert "loads it by itself" in ran("add", "notes", "--", "true").output, "the fault is of another server"
    (here / "other.json").write_text('{"gateway": {"prot": 1}}')
    assert "refuses this change" in ran("add", "notes", "--config", "other.json", "--", "true").output


@requirement("first.init")
def test_a_program_that_is_not_there_is_told_before_the_first_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = " ".join(ran("add", "time", "--", "uvx", "mcp-server-time").output.split())
    assert "warning time: there is no program uvx on the PATH here; install uv" in told and "time added" in told
    (tmp_path / "uvx").write_text("#!/bin/sh\n")
    (tmp_path / "uvx").chmod(0o755)
    for words in (("clock", "--", "uvx", "mcp-server-time"), ("own", "--", "/no/such/program")):
        assert "warning" not in ran("add", *words).output, "a path is looked up where the gateway runs"
    (here / ".mcp.json").write_text('{"mcpServers": {"files": {"command": "npx", "args": ["files"]}}}')
    assert "warning files: there is no program npx" in ran("init", "--force").output


@requirement("first.own-file")
def test_commands_find_the_file_of_the_present_folder_and_name_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The log stays as the tests have it.
    monkeypatch.setattr("gateway.observability.logs.configure_logging", lambda *_: None)
    for command in ("check", "run"):
        assert "there is no mcp.json in this folder" in refused(command)
    (here / "mcp.json").write_text('{"mcpServers": {"far": {"url": "https://a.example/mcp", "ur": 1}}}')
    for words in ("check --offline", "run", "explain --offline", "manifest", "sandbox explain far"):
        assert "mcp.json: mcpServers.far.ur: no such field" in refused(*words.split()), words
    assert "there is no mcp.json" in refused("stdio"), "its client chooses the folder"
    (here / "mcp.json").write_text('{"mcpServers": {"far": {"url": "https://a.example/mcp"}}}')
    assert ran("check", "--offline").stdout.startswith("mcp.json: ok (far)")
    assert json.loads(ran("check", "--offline", "--json").stdout)["file"] == "mcp.json"


@requirement("first.clients")
def test_connect_prints_and_writes_what_a_client_needs(here: Path) -> None:
    assert all(client in ran("connect").output for client in CLIENTS)
    printed = ran("connect", "claude-code", "--url", "http://127.0.0.1:9000")
    assert printed.stdout == "claude mcp add --transport http gateway http://127.0.0.1:9000/mcp\n"
    (here / ".cursor").mkdir()
    file = here / ".cursor/mcp.json"
    file.write_text('{\n  // mine\n  "mcpServers": {}\n}')
    assert "added" in ran("connect", "cursor", "--write", "--token").output
    assert "// mine" in file.read_text() and "Bearer ${env:MCP_TOKEN}" in file.read_text()
    assert "was there already" in ran("connect", "cursor", "--write", "--token").output
    assert ran("connect", "codex", "--write").exit_code == 0 and (here / ".codex/config.toml").exists()
    (here / ".cursor/mcp.json").write_text("")  # an editor has made it
    assert "added" in ran("connect", "cursor", "--write").output
    assert json.loads(ran("connect", "cursor").stdout)["mcpServers"]["gateway"]
    assert "has no file" in ran("connect", "python", "--write").output


@requirement("ops.hosts")
def test_connect_tells_which_servers_stay_in_the_file_and_keeps_it_as_it_was(here: Path) -> None:
    """Where neither a server nor a repository has the copy, and whoever wrote the folder has none there."""
    file, copies = here / ".cursor/mcp.json", here / ".local/state/mcp-session-gateway/before-connect"
    file.parent.mkdir()
    own = {"url": "http://localhost:8080/mcp"}
    file.write_bytes(json.dumps({"mcpServers": {"notes": {"command": "notes"}, "own": own}}).encode() + b"\r\n")
    file.chmod(0o640)
    before = file.read_bytes()
    output = " ".join(ran("connect", "cursor", "--write").output.split())
    (copy,) = copies.iterdir()
    assert "warning notes stays in the file: Cursor still starts" in output and f"{copy} has the file" in output
    assert copy.read_bytes() == before and stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copies.stat().st_mode) == 0o700 and [*file.parent.iterdir()] == [file]
    again = " ".join(ran("connect", "cursor", "--write").output.split())
    assert "notes stays" in again and "has the file" not in again, "nothing was changed"
    before = file.read_bytes()
    assert "notes stays" in " ".join(ran("connect", "cursor", "--write", "--name", "again").output.split())
    (other,) = {*copies.iterdir()} - {copy}
    assert other.read_bytes() == before != file.read_bytes(), "each change has its copy"
    assert "stay" not in ran("connect", "zed", "--write").output and len([*copies.iterdir()]) == 2
    alone = " ".join(ran("connect", "zed", "--write", "--name", "again").output.split())
    assert any(f"{one} has the file" in alone for one in {*copies.iterdir()} - {copy, other}), "credentials are in it"
    shutil.rmtree(copies)
    copies.write_text("")
    before = file.read_bytes()
    assert f"{file} is unchanged: {copies}: " in refused("connect", "cursor", "--write", "--name", "third")
    assert file.read_bytes() == before


@requirement("first.clients", "ops.hosts")
def test_each_app_gets_a_session_key_of_its_own_and_keeps_it(here: Path) -> None:
    files = {
        "zed": (".config/zed/settings.json", "context_servers"),
        "windsurf": (".codeium/windsurf/mcp_config.json", "mcpServers"),
        "lm-studio": (".lmstudio/mcp.json", "mcpServers"),
    }
    keys = []
    for client, (file, table) in files.items():
        assert "added" in ran("connect", client, "--write").output
        assert "was there already" in ran("connect", client, "--write").output, "with the same key"
        (entry,) = json.loads((here / file).read_text())[table].values()
        keys.append(entry["headers"]["MCP-Gateway-Session-Key"])
        assert keys[-1] in ran("connect", client).stdout
        assert keys[-1] not in ran("connect", client, "--url", "http://other.example").stdout, "it is a credential"
        assert "Session-Key" not in ran("connect", client, "--no-session-key").stdout
    assert len({*keys}) == 3 and all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)
    assert "Session-Key" not in ran("connect", "cursor").stdout
    assert "Session-Key" in ran("connect", "cursor", "--session-key").stdout
    ran("connect", "vscode", "--session-key", "--write")
    (entry,) = json.loads((here / ".vscode/mcp.json").read_text())["servers"].values()
    mine = ran("connect", "vscode", "--session-key").stdout
    assert entry["headers"]["MCP-Gateway-Session-Key"] not in mine, "whoever wrote the file of the folder knows it"
    assert f"gateway added, only for the folder {here}" in " ".join(
        ran("connect", "claude-code", "--write").output.split()
    )
    assert "in place of <MCP_TOKEN>" in ran("connect", "zed", "--write", "--token", "--name", "other").output
    (here / ".lmstudio/mcp.json").write_text("{")
    assert ".lmstudio/mcp.json: not valid JSON" in refused("connect", "lm-studio").replace(" ", " ")


@requirement("first.clients", "ops.hosts")
@pytest.mark.parametrize("comment", ["", "// mine\n"])
def test_an_entry_follows_the_gateway_to_another_port_and_keeps_its_session_key(here: Path, comment: str) -> None:
    for client, path in (("zed", ".config/zed/settings.json"), ("codex", ".codex/config.toml")):
        file, there = here / path, ("--write", "--url", "http://localhost:8181")
        assert "added" in ran("connect", client, "--write").output
        before = (comment if client == "zed" else "") + file.read_text()
        file.write_text(before)
        output = " ".join(ran("connect", client, *there).output.split())
        assert "gateway leads to http://localhost:8181/mcp now" in output and "has the file as it was" in output
        assert file.read_text() == before.replace("127.0.0.1:8080", "localhost:8181")
        why = refused("connect", client, "--write", "--token")
        assert "differs in" in why and "(--name)" in why, "it is another entry, not another address"
    assert "differs in url, headers" in refused("connect", "zed", "--write", "--url", "https://a.example")
    assert ran("add", "near", "--url", "http://localhost:1/mcp").exit_code == 0
    assert "differs in url" in refused("add", "near", "--url", "http://localhost:2/mcp"), "no server follows by itself"


@requirement("first.clients")
@pytest.mark.parametrize("url", ["127.0.0.1:9000", "localhost/mcp", "ftp://a.example", "https://me:pw@a.example/mcp"])
def test_connect_refuses_a_url_that_no_client_can_use(here: Path, url: str) -> None:
    assert "give the address as https://HOST" in refused("connect", "cursor", "--write", "--url", url)
    assert not (here / ".cursor").exists()


def gateways_at(*urls: str) -> Callable[[str], Awaitable[bool]]:
    async def is_gateway(url: str) -> bool:
        return url in urls

    return is_gateway


@requirement("first.clients")
def test_connect_knows_where_the_gateway_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
    monkeypatch.setattr(running_gateways, "is_gateway", gateways_at())  # whatever runs on this machine
    here.chmod(0o700)

    def url(*options: str) -> str:
        done = ran("connect", "claude-code", *options)
        return shlex.split(done.stdout)[-1] if done.exit_code == 0 else " ".join(done.output.split())

    assert url() == "http://127.0.0.1:8080/mcp"
    warned = "neither one that you run at a terminal nor at http://127.0.0.1:8080/mcp, where one"
    assert warned in " ".join(ran("connect", "cursor").stderr.split())
    with announced(running(8080)):
        assert not ran("connect", "cursor").stderr.count("warning")
    assert "warning" not in ran("connect", "cursor", "--url", "http://127.0.0.1:8080").stderr
    monkeypatch.setattr(running_gateways, "is_gateway", gateways_at("http://127.0.0.1:8080/mcp"))
    assert "warning" not in ran("connect", "cursor").stderr, "it was started in the background"
    monkeypatch.setattr(running_gateways, "is_gateway", gateways_at())
    everywhere = {"host": "0.0.0.0", "port": 9000, "anonymous": True, "allowed_hosts": ["*"]}
    (here / "mcp.json").write_text(json.dumps({"gateway": everywhere}))
    (here / "other.json").write_text('{"gateway": {"host": "::1", "port": 9001}}')
    with announced(running(9002)):
        assert url() == "http://localhost:9000/mcp", "what this folder says comes before what runs elsewhere"
        assert url("--config", "other.json") == "http://[::1]:9001/mcp"
        (here / "mcp.json").unlink()
        assert url() == "http://127.0.0.1:9002/mcp"
        monkeypatch.setenv("MCP_GATEWAY_PORT", "9004")
        assert url() == "http://127.0.0.1:9004/mcp"
        monkeypatch.delenv("MCP_GATEWAY_PORT")
        with announced(running(9003)):
            assert "say which" in url() and "--url http://127.0.0.1:9003/mcp" in url()
            with announced(running(8080)):
                assert url() == "http://127.0.0.1:8080/mcp", "that of this folder"
                told = "ignored http://127.0.0.1:9002/mcp, http://127.0.0.1:9003/mcp, where you run a gateway too"
                assert told in " ".join(ran("connect", "cursor").stderr.split())
    (here / "mcp.json").write_text('{"gateway": {"prot": 1}}')
    assert "no such setting" in url() and "give --url" in url()


@requirement("first.command-line")
def test_names_that_are_almost_right_are_named(here: Path) -> None:
    assert "Did you mean 'run'?" in refused("rnu")
    assert "--port" in refused("run", "--prot", "1")
    assert "did you mean cursor?" in refused("connect", "cursr")
    assert "mcp-session-gateway init" in refused("run")


@requirement("first.command-line")
@pytest.mark.parametrize("option", ["--version", "-V", "-v"])
def test_an_option_prints_the_version(option: str) -> None:
    assert ran(option).output == f"mcp-session-gateway {__version__}\n"


@requirement("first.command-line")
def test_shells_complete_commands_options_and_clients() -> None:
    def completed(*words: str) -> list[str]:
        line = " ".join(("mcp-session-gateway", *words))
        found = ran(_MCP_SESSION_GATEWAY_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words))).output
        return found.split()

    assert completed("conn") == ["connect"]
    assert "--config" in completed("run", "--c")
    assert completed("connect", "cu") == ["cursor"]


@requirement("first.help")
def test_every_command_is_listed_under_what_it_is_for() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    panels: dict[str, list[str]] = {}
    for name, command in commands.items():
        panels.setdefault(getattr(command, "rich_help_panel", ""), []).append(name)
    assert set(panels) == {"Serve", "Set up", "Check", "Operate"}
    assert panels["Serve"][:2] == ["run", "stdio"] and panels["Set up"][:3] == ["init", "add", "connect"]
    assert set(panels["Operate"]) == {"top", "tail", "sessions", "tasks", "reload", "replicas", "credentials"}
    for name, command in commands.items():
        assert command.help == " ".join(command.loaded().help.partition("\n\n")[0].split()), name


# -- `sandbox learn`: what it calls a server, and what it says when there is little to grant


@requirement("box.learn")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3.11 -u /srv/notes.py --data x.py", "notes"),
        ("python -m my_server.main --port 1", "my_server.main"),
        ("uv run --with mcp notes.py", "notes"),
        ("node dist/files.js /srv", "files"),
        ("npx -y @modelcontextprotocol/server-everything@2.0.0 stdio", "server-everything"),
        ("npx -y -p @scope/tools tools-server", "tools-server"),
        ("uvx mcp-server-fetch==1.0", "mcp-server-fetch"),
        ("/opt/bin/own-server --config other.py", "own-server"),
        ("python", "python"),
        ("python __main__.py", "main"),
    ],
)
def test_a_server_is_called_after_what_runs(command: str, name: str) -> None:
    assert name_of(command.split()) == name


@requirement("box.learn")
def test_a_run_in_which_nothing_was_needed_says_so() -> None:
    nothing: dict[str, Any] = {"profile": "strict"}
    [said] = said_of(nothing, by_hand=False, code=0)
    assert "nothing beyond what `strict` grants" in said
    assert said_of(nothing | {"read": ["/srv"]}, by_hand=False, code=None) == []
    assert "tools were not called" in said_of(nothing, by_hand=True, code=None)[1]
    for code, told in ((3, "exit code 3"), (-11, "was killed by signal 11")):
        [said] = said_of(nothing, by_hand=False, code=code)
        assert told in said and "nothing beyond" not in said


@requirement("box.learn")
def test_a_folder_that_the_table_cannot_be_written_to_is_said_before_the_server_runs(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "missing" / "table.json"
    words = ["sandbox", "learn", "--write", str(file), "--", "touch", str(ran)]
    outcome = CliRunner().invoke(app, words, env={"COLUMNS": "500"})
    assert outcome.exit_code == 2 and not ran.exists()
    assert f"no file can be written to {file.parent}" in outcome.stderr


@requirement("first.clients", "ops.hosts")
def test_a_server_with_a_secret_that_is_not_there_is_refused_with_how_to_add_it(here: Path) -> None:
    told = refused("add", "notes", "--env", "TOKEN=${secret:notes}", "--", "cat")
    assert "gateway.secrets has no entry 'notes': add one" in told and '"notes": {"file": ' in told
