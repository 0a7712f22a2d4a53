"""Files of hosts are found with what is in them, and get an entry without losing anything."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.hosts.client_files import add_entry, found_servers, with_entry, write_file
from gateway.config.hosts.client_snippets import ClientFile
from gateway.config.hosts.file_formats import parsed_document
from tests.requirements import requirement

pytestmark = requirement("first.files")

ENVIRON = {"PATH": "/usr/bin:/bin"}


def put(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@requirement("first.init")
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


@requirement("first.init")
def test_what_cannot_be_served_and_the_gateway_itself_are_left_out(tmp_path: Path) -> None:
    entries = {
        "off": {"command": "x", "disabled": True},
        "old": {"url": "https://a.example/sse", "type": "sse"},
        "gateway": {"url": "http://127.0.0.1:8080/mcp"},
        "renamed": {"httpUrl": "http://[::1]:8080/servers/a/mcp"},
        "elsewhere": {"environment": {"A": "b"}},
        "odd": {"url": "http://[::1"},
        "é": {"command": "x"},
        "keyed": {"serverUrl": "https://far.example/mcp", "headers": {"MCP-Gateway-Session-Key": "k"}},
        "started": {"command": "/bin/mcp-session-gateway", "args": ["stdio", "--url", "https://far.example/mcp"]},
        "joined": {"command": "/bin/mcp-session-gateway", "args": ["stdio", "--url=https://far.example"]},
        "remote": {"command": "npx", "args": ["mcp-remote", "https://x", "--header", "MCP-Gateway-Session-Key:k"]},
    }
    put(tmp_path / ".cursor/mcp.json", {"mcpServers": entries})
    found = found_servers(tmp_path, tmp_path / "nobody", ENVIRON)
    assert [*found.entries] == ["odd"] and len(found.notes) == 10


@requirement("first.init")
def test_zeds_servers_are_found_without_those_of_its_extensions(tmp_path: Path) -> None:
    servers = '{"files": {"source": "custom", "command": "x"}, "pg": {"settings": {"url": "y"}},}'
    put(tmp_path / ".config/zed/settings.json", f'// Zed\n{{"theme": "One", "context_servers": {servers}}}')
    found = found_servers(tmp_path / "project", tmp_path, ENVIRON)
    assert found.entries == {"files": {"command": "x"}}
    assert any("pg: left out, it has neither a command nor a URL" in note for note in found.notes)


@requirement("first.init")
def test_a_file_of_a_folder_does_not_decide_what_a_server_may_touch(tmp_path: Path) -> None:
    entry = {"command": "x", "sandbox": "off", "shared": True, "tools": {"*": {"operation": "read"}}, "warm": 2}
    put(tmp_path / ".mcp.json", {"mcpServers": {"evil": entry, "good": {"command": "y", "tools": ["a"]}}})
    found = found_servers(tmp_path, tmp_path / "home", ENVIRON)
    assert found.entries == {"evil": {"command": "x"}, "good": {"command": "y", "tools": ["a"]}}
    assert any("evil: without sandbox, shared, tools, warm, which no other client has" in note for note in found.notes)


@requirement("first.init")
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


ENTRY = {"command": "x", "args": ["-y", 'a "b"'], "env": {"K": "v"}}
JSON = ClientFile(path="", at=("mcpServers", "new"), entry=ENTRY)
TOML = ClientFile(path="", at=("mcp_servers", "n.ew"), entry=ENTRY, language="toml")
COMMENTED = """\
// the team's file: { "mcpServers": { } }
{
  "note": "a \\"mcpServers\\": { in a text", /* { */
  'list': [{"mcpServers": {"a": 1}}],
  "gateway": {"mcpServers": {"deep": {}}}, // not this one
  mcpServers: { // this one
    "old": {"command": "y"},
  },
}
"""


def read(text: str, *, is_toml: bool = False) -> dict[str, Any]:
    return parsed_document(text, "file", is_toml=is_toml)


def test_a_commented_file_keeps_its_comments() -> None:
    after = with_entry(COMMENTED, JSON, "file")
    assert read(after) == {**read(COMMENTED), "mcpServers": {"old": {"command": "y"}, "new": ENTRY}}
    assert after.startswith(COMMENTED.removesuffix("  },\n}\n")) and after.endswith("    },\n  },\n}\n")
    assert [*read(after)["mcpServers"]] == ["old", "new"]


@pytest.mark.parametrize(
    ("inside", "after"),
    [
        ('{\n    "a": 1 // one\n    // end\n  }', '{\n    "a": 1, // one\n    // end\n    "new": 2\n  }'),
        ('{\n    "a": 1, // one\n  }', '{\n    "a": 1, // one\n    "new": 2,\n  }'),
        ('{"a": 1}', '{"a": 1,\n    "new": 2\n  }'),
        ('{"a": 1 /* } */ }', '{"a": 1, /* } */\n    "new": 2\n  }'),
        ("{}", '{\n    "new": 2\n  }'),
        ("{\n  }", '{\n    "new": 2\n  }'),
        ("{ // none\n  }", '{ // none\n    "new": 2\n  }'),
        ('{\n    "a": 1}', '{\n    "a": 1,\n    "new": 2\n  }'),
        ('{\n    "a": [{"b": {}}, {}]\n  }', '{\n    "a": [{"b": {}}, {}],\n    "new": 2\n  }'),
    ],
)
def test_an_entry_comes_last_and_comments_stay_where_they_are(inside: str, after: str) -> None:
    new = ClientFile(path="", at=("servers", "new"), entry={})
    text = "// file\n{\n  servers: "
    edited = with_entry(f"{text}{inside}\n}}", new, "file").replace('"new": {}', '"new": 2')
    assert edited == f"{text}{after}\n}}"


@pytest.mark.parametrize("before", ["", "{}", "{ // nothing\n}", '{"a": 1}', '{"a": 1,}', '{"mcpServers": {}}'])
def test_the_table_is_made_where_it_is_missing(before: str) -> None:
    after = read(with_entry(before, JSON, "file"))
    assert after == {**(read(before) if before else {}), "mcpServers": {"new": ENTRY}}


def test_plain_json_stays_plain_and_keeps_its_indentation() -> None:
    after = with_entry('{\n\t"mcpServers": {}\n}', JSON, "file")
    assert after.startswith('{\n\t"mcpServers": {\n\t\t"new": {\n') and '"é"' in with_entry('{"é": 1}', JSON, "file")


def test_a_toml_file_gets_a_table() -> None:
    before = '# mine\nmodel = "o"\n\n[mcp_servers.old]\ncommand = "y"\n'
    after = with_entry(before, TOML, "file")
    assert after.startswith(before) and read(after, is_toml=True)["mcp_servers"]["n.ew"] == ENTRY
    with pytest.raises(ConfigurationError, match="add this yourself"):
        with_entry("mcp_servers = {}\n", TOML, "file")


def test_an_entry_that_is_there_is_not_replaced() -> None:
    once = with_entry(COMMENTED, JSON, "file")
    assert with_entry(once, JSON, "file") == once
    other = ClientFile(path="", at=JSON.at, entry={"command": "z"})
    with pytest.raises(ConfigurationError, match=r"file: mcpServers\.new is there already"):
        with_entry(once, other, "file")
    with pytest.raises(ConfigurationError, match="mcpServers is not a table"):
        with_entry('{"mcpServers": []}', JSON, "file")
    with pytest.raises(ConfigurationError, match="not valid JSON"):
        with_entry("{", JSON, "file")


def test_a_file_behind_links_of_ones_own_is_replaced_as_a_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    assert add_entry(link, JSON) and not add_entry(link, JSON)
    assert link.is_symlink() and read(real.read_text())["mcpServers"] == {"new": ENTRY}
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    (tmp_path / "made").mkdir()
    (tmp_path / "client").symlink_to("made")
    fresh = tmp_path / "client/inner/mcp.json"
    assert add_entry(fresh, JSON) and stat.S_IMODE((tmp_path / "made/inner/mcp.json").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client", "dotfiles.json", "made", "mcp.json"]


@pytest.mark.parametrize("of", ["mcp.json", "folder/mcp.json", "folder/inner/mcp.json", "way/mcp.json"])
def test_a_link_to_nothing_is_not_followed(tmp_path: Path, of: str) -> None:
    """Neither the file nor a folder above it, nor a link that leads to one."""
    (tmp_path / of.partition("/")[0]).symlink_to(tmp_path / "elsewhere")
    if of.startswith("way"):
        (tmp_path / "way").rename(tmp_path / "further")
        (tmp_path / "way").symlink_to("further/inner")
    with pytest.raises(OSError, match="is a link to nothing"):
        write_file(tmp_path / of, "{}")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")
@pytest.mark.parametrize("of", ["mcp.json", "folder/mcp.json", "way/mcp.json"])
def test_a_link_of_another_user_is_not_followed(tmp_path: Path, of: str) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/mcp.json").write_text("{}")
    (tmp_path / "mcp.json").symlink_to("theirs/mcp.json")
    (tmp_path / "folder").symlink_to("theirs")
    (tmp_path / "way").symlink_to("folder")
    for link in ("mcp.json", "folder"):
        os.chown(tmp_path / link, 65_534, 65_534, follow_symlinks=False)
    with pytest.raises(OSError, match="is a link of another user"):
        write_file(tmp_path / of, "[]")
    assert (tmp_path / "theirs/mcp.json").read_text() == "{}"
