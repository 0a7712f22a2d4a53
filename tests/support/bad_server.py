"""A stdio server for tests that does one thing wrong, or takes its time. It needs no SDK, so that it starts quickly.

`argv[1]` says what it does:

- `good`: nothing is wrong;
- `hang`: it writes a line to stderr and answers nothing;
- `garbage`: it writes lines that are not JSON, for ever; `usage`: one such line, and then it hangs;
- `banner`: it writes two such lines first;
- `exit`: it writes to stderr and exits with code 3; `refuse`: the same, with its arguments;
- `crash`: it writes to stderr and exits with code 7 when its tool is called;
- `slow`: it waits `argv[2]` seconds before it reads; `slow-lists`: it takes that long for each list.

If `argv[3]` names an existing file, it is `good`. `modern` among the arguments: it speaks both eras.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

INFO = {"name": "bad", "version": "1"}
CAPABILITIES: dict[str, Any] = {"tools": {}, "prompts": {}}
LISTS: dict[str, Any] = {
    "tools/list": {"tools": [{"name": "who", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "greet"}]},
}
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def send(message: dict[str, Any]) -> None:
    say(json.dumps({"jsonrpc": "2.0", **message}))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(*lines: str) -> None:
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": INFO}
    if method == "server/discover" and "modern" in sys.argv:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "serverInfo": INFO}
        return {**found, "ttlMs": 60_000, "cacheScope": "public"}
    if method in LISTS:
        return {**LISTS[method], "ttlMs": 60_000, "cacheScope": "public"}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"pid {os.getpid()}"}]}
    return None


def begin(what: str, seconds: float) -> None:
    """What it does before it reads its first message."""
    if what == "exit":
        complain("could not open the database: db_password=hunter2-of-ours", f"token {TOKEN} was refused")
        sys.exit(3)
    if what == "refuse":
        complain(f"unrecognized arguments: {' '.join(sys.argv[1:])}")
        sys.exit(3)
    if what in ("garbage", "usage"):
        say("Usage: bad_server [options]")
    while what == "garbage":
        time.sleep(0.02)
        say("Usage: bad_server [options]")
    if what == "banner":
        say("*** Welcome ***")
        say("listening on stdio")
    if what in ("hang", "usage"):
        complain("waiting for a license")
        time.sleep(600)
    if what == "slow":
        time.sleep(seconds)


def main() -> None:
    what = sys.argv[1]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 and what != "refuse" else 0.0
    if len(sys.argv) > 3 and Path(sys.argv[3]).exists():
        what = "good"
    begin(what, seconds)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        if what == "crash" and method == "tools/call":
            complain("Traceback (most recent call last):", f"ValueError: {TOKEN} is of no use")
            os._exit(7)
        if what == "slow-lists" and method.endswith("/list"):
            time.sleep(seconds)
        found = result(method, params)
        if found is None:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
            send({"id": message["id"], "result": {"resultType": "complete", **found} if modern else found})


if __name__ == "__main__":
    main()
