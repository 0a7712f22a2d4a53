"""Write what a client needs to use a gateway: a command, an entry for its configuration file, a link. Pure: no I/O.

The command line, the console and the documents use the same table. The forms are those of the clients' documentation,
which each snippet names. No snippet contains a credential: the client reads it from a variable.
"""

import base64
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict
from urllib.parse import quote

from gateway.config.addresses import is_of_this_machine
from gateway.config.sessions import KEY_HEADER, KEY_VARIABLE

CREDENTIAL_VARIABLE: Final = "MCP_TOKEN"
"""The variable with the API key or access token of a client. It does not begin with `MCP_GATEWAY_`, as settings do."""
PLACEHOLDER: Final = f"<{CREDENTIAL_VARIABLE}>"
"""The text that a person replaces by the credential, in files of hosts that read no variables."""
WITH_KEY: Final = frozenset({"claude-desktop", "lm-studio", "windsurf", "zed"})
"""Clients that get a session key by default: apps that a person starts again and again, with a file of that person
alone."""

Language = Literal["sh", "json", "toml", "python", "typescript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """An entry in a client's configuration file: `entry` is the value, `at` the path of keys to it.

    `path` begins with `~/` if the file is the user's; otherwise it is a file in the project's folder.
    """

    path: str
    at: tuple[str, ...]
    entry: dict[str, Any]
    language: Literal["json", "toml"] = "json"

    @property
    def text(self) -> str:
        """Return the content of a file with only this entry."""
        if self.language == "toml":
            lines = [f"{key} = {_toml(value)}" for key, value in self.entry.items()]
            return "\n".join([f"[{'.'.join(map(_toml_key, self.at))}]", *lines]) + "\n"
        document = self.entry
        for key in reversed(self.at):
            document = {key: document}
        return json.dumps(document, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """How one client connects to the gateway: what `connect` and the console show."""

    client: str
    """One of `CLIENTS`."""
    title: str
    """The client's name for people."""
    documentation: str
    """The page of the client's documentation that describes this."""
    language: Language
    text: str
    """The shortest way to connect, written in `language`: a command, a program, or an entry."""
    file: ClientFile | None = None
    """The entry for the client's configuration file; None if the client has no such file."""
    link: str = ""
    """A deep link that opens the client; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """What a client has to know of the gateway. `name`: the server's name in the client. `needs_token`: the client
    sends a credential. `program`: the words that start this gateway's command on the client's machine; empty if it may
    be missing."""

    url: str
    name: str
    needs_token: bool
    session_key: str = ""
    program: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers to send, without the credential."""
        return {KEY_HEADER: self.session_key} if self.session_key else {}

    def headers_with(self, variable: str) -> dict[str, str]:
        """Return all headers to send. `variable` is the client's syntax for the value of `CREDENTIAL_VARIABLE`."""
        credential = {"Authorization": f"Bearer {variable}"} if self.needs_token else {}
        return credential | self.headers

    def options(self, option: str = "--header") -> str:
        """Return the headers as options of a shell command, each with a space before it. `option` is the option's name.
        The shell replaces the variable `CREDENTIAL_VARIABLE` with the credential."""
        credential = f' {option} "Authorization: Bearer ${CREDENTIAL_VARIABLE}"' if self.needs_token else ""
        more = [f" {option} {shlex.quote(f'{name}: {value}')}" for name, value in self.headers.items()]
        return credential + "".join(more)

    def entry(self, variable: str, **more: Any) -> dict[str, Any]:
        """Return a JSON entry with the fields in `more`, and with the field `headers` if there are headers to send.
        `variable`: see `headers_with`."""
        headers = self.headers_with(variable)
        return more | ({"headers": headers} if headers else {})


class _Way(TypedDict):
    """How one client connects: those fields of its `Snippet` that differ from client to client."""

    language: Language
    text: str
    file: NotRequired[ClientFile]
    link: NotRequired[str]


def name_for(url: str) -> str:
    """Return a name for the server that clients find at a URL: `files` for `/servers/files/mcp`, `gateway` for other
    URLs."""
    found = re.search(r"/servers/([A-Za-z0-9._-]+)/mcp$", url)
    return found[1] if found else "gateway"


def snippets(url: str, *, name: str = "", needs_token: bool = False, session_key: str = "") -> list[Snippet]:
    """Return the snippets of all clients for the gateway at `url`. `snippet` describes the other arguments."""
    return [snippet(client, url, name=name, needs_token=needs_token, session_key=session_key) for client in CLIENTS]


def snippet(
    client: str,
    url: str,
    *,
    name: str = "",
    needs_token: bool = False,
    session_key: str = "",
    program: tuple[str, ...] = (),
) -> Snippet:
    """Return how one of `CLIENTS` uses the gateway at `url`, which ends with `/mcp`.

    `name`: the server's name in the client; empty: `name_for(url)`. `needs_token`: the gateway requires a credential,
    which the client reads from `CREDENTIAL_VARIABLE`. `session_key`: the key of the client's session. `program`: the
    words that start this gateway's command on the client's machine, for hosts that speak only stdio; without it, these
    hosts start mcp-remote.

    Raises:
        KeyError: there is no such client.
    """
    title, documentation, way = _CLIENTS[client]
    name = name or name_for(url)
    found = way(_Connection(url=url, name=name, needs_token=needs_token, session_key=session_key, program=program))
    return Snippet(client=client, title=title, documentation=documentation, **found)


def _claude_code(to: _Connection) -> _Way:
    return _Way(
        language="sh",
        text=f"claude mcp add --transport http {shlex.quote(to.name)} {shlex.quote(to.url)}{to.options()}\n",
        file=ClientFile(
            path=".mcp.json",
            at=("mcpServers", to.name),
            entry=to.entry(f"${{{CREDENTIAL_VARIABLE}}}", type="http", url=to.url),
        ),
    )


def _cursor(to: _Connection) -> _Way:
    file = ClientFile(
        path="~/.cursor/mcp.json",
        at=("mcpServers", to.name),
        entry=to.entry(f"${{env:{CREDENTIAL_VARIABLE}}}", url=to.url),
    )
    config = quote(base64.b64encode(_compact(file.entry).encode()).decode(), safe="")
    return _Way(
        language="json",
        text=file.text,
        file=file,
        link=f"cursor://anysphere.cursor-deeplink/mcp/install?name={quote(to.name, safe='')}&config={config}",
    )


def _vscode(to: _Connection) -> _Way:
    entry = to.entry(f"${{env:{CREDENTIAL_VARIABLE}}}", type="http", url=to.url)
    named = _compact({"name": to.name} | entry)
    return _Way(
        language="sh",
        text=f"code --add-mcp {shlex.quote(named)}\n",
        file=ClientFile(path=".vscode/mcp.json", at=("servers", to.name), entry=entry),
        link=f"vscode:mcp/install?{quote(named, safe='')}",
    )


def _codex(to: _Connection) -> _Way:
    entry: dict[str, Any] = {"url": to.url}
    if to.needs_token:
        entry["bearer_token_env_var"] = CREDENTIAL_VARIABLE
    if to.headers:
        entry["http_headers"] = dict(to.headers)
    file = ClientFile(path="~/.codex/config.toml", at=("mcp_servers", to.name), entry=entry, language="toml")
    credential = f" --bearer-token-env-var {CREDENTIAL_VARIABLE}" if to.needs_token else ""
    command = f"codex mcp add {shlex.quote(to.name)} --url {shlex.quote(to.url)}{credential}\n"
    return _Way(
        # The command has no option for headers.
        language="toml" if to.headers else "sh",
        text=file.text if to.headers else command,
        file=file,
    )


def _gemini(to: _Connection) -> _Way:
    return _Way(
        language="sh",
        text=f"gemini mcp add --transport http{to.options()} {shlex.quote(to.name)} {shlex.quote(to.url)}\n",
        file=ClientFile(
            path="~/.gemini/settings.json",
            at=("mcpServers", to.name),
            entry=to.entry(f"${{{CREDENTIAL_VARIABLE}}}", httpUrl=to.url),
        ),
    )


def _in_file(file: ClientFile) -> _Way:
    """Return how a client connects that has no command for it: by the entry `file` in a JSON file."""
    return _Way(language="json", text=file.text, file=file)


def _claude_desktop(to: _Connection) -> _Way:
    folder = "Library/Application Support" if sys.platform == "darwin" else ".config"
    return _in_file(
        ClientFile(path=f"~/{folder}/Claude/claude_desktop_config.json", at=("mcpServers", to.name), entry=_started(to))
    )


def _started(to: _Connection) -> dict[str, Any]:
    """Return the entry for a host that speaks only stdio. The host starts a program that forwards the messages over
    HTTP: this gateway's `stdio --url` if `to.program` is known, otherwise mcp-remote."""
    env = {CREDENTIAL_VARIABLE: PLACEHOLDER} if to.needs_token else {}
    if to.program:
        command, args = to.program[0], [*to.program[1:], "stdio", "--url", to.url]
        env |= {KEY_VARIABLE: to.session_key} if to.session_key else {}
    else:
        # mcp-remote replaces the variable. No space after the colon: some hosts cut arguments at spaces.
        headers = [f"{name}:{value}" for name, value in to.headers_with(f"${{{CREDENTIAL_VARIABLE}}}").items()]
        command, args = "npx", ["-y", "mcp-remote", to.url]
        args += [word for header in headers for word in ("--header", header)]
        args += [] if to.url.startswith("https:") or is_of_this_machine(to.url) else ["--allow-http"]
    return {"command": command, "args": args} | ({"env": env} if env else {})


def _zed(to: _Connection) -> _Way:
    return _in_file(
        ClientFile(
            path="~/.config/zed/settings.json", at=("context_servers", to.name), entry=to.entry(PLACEHOLDER, url=to.url)
        )
    )


def _windsurf(to: _Connection) -> _Way:
    return _in_file(
        ClientFile(
            path="~/.codeium/windsurf/mcp_config.json",
            at=("mcpServers", to.name),
            entry=to.entry(f"${{env:{CREDENTIAL_VARIABLE}}}", serverUrl=to.url),
        )
    )


def _lm_studio(to: _Connection) -> _Way:
    return _in_file(
        ClientFile(path="~/.lmstudio/mcp.json", at=("mcpServers", to.name), entry=to.entry(PLACEHOLDER, url=to.url))
    )


def _inspector(to: _Connection) -> _Way:
    # On an old Node, npx would choose an old version without these options instead of saying what is wrong.
    program = "npx -y @modelcontextprotocol/inspector@latest"
    return _Way(
        language="sh",
        text=f"{program} --transport http --server-url {shlex.quote(to.url)}{to.options()}\n",
    )


def _python(to: _Connection) -> _Way:
    headers = to.headers_with("")
    imports = ["import asyncio", *(["import os"] if to.needs_token else []), ""]
    opened, listed = f"Client({_quoted(to.url)})", "[tool.name for tool in (await client.list_tools()).tools]"
    block = [f"    async with {opened} as client:", f"        print({listed})"]
    if headers:
        written = [f"{_quoted(key)}: {_quoted(value)}" for key, value in to.headers.items()]
        if to.needs_token:
            written.insert(0, f'"Authorization": f"Bearer {{os.environ[{CREDENTIAL_VARIABLE!r}]}}"')
        imports += ["import httpx2"]
        block = [
            f"    headers = {{{', '.join(written)}}}",
            "    timeout = httpx2.Timeout(30, read=300)  # as the SDK has it; httpx2 waits 5 s for a result",
            "    async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:",
            f"        transport = streamable_http_client({_quoted(to.url)}, http_client=http)",
            "        async with Client(transport) as client:",
            f"            print({listed})",
        ]
    imports += ["from mcp.client import Client"]
    if headers:
        imports += ["from mcp.client.streamable_http import streamable_http_client"]
    lines = ["# pip install mcp", *imports, "", "", "async def main():", *block, "", "", "asyncio.run(main())"]
    return _Way(language="python", text="\n".join(lines) + "\n")


def _typescript(to: _Connection) -> _Way:
    headers = [f"{_quoted(key)}: {_quoted(value)}" for key, value in to.headers.items()]
    if to.needs_token:
        headers.insert(0, f"Authorization: `Bearer ${{process.env.{CREDENTIAL_VARIABLE}}}`")
        if not to.session_key:
            # The SDK brings no session back: two programs with one credential would share the default session.
            headers.append(f"{_quoted(KEY_HEADER)}: crypto.randomUUID()")
    options = f", {{\n  requestInit: {{ headers: {{ {', '.join(headers)} }} }},\n}}" if headers else ""
    lines = [
        "// npm install @modelcontextprotocol/client; save this as client.mjs; node client.mjs",
        'import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";',
        "",
        'const client = new Client({ name: "example", version: "1.0.0" });',
        f"const transport = new StreamableHTTPClientTransport(new URL({_quoted(to.url)}){options});",
        "await client.connect(transport);",
        "console.log((await client.listTools()).tools.map((tool) => tool.name));",
        "await client.close();",
    ]
    return _Way(language="typescript", text="\n".join(lines) + "\n")


_CLIENTS: Final[Mapping[str, tuple[str, str, Callable[[_Connection], _Way]]]] = {
    "claude-code": ("Claude Code", "https://code.claude.com/docs/en/mcp", _claude_code),
    "cursor": ("Cursor", "https://cursor.com/docs/mcp", _cursor),
    "vscode": ("VS Code", "https://code.visualstudio.com/docs/copilot/reference/mcp-configuration", _vscode),
    "codex": ("Codex", "https://developers.openai.com/codex/mcp", _codex),
    "gemini": ("Gemini CLI", "https://geminicli.com/docs/tools/mcp-server/", _gemini),
    "claude-desktop": (
        "Claude Desktop",
        "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
        _claude_desktop,
    ),
    "zed": ("Zed", "https://zed.dev/docs/ai/mcp", _zed),
    "windsurf": ("Windsurf", "https://docs.windsurf.com/windsurf/cascade/mcp", _windsurf),
    "lm-studio": ("LM Studio", "https://lmstudio.ai/docs/app/mcp", _lm_studio),
    "inspector": (
        "MCP Inspector (Node 22.19 or later)",
        "https://modelcontextprotocol.io/docs/tools/inspector",
        _inspector,
    ),
    "python": ("Python", "https://github.com/modelcontextprotocol/python-sdk", _python),
    "typescript": ("TypeScript", "https://github.com/modelcontextprotocol/typescript-sdk", _typescript),
}
"""The title of each client, its documentation, and how it connects."""
CLIENTS: Final = tuple(_CLIENTS)
"""The names of the clients, in the order in which they are shown."""


def _quoted(text: str) -> str:
    """Return a string literal that is valid in Python, JavaScript, JSON and TOML."""
    return json.dumps(text)


def _compact(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml_key(key)} = {_toml(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return _quoted(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)
