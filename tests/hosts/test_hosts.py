"""Configuration files of ten hosts, each in the shape that its host documents, mean what they mean to their host."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gateway.config.settings import load
from tests.requirements import requirement
from tests.support.mcp_clients import ACCEPT

FILES = Path(__file__).with_name("files")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One file: where the host keeps it, what its variables are, and what is served of it.

    `commands`: by server, the command line that was run, with `{folder}` for the project. `env`: by server, variables
    of the process. `remote`: the server behind a URL, and a header that it gets. `hidden`: tools by server.
    """

    keeps_it_at: str
    variables: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str]
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remote: tuple[str, str, str] | None = None
    hidden: Mapping[str, set[str]] = field(default_factory=dict)
    told: tuple[str, ...] = ()


HOSTS = {
    "claude_code.mcp.json": Host(
        keeps_it_at="project/.mcp.json",
        variables={"DATABASE_URL": "postgres://db", "API_KEY": "k1", "API_BASE_URL": "{http}"},
        commands={"database": "npx -y @bytebase/dbhub --dsn postgres://db"},
        env={"database": {"CACHE_DIR": "/tmp/cache"}},
        remote=("api-server", "authorization", "Bearer k1"),
        told=("mcpServers.old-feed: not served, because its type sse is HTTP+SSE",),
    ),
    "claude_desktop_config.json": Host(
        keeps_it_at="Claude/claude_desktop_config.json",
        commands={
            "filesystem": "npx -y @modelcontextprotocol/server-filesystem /Users/username/Desktop "
            "/Users/username/Downloads",
            "github": "docker run -i --rm -e GITHUB_PERSONAL_ACCESS_TOKEN ghcr.io/github/github-mcp-server",
        },
        env={"github": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_example", "GITHUB_READ_ONLY": "1"}},
        told=("ignored globalShortcut, preferences",),
    ),
    "cline_mcp_settings.json": Host(
        keeps_it_at="settings/cline_mcp_settings.json",
        commands={
            "github.com-upstash-context7-mcp": "npx -y @upstash/context7-mcp@latest",
            "Sequential-Thinking": "npx -y @modelcontextprotocol/server-sequential-thinking",
        },
        env={"Sequential-Thinking": {"DISABLE_THOUGHT_LOGGING": "true", "MAX_THOUGHTS": "32"}},
        told=(
            "mcpServers.browser: not served, because disabled is true",
            "mcpServers.Sequential Thinking: served as Sequential-Thinking",
            "mcpServers.Sequential Thinking: ignored alwaysAllow",
        ),
    ),
    "codex_config.toml": Host(
        keeps_it_at=".codex/config.toml",
        variables={"CONTEXT7_API_KEY": "ctx7"},
        commands={"context7": "npx -y @upstash/context7-mcp", "docs": "uvx docs-server"},
        env={"context7": {"CONTEXT7_API_KEY": "ctx7", "LOG_LEVEL": "3"}},
        hidden={"context7": {"crash"}, "docs": {"crash", "state"}},
        told=("mcp_servers.figma: not served, because enabled is false", "ignored model, approval_policy, tools"),
    ),
    "cursor_mcp.json": Host(
        keeps_it_at="project/.cursor/mcp.json",
        variables={"API_KEY": "k2", "DOCS_MCP_URL": "{http}/mcp", "HOME": "/home/someone"},
        commands={"local-server": "python {folder}/project/tools/mcp_server.py --home /home/someone"},
        env={"local-server": {"API_KEY": "k2", "FROM_FILE": "a b"}},
        remote=("company-docs", "x-team", "docs"),
        told=("mcpServers.company-docs.auth: ignored, so the gateway has no credential from there",),
    ),
    "gemini_settings.json": Host(
        keeps_it_at=".gemini/settings.json",
        variables={
            "DB_CONNECTION_STRING": "postgres://db",
            "EXTERNAL_API_KEY": "k3",
            "HTTP_MCP_TOKEN": "t3",
            "HTTP_MCP_URL": "{http}/mcp",
        },
        commands={"pythonTools": "python -m my_mcp_server --port 8080"},
        env={"pythonTools": {"DATABASE_URL": "postgres://db", "API_KEY": "k3"}},
        remote=("httpServerWithAuth", "authorization", "Bearer t3"),
        hidden={"pythonTools": {"crash", "close"}},
        told=("mcpServers.nodeServer: not served, because mcp.allowed does not list it", "ignored general, ui"),
    ),
    "opencode.jsonc": Host(
        keeps_it_at="opencode.jsonc",
        variables={"EVERYTHING_VALUE": "v4", "HOSTED_MCP_URL": "{http}/mcp", "HOSTED_MCP_TOKEN": "t4"},
        commands={"everything": "npx -y @modelcontextprotocol/server-everything"},
        env={"everything": {"MY_ENV_VAR": "v4"}},
        remote=("hosted", "authorization", "Bearer t4"),
        told=("mcp.jira: not served, because enabled is false",),
    ),
    "vscode_mcp.json": Host(
        keeps_it_at="project/.vscode/mcp.json",
        variables={"INPUT_PERPLEXITY_KEY": "p5", "DOCS_MCP_URL": "{http}/mcp"},
        commands={
            "perplexity": "npx -y server-perplexity-ask --region=eu",
            "workspaceFiles": "npx -y @modelcontextprotocol/server-filesystem {folder}/project",
        },
        env={"perplexity": {"PERPLEXITY_API_KEY": "p5"}},
        remote=("docs", "accept", "application/json, text/event-stream"),
        told=(
            "servers.workspaceFiles: the sandbox of that host is not applied",
            "servers.workspaceFiles: ignored dev",
        ),
    ),
    "windsurf_mcp_config.json": Host(
        keeps_it_at=".codeium/windsurf/mcp_config.json",
        variables={"GITHUB_TOKEN": "g6", "AUTH_TOKEN": "a6", "REMOTE_MCP_URL": "{http}/mcp"},
        commands={"github": "npx -y @modelcontextprotocol/server-github"},
        env={"github": {"GITHUB_PERSONAL_ACCESS_TOKEN": "g6"}},
        remote=("remote-http-mcp", "api_key", "Bearer a6"),
        hidden={"github": {"crash", "close"}},
        told=("mcpServers.figma: not served, because disabled is true",),
    ),
    "zed_settings.json": Host(
        keeps_it_at=".config/zed/settings.json",
        commands={"local-mcp-server": "uv run /home/user/mcp/main.py", "nested": "npx -y @upstash/context7-mcp"},
        env={"nested": {"CONTEXT7_API_KEY": "ctx7"}},
        told=("context_servers.mcp-server-github: not served", "ignored theme, vim_mode, buffer_font_size"),
    ),
}


def placed(host: Host, name: str, folder: Path) -> Path:
    """The file of that host where it keeps it, with a project beside it."""
    config = folder / host.keeps_it_at
    config.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FILES / name, config)
    (folder / "project").mkdir(exist_ok=True)
    (folder / "project/.env").write_text("FROM_FILE='a b'\nAPI_KEY=overridden\n", encoding="utf-8")
    return config


@requirement("ops.foreign-config", "ops.config")
@pytest.mark.parametrize("name", sorted(HOSTS))
def test_the_file_of_a_host_says_what_it_says_to_its_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HOSTS[name]
    for key, value in host.variables.items():
        monkeypatch.setenv(key, value.format(http="http://127.0.0.1:9"))
    loaded = load(placed(host, name, tmp_path))
    entries = loaded.settings.mcpServers
    assert entries.keys() == {*host.commands, *([host.remote[0]] if host.remote else [])}
    for server, command in host.commands.items():
        entry = entries[server]
        assert " ".join((entry.command, *entry.args)) == command.format(folder=tmp_path)
        assert host.env.get(server, {}).items() <= dict(entry.env).items()
        served = entry.only_tools if entry.only_tools is not None else ("*",)
        for tool in host.hidden.get(server, ()):
            assert _is_any(tool, entry.hidden_tools) or not _is_any(tool, served), tool
    if host.remote:
        server, header, value = host.remote
        sent = {key.lower(): text for key, text in entries[server].headers.items()}
        assert sent.get(header, ACCEPT["Accept"]) == value
    notes = "\n".join(map(str, loaded.notes))
    for line in host.told:
        assert line in notes
    assert not any(value in notes for value in ("ghp_example", "postgres://db"))


def _is_any(tool: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)
