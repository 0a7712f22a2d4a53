"""A configuration that changes while the gateway runs: whole or not at all, and no session is lost."""

import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server, with_patience
from tests.support.mcp_clients import Legacy, Modern, error_of, messages, restarted, result_of, tool_text
from tests.support.waiting import eventually

ERAS = ("legacy", "modern")
SOON: dict[str, Any] = {"constants": {"gateway.upstreams.former_servers.KEPT_S": 1.0}}
"""A session leaves a former process a second after the reload at the latest."""
IDLE: dict[str, Any] = {"constants": {"gateway.upstreams.former_servers.IDLE_S": 0.1}}
"""A session leaves a former process that it does not call."""

Client = Legacy | Modern


class Edited:
    """A running gateway whose file a test edits."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway

    def write(self, text: str) -> None:
        """Replace the file, and signal the gateway. Wait until it has said what it did."""
        outcomes = self._outcomes()
        new = self.gateway.config.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.gateway.config)
        self.gateway.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: self._outcomes() > outcomes, 30), self.gateway.stderr()

    def edit(self, servers: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> str:
        """Write a configuration. Return what the gateway has said about it."""
        before = len(self.gateway.stderr())
        self.write(json.dumps({"mcpServers": servers, "gateway": with_patience(options)}))
        return self.gateway.stderr()[before:]

    def _outcomes(self) -> int:
        said = self.gateway.stderr()
        return said.count("the configuration was loaded again") + said.count("the configuration is not loaded")


@contextmanager
def edited(servers: Mapping[str, Any], options: Mapping[str, Any] | None = None, **more: Any) -> Iterator[Edited]:
    """A running gateway, and the file that it reads."""
    with running_gateway(servers, options=options, **more) as gateway:
        yield Edited(gateway)


def opened(url: str, http: httpx.Client, era: str, key: str = "") -> Client:
    """A client with a session. It has a process of the server."""
    headers = bearer(key) if key else {}
    if era == "legacy":
        client = Legacy(url, http, headers=headers).open()
        client.tool("pid")
        return client
    first = Modern(url, http, headers=headers).tool("pid")
    return Modern(url, http, headers={**headers, "MCP-Gateway-Session": first.headers["mcp-gateway-session"]})


@requirement("live.reload")
def test_servers_come_and_go_and_the_others_keep_their_processes(http: httpx.Client) -> None:
    probe, other = server(PROBE), server(PROBE, env={"A": "1"})
    with edited({"kept": probe, "gone": probe}) as it:
        kept, gone = ([opened(it.gateway.at(name), http, era) for era in ERAS] for name in ("kept", "gone"))
        pids = [tool_text(client.tool("pid")) for client in kept]
        children = [psutil.Process(int(tool_text(client.tool("pid")))) for client in gone]
        assert "servers added: new; servers removed: gone" in it.edit({"kept": probe, "new": other})
        assert "server new is ready" in it.gateway.stderr() and "server kept is ready" not in it.gateway.stderr()
        assert [tool_text(client.tool("pid")) for client in kept] == pids
        assert not any(restarted(client.tool("pid")) for client in kept)
        for era in ERAS:
            assert json.loads(tool_text(opened(it.gateway.at("new"), http, era).tool("env")))["A"] == "1"
        for client in gone:
            refused = client.tool("pid")
            assert "error" in messages(refused)[-1], refused.text
        assert eventually(lambda: not any(child.is_running() for child in children)), "nobody can call it any more"
        assert [tool_text(client.tool("pid")) for client in kept] == pids


@requirement("live.epoch", "proc.reset-told")
def test_a_session_keeps_the_process_of_a_changed_server_and_is_then_told(http: httpx.Client) -> None:
    before, after = server(PROBE, env={"A": "1"}), server(PROBE, env={"A": "2"})
    with edited({"probe": before}, **IDLE) as it:
        clients = [opened(it.gateway.at("probe"), http, era) for era in ERAS]
        pids = [int(tool_text(client.tool("pid"))) for client in clients]
        assert "servers changed: probe" in it.edit({"probe": after})
        for era in ERAS:
            new = opened(it.gateway.at("probe"), http, era)
            assert json.loads(tool_text(new.tool("env")))["A"] == "2", "a new session has the new server at once"
        assert eventually(lambda: not any(map(psutil.pid_exists, pids)))
        for client in clients:
            answer = client.tool("env")
            assert json.loads(tool_text(answer))["A"] == "2"
            assert restarted(answer) == {"reason": "configuration"}
            assert restarted(client.tool("env")) is None, "it is told once"


@requirement("live.epoch")
def test_a_call_in_flight_is_answered_by_the_process_that_has_it(http: httpx.Client) -> None:
    before, after = server(PROBE, env={"A": "1"}), server(PROBE, env={"A": "2"})
    with edited({"probe": before}) as it:
        client = opened(it.gateway.at("probe"), http, "legacy")
        pid = tool_text(client.tool("pid"))
        answers: list[httpx.Response] = []
        calling = threading.Thread(target=lambda: answers.append(client.tool("sleep", {"seconds": 3})))
        calling.start()
        it.edit({"probe": after})
        calling.join()
        assert result_of(answers[0]) and restarted(answers[0]) is None
        assert tool_text(client.tool("pid")) == pid, "it is used, so its session keeps it"


@requirement("live.epoch")
def test_the_deadline_ends_a_call_with_an_unknown_outcome(http: httpx.Client) -> None:
    before, after = server(PROBE, env={"A": "1"}), server(PROBE, env={"A": "2"})
    with edited({"probe": before}, **SOON) as it:
        client = opened(it.gateway.at("probe"), http, "legacy")
        answers: list[httpx.Response] = []
        calling = threading.Thread(target=lambda: answers.append(client.tool("hang")))
        calling.start()
        it.edit({"probe": after})
        calling.join(30)
        error = error_of(answers[0])
        assert error["code"] == -32014 and "configuration of the server has changed" in error["message"]


@requirement("live.epoch")
def test_the_deadline_ends_a_call_also_if_its_session_has_another_workspace_by_now(http: httpx.Client) -> None:
    with edited({"probe": server(PROBE), "gone": server(PROBE)}, **SOON) as it:
        client = Legacy(it.gateway.at("gone"), http).open(meta={"orbit": {"workspace": "w-1"}})
        pid = int(tool_text(client.tool("pid")))
        began = Path(json.loads(tool_text(client.tool("env")))["TMPDIR"], "began")
        code = f"subprocess.run(['sh', '-c', 'touch {began}; sleep 60'])"
        answers: list[httpx.Response] = []
        calling = threading.Thread(target=lambda: answers.append(client.tool("python", {"code": code})))
        calling.start()
        assert eventually(began.exists)
        client.initialize(meta={"orbit": {"workspace": "w-2"}})
        it.edit({"probe": server(PROBE)})
        calling.join(30)
        assert error_of(answers[0])["code"] == -32014, answers[0].text
        assert eventually(lambda: not psutil.pid_exists(pid))


@requirement("live.reload")
def test_limits_of_time_and_memory_hold_from_then_on(http: httpx.Client) -> None:
    servers = {"probe": server(PROBE)}
    with edited(servers) as it:
        client = Legacy(it.gateway.at("probe"), http).open()
        pid = tool_text(client.tool("pid"))
        answers: list[httpx.Response] = []
        calling = threading.Thread(target=lambda: answers.append(client.tool("hang")))
        calling.start()
        assert "settings changed: gateway.limits.call_timeout_s" in it.edit(servers, {"limits": {"call_timeout_s": 1}})
        calling.join(30)
        assert error_of(answers[0])["data"]["reason"] == "timed_out", answers[0].text
        assert tool_text(client.tool("pid")) == pid
        it.edit(servers, {"limits": {"total_memory_mb": 1}})
        refused = Modern(it.gateway.at("probe"), http).tool("pid")
        assert refused.status_code == 503 and error_of(refused)["data"]["reason"] == "out_of_memory", refused.text
        assert tool_text(client.tool("pid")) == pid, "a process that runs stays"
        most = {"of what bodies may have together": "x" * 100_000}
        began = Path(json.loads(tool_text(client.tool("env")))["TMPDIR"], "began")
        code = {"code": f"subprocess.run(['sh', '-c', 'touch {began}; sleep 60'])"}
        calling = threading.Thread(target=lambda: answers.append(client.tool("python", code | most)))
        calling.start()
        assert eventually(began.exists)
        assert client.tool("pid", most).status_code == 429, "bodies have a part of the memory"
        client.delete()
        calling.join(30)


@requirement("live.reload")
def test_a_broken_file_changes_nothing_and_says_why(http: httpx.Client) -> None:
    probe = {"probe": server(PROBE)}
    with edited(probe) as it:
        client = opened(it.gateway.at("probe"), http, "legacy")
        pid = tool_text(client.tool("pid"))
        broken = [
            '{"mcpServers": {"probe"',
            "",
            "[]",
            json.dumps({"mcpServers": {**probe, "new": {"comand": "x"}, "newer": {"comand": "x"}}}),
            json.dumps({"mcpServers": {**probe, "new": server(DEMO)}, "gateway": {"polcy": {}}}),
            json.dumps({"mcpServers": {**probe, "new": server(DEMO, tools={"nothing": {"operation": "read"}})}}),
            json.dumps({"mcpServers": probe}) + " " * (17 << 20),
        ]
        for text in broken:
            before = len(it.gateway.stderr())
            it.write(text)
            said = it.gateway.stderr()[before:]
            assert "the configuration is not loaded, and nothing has changed" in said, text[:80]
            assert "\\x0a" not in said, "each fault has a line"
            assert http.get(it.gateway.base + "/servers/new/mcp").status_code == 404
        assert tool_text(client.tool("pid")) == pid


@requirement("live.reload")
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_folder_that_was_missing_is_granted_after_a_reload_that_is_not_refused(
    is_refused: bool, http: httpx.Client, tmp_path: Path
) -> None:
    file = tmp_path / "data/notes"
    probe = {"probe": server(PROBE, env={"NOTES_FILE": str(file)}, sandbox="standard")}
    with edited(probe) as it:
        assert f"mkdir -p {file.parent}" in it.gateway.stderr()
        opened(it.gateway.at("probe"), http, "legacy")
        file.parent.mkdir()
        if is_refused:
            unmatched = {"probe": {**probe["probe"], "tools": {"absent": {"operation": "read"}}}}
            assert "the configuration is not loaded, and nothing has changed" in it.edit(unmatched)
        else:
            assert "nothing changed" in it.edit(probe)
        opened(it.gateway.at("probe"), http, "legacy").tool("python", {"code": f"open({str(file)!r}, 'w')"})
        assert file.exists() is not is_refused


@requirement("live.reload")
def test_clients_are_told_that_lists_have_changed(http: httpx.Client) -> None:
    probe = server(PROBE)
    with edited({"probe": probe}) as it:
        client = Legacy(it.gateway.url, http).open()
        with client.get() as stream:
            lines = stream.iter_lines()
            it.edit({"probe": probe, "more": probe})
            assert any("notifications/tools/list_changed" in line for line in lines)


@requirement("live.reload")
def test_a_stream_of_a_removed_key_ends(http: httpx.Client) -> None:
    probe = {"probe": server(PROBE)}
    both = {"api_keys": {name: [sha256(name)] for name in ("ann", "bob")}}
    with edited(probe, both) as it:
        client = opened(it.gateway.at("probe"), http, "legacy", "ann")
        assert isinstance(client, Legacy)
        with client.get() as stream:
            it.edit(probe, {"api_keys": {"bob": [sha256("bob")]}})
            assert [line for line in stream.iter_lines() if line.startswith("data: {")] == []
        with client.get() as stream:
            assert stream.status_code == 401


@requirement("live.reload")
def test_a_changed_file_is_loaded_by_itself_also_behind_a_link(http: httpx.Client) -> None:
    probe = server(PROBE)
    with edited({"probe": probe}) as it:
        file = it.gateway.config
        for number in range(3):  # as a ConfigMap does: a folder for each version, and a link to it
            folder = file.parent / f"version-{number}"
            folder.mkdir()
            text = json.dumps({"mcpServers": {"probe": probe, f"new-{number}": probe}})
            (folder / "mcp.json").write_text(text, encoding="utf-8")
            link = file.with_suffix(".link")
            link.symlink_to(folder / "mcp.json")
            link.replace(file)
            added = f"servers added: new-{number}"
            assert eventually(lambda: added in it.gateway.stderr())  # noqa: B023  # called before the next one
        file.unlink()
        opened(it.gateway.at("new-2"), http, "legacy")
        assert "not loaded" not in it.gateway.stderr(), "a missing file is no change"


@requirement("live.reload")
def test_a_storm_of_signals_is_one_reload_at_a_time(http: httpx.Client) -> None:
    probe = {"probe": server(PROBE)}
    with edited(probe) as it:
        client = opened(it.gateway.at("probe"), http, "legacy")
        pid = tool_text(client.tool("pid"))
        for _ in range(200):
            it.gateway.process.send_signal(signal.SIGHUP)
            assert tool_text(client.tool("pid")) == pid
        it.edit({**probe, "more": server(PROBE)})
        assert eventually(lambda: "servers added: more" in it.gateway.stderr())


@requirement("live.reload")
def test_the_first_operators_key_waits_for_a_restart_because_there_is_no_console(http: httpx.Client) -> None:
    servers = {"probe": server(PROBE)}
    with edited(servers) as it:
        told = it.edit(servers, {"admin": {"keys": {"ann": sha256("ann")}}})
        assert "loaded again: unchanged until a restart: gateway.admin.keys" in told
        assert http.get(f"{it.gateway.base}/admin/api/overview", headers=bearer("ann")).status_code == 404


@requirement("box.secrets")
def test_a_server_that_could_read_the_files_of_a_new_secret_is_replaced(tmp_path: Path, http: httpx.Client) -> None:
    shutil.copy(PROBE[1], tmp_path / "server.py")
    (tmp_path / "keys").mkdir()
    entry = {"command": sys.executable, "args": ["server.py"], "cwd": str(tmp_path), "sandbox": "standard"}
    others = server(PROBE)
    with edited({"box": entry, "other": others}, **SOON) as it:
        client = Legacy(it.gateway.at("box"), http).open()
        (tmp_path / "keys" / "ada").write_text("hers")
        code = {"code": "Path('keys/ada').read_text()"}
        assert tool_text(client.tool("python", code)) == "hers"
        secret = {"s": {"file": f"{tmp_path}/keys/{{subject}}"}}
        assert "servers changed: box" in it.edit({"box": entry, "other": others}, {"secrets": secret})
        assert eventually(lambda: "hers" not in client.tool("python", code).text)
        assert "FileNotFoundError" in client.tool("python", code).text
