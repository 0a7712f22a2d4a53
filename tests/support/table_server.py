"""A stdio server that is a table, which a test writes beside its assertions. Standard library only: it starts fast.

`table_server.py TABLE [LOG]`: TABLE is JSON, or the path of a file of it that is read anew for each request. Each
request is appended to the file LOG, as `PID METHOD NAME`. Members of the table:

- `name`, `era`, `capabilities`, `scope`, `ttl_ms`: as those of `StdioServer`;
- `answers`: steps by pattern. A pattern names a method, or a method and the name, the URI or the cursor that a request
  has, and may have `*`. The first that matches counts;
- `first`: the steps before the first message is read.

A step is an object, the result, or one of: `["error", CODE, MESSAGE]`, `["exit", CODE]`, `["sleep", SECONDS]`,
`["until", FILE]` (it exists), `["stderr", LINE]`, `["stdout", LINE]`, `["stdout", LINE, SECONDS]` (again and again),
`["send", MESSAGE]`, `["announce"]` (on all subscriptions), `["add", METHOD, ITEM]` (to the list that METHOD returns).

Filled in are `@PID`, `@ID`, `@COUNT` (of requests), `@LINE` (as it came), `@SAID` (method and parameters),
`@ARGUMENTS`, `@URI`, `@ARGV` and `@WHO` (the principal).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, Refusal, StdioServer, text, tools

PROGRAM: Final = os.path.abspath(__file__)  # `pathlib` takes long to import
Table = dict[str, Any]

TOKEN: Final = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
GOOD: Final[Table] = {
    "era": "legacy",
    "capabilities": {"tools": {}, "prompts": {}},
    "ttl_ms": 60_000,
    "answers": {
        "tools/list": tools("who"),
        "prompts/list": {"prompts": [{"name": "greet"}]},
        "tools/call": text("pid @PID"),
    },
}
EXITS: Final[Table] = GOOD | {
    "first": [
        ["stderr", "could not open the database: db_password=hunter2-of-ours"],
        ["stderr", f"token {TOKEN} was refused"],
        ["exit", 3],
    ]
}
CHANGED: Final = {"method": "notifications/tools/list_changed"}
HANGS: Final[Table] = GOOD | {"first": [["stderr", "waiting for a license"], ["sleep", 600]]}


def slow(seconds: float) -> Table:
    """A good server that takes its time to start."""
    return GOOD | {"first": [["sleep", seconds]]}


def listing(era: str = "legacy", **lists: list[Any]) -> Table:
    """A server with these lists, which says what came to every request, of what is listed or not. Its tool `relist`
    notifies of changed tools."""
    listed = {
        f"{method}/list": {key: lists.get(key, [])}
        for method, key in (
            ("tools", "tools"),
            ("prompts", "prompts"),
            ("resources", "resources"),
            ("resources/templates", "resourceTemplates"),
        )
    }
    answers = {
        "tools/call relist": [["send", CHANGED], text("@SAID")],
        "tools/call": text("@SAID"),
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "@SAID"}}]},
        "resources/read": {"contents": [{"uri": "@URI", "text": "@SAID"}]},
        "completion/complete": {"completion": {"values": ["@SAID"]}},
        "*": {"did": "@SAID"},
    }
    can = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
    return {"era": era, "capabilities": can, "answers": listed | answers}


def table_server(
    table: Table | os.PathLike[str], *arguments: str, log: os.PathLike[str] | str = "", **more: Any
) -> dict[str, Any]:
    """An entry of `mcpServers`. `arguments` are more than the server needs; `more`: further members of the entry."""
    given = json.dumps(table) if isinstance(table, dict) else str(table)
    return {"command": sys.executable, "args": [PROGRAM, given, str(log), *arguments], **more}


class TableServer:
    """The server of one table."""

    def __init__(self, given: str, log: str = "", *_: str) -> None:
        self._given, self._log = given, log
        table = self._table()
        self._count = 0
        self._added: dict[str, list[Any]] = {}
        self._server = StdioServer(
            table.get("name", "table"),
            {"*": self._answer},
            table.get("capabilities", {"tools": {}}),
            era=table.get("era", ""),
            ttl_ms=table.get("ttl_ms", 0),
            scope=table.get("scope", "public"),
            hears=self._note,
        )
        self._verbs: dict[str, Callable[..., object]] = {
            "error": self._error,
            "exit": os._exit,
            "sleep": time.sleep,
            "until": self._until,
            "stderr": self._stderr,
            "stdout": self._stdout,
            "send": self._server.send,
            "announce": self._server.announce,
            "add": self._add,
        }

    def run(self) -> None:
        self._do(self._table().get("first", []), {})
        self._server.run()

    def _table(self) -> Any:
        if self._given.startswith("{"):
            return json.loads(self._given)
        with open(self._given) as file:
            return json.load(file)

    def _note(self, call: Call) -> None:
        self._count += 1
        if self._log:
            with open(self._log, "a") as log:
                log.write(f"{os.getpid()} {call.method} {_about(call)}".rstrip() + "\n")

    def _answer(self, call: Call) -> Any:
        for pattern, steps in self._table()["answers"].items():
            if any(fnmatchcase(each, pattern) for each in (call.method, f"{call.method} {_about(call)}")):
                result = self._do(steps, self._facts(call))
                for items in result.values() if call.method in self._added else ():
                    items += self._added[call.method]
                return result
        raise Refusal

    def _facts(self, call: Call) -> dict[str, str]:
        params = {key: value for key, value in call.params.items() if key != "_meta"}
        return {
            "@ID": json.dumps(call.id),
            "@COUNT": str(self._count),
            "@LINE": call.line.decode(),
            "@SAID": json.dumps({"did": call.method, **params}),
            "@ARGUMENTS": json.dumps(call.arguments, sort_keys=True),
            "@URI": _about(call),
        }

    def _do(self, steps: Any, facts: dict[str, str]) -> Any:
        """Take the steps; returns the result, if one of them is."""
        facts |= {"@PID": str(os.getpid()), "@ARGV": " ".join(sys.argv[3:])}
        facts["@WHO"] = os.environ.get("MCP_SESSION_PRINCIPAL", "")
        filled = json.dumps([steps] if isinstance(steps, dict) else steps)
        for name, value in facts.items():
            filled = filled.replace(name, json.dumps(value)[1:-1])
        for step in json.loads(filled):
            if isinstance(step, dict):
                return step
            self._verbs[step[0]](*step[1:])

    def _error(self, *given: Any) -> None:
        raise Refusal(*given)

    def _until(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.01)

    def _stderr(self, line: str) -> None:
        os.write(2, f"{line}\n".encode())

    def _stdout(self, line: str, every_s: float | None = None) -> None:
        self._server.write(f"{line}\n".encode())
        while every_s is not None:
            time.sleep(every_s)
            self._server.write(f"{line}\n".encode())

    def _add(self, method: str, item: Any) -> None:
        self._added.setdefault(method, []).append(item)


def _about(call: Call) -> str:
    return str(call.params.get("uri") or call.params.get("cursor") or call.name)


if __name__ == "__main__":
    TableServer(*sys.argv[1:]).run()
