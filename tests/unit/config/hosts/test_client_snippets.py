"""`gateway.config.hosts.client_snippets`: what clients are given to connect."""

import base64
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT

from gateway.config.hosts.client_snippets import (
    CLIENTS,
    CREDENTIAL_VARIABLE,
    PLACEHOLDER,
    WITH_KEY,
    Snippet,
    name_for,
    snippet,
    snippets,
)
from gateway.config.hosts.file_formats import adapted
from gateway.config.hosts.placeholders import Place
from gateway.config.hosts.server_entries import Findings
from tests.requirements import requirement

pytestmark = requirement("first.clients")

URL = "http://127.0.0.1:8080/mcp"
SDK_TIMEOUT = f"httpx2.Timeout({MCP_DEFAULT_TIMEOUT:g}, read={MCP_DEFAULT_SSE_READ_TIMEOUT:g})"
KEY = {"MCP-Gateway-Session-Key": "report-writer"}
FULL: dict[str, Any] = {"needs_token": True, "session_key": "report-writer"}
PLACE = Place(environ={CREDENTIAL_VARIABLE: "s3cret"}, folder=Path("/project"))
BY_STDIO = "claude-desktop"
WITH_URL = sorted(client for client in CLIENTS if client != BY_STDIO and snippet(client, URL).file)


def of(client: str, **more: Any) -> Snippet:
    return next(one for one in snippets(URL, **more) if one.client == client)


def read_back(one: Snippet) -> dict[str, Any]:
    """The file as the gateway reads files of that client: what a host makes of it."""
    assert one.file is not None
    text = one.file.text.replace(PLACEHOLDER, "s3cret")  # what a person does
    document = tomllib.loads(text) if one.file.language == "toml" else json.loads(text)
    found = adapted(document, PLACE)
    assert found.findings == Findings()
    servers: dict[str, Any] = found.document["mcpServers"]
    return servers


@pytest.mark.parametrize("client", WITH_URL)
def test_a_clients_file_names_the_url_the_credential_and_the_headers(client: str) -> None:
    assert read_back(of(client)) == {"gateway": {"url": URL}}
    assert read_back(of(client, **FULL)) == {
        "gateway": {"url": URL, "headers": {"Authorization": "Bearer s3cret"} | KEY}
    }


def test_a_host_that_only_speaks_stdio_starts_a_program_that_speaks_http() -> None:
    started = snippet(BY_STDIO, URL, **FULL, program=("/bin/python", "-m", "gateway"))
    assert read_back(started)["gateway"] == {
        "command": "/bin/python",
        "args": ["-m", "gateway", "stdio", "--url", URL],
        "env": {"MCP_TOKEN": "s3cret", "MCP_SESSION_KEY": "report-writer"},
    }
    far = snippet(BY_STDIO, "http://far.example/mcp", **FULL).file
    assert far is not None and far.entry["args"] == [
        *("-y", "mcp-remote", "http://far.example/mcp", "--header", "Authorization:Bearer ${MCP_TOKEN}"),
        *("--header", "MCP-Gateway-Session-Key:report-writer", "--allow-http"),
    ]
    assert read_back(snippet(BY_STDIO, URL)) == {"gateway": {"command": "npx", "args": ["-y", "mcp-remote", URL]}}
    assert set(CLIENTS) > WITH_KEY


@pytest.mark.parametrize("client", CLIENTS)
def test_a_snippet_needs_no_credential_unless_it_is_told(client: str) -> None:
    plain = snippet(client, URL).text
    assert CREDENTIAL_VARIABLE not in plain and URL in plain
    assert CREDENTIAL_VARIABLE in snippet(client, URL, needs_token=True).text


def test_commands_are_single_lines_for_a_shell() -> None:
    words = {
        one.client: shlex.split(one.text) for one in snippets(URL, session_key="report-writer") if one.language == "sh"
    }
    assert words["claude-code"][:5] == ["claude", "mcp", "add", "--transport", "http"]
    assert words["claude-code"][-2:] == ["--header", "MCP-Gateway-Session-Key: report-writer"]
    assert words["gemini"][-2:] == ["gateway", URL]
    assert json.loads(words["vscode"][2]) == {"name": "gateway", "type": "http", "url": URL, "headers": KEY}
    assert "codex" not in words  # its command takes no headers
    assert shlex.split(snippet("codex", URL, needs_token=True).text)[3:] == [
        *("gateway", "--url", URL, "--bearer-token-env-var", CREDENTIAL_VARIABLE)
    ]


def test_links_hold_the_entry_of_the_clients_file() -> None:
    cursor, vscode = (snippet(client, URL, needs_token=True) for client in ("cursor", "vscode"))
    assert cursor.file and vscode.file
    given = parse_qs(urlsplit(cursor.link).query)
    assert given["name"] == ["gateway"] and json.loads(base64.b64decode(given["config"][0])) == cursor.file.entry
    assert json.loads(unquote(vscode.link.partition("?")[2])) == {"name": "gateway", **vscode.file.entry}


def test_programs_are_whole_programs() -> None:
    for more in ({}, {"needs_token": True}, FULL):
        python = of("python", **more).text
        compile(python, "snippet", "exec")
        assert python.startswith("# pip install mcp\n")
        assert not more or SDK_TIMEOUT in python, "a tool may take longer than the 5 s of httpx2"
    assert of("typescript").text.startswith("// npm install @modelcontextprotocol/client;")


def test_two_programs_of_the_typescript_sdk_with_one_credential_have_two_sessions() -> None:
    made = '"MCP-Gateway-Session-Key": crypto.randomUUID()'
    assert made in snippet("typescript", URL, needs_token=True).text
    assert made not in snippet("typescript", URL).text, "a key of a client without a credential has more random bits"
    assert made not in snippet("typescript", URL, needs_token=True, session_key="report-writer").text


def test_a_server_has_its_own_name_in_clients() -> None:
    assert name_for(URL) == "gateway"
    assert name_for("https://mcp.example.com/servers/my.files/mcp") == "my.files"
    toml = snippet("codex", "https://mcp.example.com/servers/my.files/mcp").file
    assert toml is not None and '[mcp_servers."my.files"]' in toml.text


def test_nothing_of_a_url_or_a_name_becomes_a_word_of_its_own() -> None:
    url, name = "http://x/mcp?a=1;rm -rf ~'\"", "a; touch pwn; #"
    for one in snippets(url, name=name):
        if one.language == "sh" and one.client != "vscode":
            words = {url} if one.client == "inspector" else {url, name}
            assert words <= {*shlex.split(one.text)}, one.client
