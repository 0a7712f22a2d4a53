"""`gateway.config.hosts.found_files`: the servers that clients on this machine have."""

import json
from pathlib import Path
from typing import Any

from gateway.config.hosts.found_files import found_servers
from tests.requirements import requirement

pytestmark = requirement("first.init")

ENVIRON = {"PATH": "/usr/bin:/bin"}


def put(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_servers_of_the_project_and_of_the_user_are_found_as_they_stand(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    own = put(project / ".mcp.json", {"mcpServers": {"files": {"command": "x", "env": {"T": "${TOKEN}"}}}})
    put(home / ".cursor/mcp.json", {"mcpServers": {"files": {"command": "other"}, "git hub": {"command": "y"}}})
    claude = {"projects": {str(project): {"mcpServers": {"notes": {"type": "stdio", "command": "n"}}}, "/x": {}}}
    put(home / ".claude.json", claude | {"mcpServers": {"mail": {"url": "https://mail.example/mcp"}}})
    put(home / ".codex/config.toml", '[mcp_servers.rust]\ncommand = "r"\nstartup_timeout_sec = 5\n')
    put(home / ".gemini/settings.json", "{ not JSON")
    found = found_servers(project, home, ENVIRON)
    assert found.entries == {
        "files": {"command": "x", "env": {"T": "${TOKEN}"}},
        "git-hub": {"command": "y"},
        "notes": {"type": "stdio", "command": "n"},
        "mail": {"url": "https://mail.example/mcp"},
        "rust": {"command": "r"},
    }
    assert found.places["files"] == own and found.places["rust"] == home / ".codex/config.toml"
    assert any("files: left out" in note and str(own) in note for note in found.notes)
    assert any(".gemini/settings.json: not valid JSON" in note for note in found.notes)


def test_what_cannot_be_served_and_the_gateway_itself_are_left_out(tmp_path: Path) -> None:
    entries = {
        "off": {"command": "x", "disabled": True},
        "old": {"url": "https://a.example/sse", "type": "sse"},
        "gateway": {"url": "http://127.0.0.1:8080/mcp"},
        "odd": {"url": "http://[::1"},
        "é": {"command": "x"},
    }
    put(tmp_path / ".cursor/mcp.json", {"mcpServers": entries})
    found = found_servers(tmp_path, tmp_path / "nobody", ENVIRON)
    assert [*found.entries] == ["odd"] and len(found.notes) == 4


def test_a_file_of_a_folder_does_not_decide_what_a_server_may_touch(tmp_path: Path) -> None:
    entry = {"command": "x", "sandbox": "off", "shared": True, "tools": {"*": {"operation": "read"}}, "warm": 2}
    put(tmp_path / ".mcp.json", {"mcpServers": {"evil": entry, "good": {"command": "y", "tools": ["a"]}}})
    found = found_servers(tmp_path, tmp_path / "home", ENVIRON)
    assert found.entries == {"evil": {"command": "x"}, "good": {"command": "y", "tools": ["a"]}}
    assert any("evil: without sandbox, shared, tools, warm, which no other client has" in note for note in found.notes)


def test_credentials_that_stand_in_a_file_as_text_are_named(tmp_path: Path) -> None:
    entries = {
        "env": {"command": "x", "env": {"API_KEY": "k", "LINE\nBREAK_TOKEN": "t", "MODE": "fast", "KEY": "$KEY"}},
        "headers": {"url": "https://a.example", "headers": {"Authorization": "Bearer abc", "X-Team": "red"}},
        "args": {"command": "x", "args": ["--api-key", "k"]},
        "url": {"url": "https://a.example/mcp?api_key=k"},
        "none": {"command": "x", "args": ["--api-key", "${KEY}", "Authorization: Bearer ${TOKEN}"]},
    }
    put(tmp_path / ".mcp.json", {"mcpServers": entries})
    assert found_servers(tmp_path, tmp_path / "home", ENVIRON | {"KEY": "1", "TOKEN": "2"}).secrets == {
        "env": ["env.API_KEY", "env.LINE\nBREAK_TOKEN"],
        "headers": ["headers.Authorization"],
        "args": ["args"],
        "url": ["url"],
    }
