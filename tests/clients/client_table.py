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

__all__ = ["MODES", "PROGRAMS", "ROWS", "Gateways", "Row", "gateways", "outcomes", "table"]

PROGRAMS: Final = Path(__file__).parent / "programs"
KEY: Final = "MCP-Gateway-Session-Key"
MODES: Final = ("no credential", "API key", "session key")
_SDKS: Final = {"@modelcontextprotocol/sdk": "1.32.2", "@modelcontextprotocol/client": "2.4.0"}

OWN: Final = "own, until it closes"
LASTING: Final = "own, lasting"
DEFAULT: Final = "default session"
NEW: Final = "new with each call"

Command = Callable[[], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One client. `expected`: the outcome in each of `MODES`. `line` sends a session key, where `headers` or KEY hold
    it. `in_make_test`: the client is run by `make test`, not by `make clients` alone."""

    name: str
    program: str
    command: Command
    arguments: Command = list
    expected: tuple[str, str, str] = (OWN, OWN, LASTING)
    line: str
    in_make_test: bool = False


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


_MCP_REMOTE: Final = _npm_program("mcp-remote", "0.15.1", "mcp-remote/dist/proxy.js")
_SCRIPT_LINE: Final = "{ requestInit: { headers } }"

ROWS: Final = {
    row.name: row
    for row in (
        Row(
            name="Python SDK 1.30",
            program="python_sdk_1.py",
            command=_python(mcp="==1.30.0"),
            line="streamablehttp_client(url, headers=headers)",
            in_make_test=True,
        ),
        *(
            Row(
                name=f"Python SDK 2.3, {era}",
                program="python_sdk_2.py",
                command=_this_python,
                arguments=lambda mode=mode: [mode],  # type: ignore[misc]  # a default binds it now
                line="httpx2.AsyncClient(headers=headers)",
                in_make_test=True,
            )
            for era, mode in (("2025-11-25", "legacy"), ("2026-07-28", "2026-07-28"))
        ),
        Row(
            name="FastMCP 4.1",
            program="fastmcp_client.py",
            command=_python(fastmcp="==4.1.0"),
            line="StreamableHttpTransport(url, headers=headers)",
        ),
        Row(
            name="TypeScript SDK 1.32",
            program="typescript.mjs",
            command=_typescript,
            arguments=lambda: ["1", "legacy"],
            line=_SCRIPT_LINE,
            in_make_test=True,
        ),
        Row(
            name="TypeScript SDK 2.4, 2025-11-25",
            program="typescript.mjs",
            command=_typescript,
            arguments=lambda: ["2", "legacy"],
            line=_SCRIPT_LINE,
            in_make_test=True,
        ),
        Row(
            name="TypeScript SDK 2.4, 2026-07-28",
            program="typescript.mjs",
            command=_typescript,
            arguments=lambda: ["2", "modern"],
            expected=(NEW, DEFAULT, LASTING),
            line=_SCRIPT_LINE,
            in_make_test=True,
        ),
        Row(
            name="TypeScript SDK 2.4, 2026-07-28, echoing `fetch`",
            program="typescript.mjs",
            command=_typescript,
            arguments=lambda: ["2-echo", "modern"],
            line=_SCRIPT_LINE,
            in_make_test=True,
        ),
        Row(
            name="LangChain MCP adapters 0.3",
            program="langchain_adapters.py",
            command=_python(**{"langchain-mcp-adapters": "==0.3.2"}),
            expected=(NEW, NEW, LASTING),
            line='{"transport": "streamable_http", "url": url, "headers": headers}',
        ),
        Row(
            name="OpenAI Agents 0.24",
            program="openai_agents.py",
            command=_python(**{"openai-agents": "==0.24.0"}),
            line='params = {"url": url, "headers": headers}',
        ),
        Row(
            name="Pydantic AI 2.68",
            program="pydantic_ai_client.py",
            command=_python(**{"pydantic-ai-slim[mcp]": "==2.68.0"}),
            line="MCPToolset(url, headers=headers)",
        ),
        Row(
            name="Google ADK 2.13",
            program="google_adk.py",
            command=_python(**{"google-adk[mcp]": "==2.13.0"}),
            line="StreamableHTTPConnectionParams(url=url, headers=headers)",
        ),
        *(
            Row(
                name=f"mcp-remote 0.15, {era}",
                program="mcp_remote.py",
                command=_this_python,
                arguments=lambda protocol=protocol: [*_MCP_REMOTE(), protocol],  # type: ignore[misc]  # as above
                line="mcp-remote URL --header MCP-Gateway-Session-Key:KEY",
            )
            for era, protocol in (("2025-11-25", "legacy"), ("2026-07-28", "auto"))
        ),
        Row(
            name="Inspector 2.12, command line",
            program="inspector.py",
            command=_this_python,
            arguments=_npm_program("@modelcontextprotocol/inspector", "2.12.0", ".bin/mcp-inspector"),
            expected=(NEW, NEW, LASTING),
            line='--header "MCP-Gateway-Session-Key: KEY"',
        ),
        Row(
            name="curl, 2026-07-28",
            program="curl.py",
            command=_this_python,
            expected=(NEW, DEFAULT, LASTING),
            line="curl -H 'MCP-Gateway-Session-Key: KEY'",
            in_make_test=True,
        ),
    )
}


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
