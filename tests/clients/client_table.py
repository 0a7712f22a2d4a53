"""What clients do with their sessions: the programs that are run, what each is expected to do, and the table of it.

`python -m tests.clients.client_table` runs every client and prints the table (`make clients`). Each library is
installed in an environment of its own under `.cache/`.
"""

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, UNLIMITED, running_gateway, server
from tests.tools.obtain import node, npm_packages, python_with

PROGRAMS: Final = Path(__file__).parent / "programs"
KEY: Final = "MCP-Gateway-Session-Key"
MODES: Final = ("no credential", "API key", "session key")
_SDKS: Final = {"@modelcontextprotocol/sdk": "1.32.2", "@modelcontextprotocol/client": "2.4.0"}

OWN: Final = "own, until it closes"
LASTING: Final = "own, lasting"
DEFAULT: Final = "default session"
NEW: Final = "new with each call"

Command = Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One client. `line` sends a session key, where `headers` or KEY hold it. `expected`: the outcome in each of
    `MODES`."""

    name: str
    program: str
    command: Command
    line: str
    arguments: Command = list
    expected: tuple[str, str, str] = (OWN, OWN, LASTING)


def _python(**packages: str) -> Command:
    return lambda: [str(python_with(packages))]


def _typescript() -> list[str]:
    folder = npm_packages(_SDKS)
    shutil.copy(PROGRAMS / "typescript.mjs", folder)  # beside node_modules, where its imports are looked for
    return [str(node())]


def _npm_program(package: str, version: str, file: str) -> Command:
    return lambda: [str(node()), str(npm_packages({package: version}) / "node_modules" / file)]


def _this_python() -> list[str]:
    return [sys.executable]


def _words(*words: str) -> Command:
    return lambda: [*words]


def _mcp_remote(protocol: str) -> Command:
    return lambda: [*_npm_program("mcp-remote", "0.15.1", "mcp-remote/dist/proxy.js")(), protocol]


_HTTPX: Final = "httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300))"
_SCRIPT: Final = "{ requestInit: { headers } }"
_REMOTE: Final = "mcp-remote URL --header MCP-Gateway-Session-Key:KEY"
_FORGETS: Final = (NEW, DEFAULT, LASTING)
_ONCE: Final = (NEW, NEW, LASTING)

_ROWS: Final = (
    Row("Python SDK 1.30", "python_sdk_1.py", _python(mcp="==1.30.0"), "streamablehttp_client(url, headers=headers)"),
    Row("Python SDK 2.3, 2025-11-25", "python_sdk_2.py", _this_python, _HTTPX, _words("legacy")),
    Row("Python SDK 2.3, 2026-07-28", "python_sdk_2.py", _this_python, _HTTPX, _words("2026-07-28")),
    Row(
        "FastMCP 4.1",
        "fastmcp_client.py",
        _python(fastmcp="==4.1.0"),
        "StreamableHttpTransport(url, headers=headers)",
    ),
    Row("TypeScript SDK 1.32", "typescript.mjs", _typescript, _SCRIPT, _words("1", "legacy")),
    Row("TypeScript SDK 2.4, 2025-11-25", "typescript.mjs", _typescript, _SCRIPT, _words("2", "legacy")),
    Row("TypeScript SDK 2.4, 2026-07-28", "typescript.mjs", _typescript, _SCRIPT, _words("2", "modern"), _FORGETS),
    Row(
        "TypeScript SDK 2.4, 2026-07-28, echoing `fetch`",
        "typescript.mjs",
        _typescript,
        _SCRIPT,
        _words("2-echo", "modern"),
    ),
    Row(
        "LangChain MCP adapters 0.3",
        "langchain_adapters.py",
        _python(**{"langchain-mcp-adapters": "==0.3.2"}),
        '{"transport": "streamable_http", "url": url, "headers": headers}',
        expected=_ONCE,
    ),
    Row(
        "OpenAI Agents 0.24",
        "openai_agents.py",
        _python(**{"openai-agents": "==0.24.0"}),
        'params = {"url": url, "headers": headers}',
    ),
    Row(
        "Pydantic AI 2.68",
        "pydantic_ai_client.py",
        _python(**{"pydantic-ai-slim[mcp]": "==2.68.0"}),
        "MCPToolset(url, headers=headers)",
    ),
    Row(
        "Google ADK 2.13",
        "google_adk.py",
        _python(**{"google-adk[mcp]": "==2.13.0"}),
        "StreamableHTTPConnectionParams(url=url, headers=headers)",
    ),
    Row("mcp-remote 0.15, 2025-11-25", "mcp_remote.py", _this_python, _REMOTE, _mcp_remote("legacy")),
    Row("mcp-remote 0.15, 2026-07-28", "mcp_remote.py", _this_python, _REMOTE, _mcp_remote("auto")),
    Row(
        "Inspector 2.12, command line",
        "inspector.py",
        _this_python,
        '--header "MCP-Gateway-Session-Key: KEY"',
        _npm_program("@modelcontextprotocol/inspector", "2.12.0", ".bin/mcp-inspector"),
        _ONCE,
    ),
    Row(
        "curl, 2026-07-28",
        "curl.py",
        _this_python,
        "curl -H 'MCP-Gateway-Session-Key: KEY'",
        expected=_FORGETS,
    ),
)
ROWS: Final = {row.name: row for row in _ROWS}
IN_MAKE_TEST: Final = sorted(name for name in ROWS if name.startswith(("Python SDK", "TypeScript SDK", "curl")))
"""The others are run by `make clients` alone."""


@dataclass(frozen=True, slots=True)
class Gateways:
    """The URLs of a gateway that serves everybody, and of one that asks for an API key."""

    anonymous: str
    keyed: str

    def specification(self, api_key: str) -> dict[str, Any]:
        """What a program is to do (`programs/driver.py`)."""
        credential = bearer(api_key)
        keys = [{KEY: secrets.token_hex(16)} for _ in range(2)]
        return {
            "no credential": {"url": self.anonymous, "one": {}, "two": {}},
            "API key": {"url": self.keyed, "one": credential, "two": credential},
            "session key": {"url": self.anonymous, "one": keys[0], "two": keys[1]},
        }


@contextlib.contextmanager
def gateways() -> Iterator[Gateways]:
    """Both gateways, each with the demo server, whose tool `count` tells the sessions apart."""
    keys = {"api_keys": {"alice": sha256(KEYS["alice"])}}
    servers = {"main": server(DEMO)}
    with (
        running_gateway(servers, options={"policy": UNLIMITED}) as anonymous,
        running_gateway(servers, options={"policy": UNLIMITED, **keys}) as keyed,
    ):
        yield Gateways(anonymous.url, keyed.url)


def outcomes(row: Row, at: Gateways) -> dict[str, str]:
    """Run a client in each mode, and say what became of its sessions."""
    specification = json.dumps(at.specification(KEYS["alice"]))
    program = PROGRAMS / row.program
    command = row.command()
    if program.suffix == ".mjs":
        program = npm_packages(_SDKS) / row.program
    typed = [*command, str(program), specification, *row.arguments()]
    finished = subprocess.run(typed, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    answered = json.loads(finished.stdout.splitlines()[-1])
    return {
        mode: _outcome(**{who: [int(n) for n in counts] for who, counts in answered[mode].items()}) for mode in MODES
    }


def _outcome(one: list[int], two: list[int], again: list[int]) -> str:
    """What the counts of two clients at once, and of a third one after them, say. Anything else is shown as it is."""
    if one == two == [1, 1, 1] and again == [1, 1]:
        return NEW
    if one == two == [1, 2, 3] and again == [1, 2]:
        return OWN
    if one == two == [1, 2, 3] and again == [4, 5]:
        return LASTING
    if sorted(one + two) == [1, 2, 3, 4, 5, 6] and again == [7, 8]:
        return DEFAULT
    return f"one {one}, two {two}, again {again}"


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """The table in Markdown, as docs/clients.md has it."""
    lines = [f"| client | {' | '.join(MODES)} | the line |", "|---|---|---|---|---|"]
    for name, found in results.items():
        lines.append(f"| {name} | {' | '.join(found[mode] for mode in MODES)} | `{ROWS[name].line}` |")
    return "\n".join(lines) + "\n"


def expected() -> str:
    """The table as it has to be."""
    return table({name: dict(zip(MODES, row.expected, strict=True)) for name, row in ROWS.items()})


def main() -> int:
    """Run all clients and print the table. 1 if one of them does something else than expected."""
    results = {}
    with gateways() as at:
        for name, row in ROWS.items():
            print(f"running {name}", file=sys.stderr)
            try:
                results[name] = outcomes(row, at)
            except Exception as error:
                results[name] = dict.fromkeys(MODES, f"failed: {error!s:.300}")
    print(table(results))
    return int(table(results) != expected())


if __name__ == "__main__":
    sys.exit(main())
