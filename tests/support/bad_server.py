"""A stdio server for tests that does one thing wrong, or takes its time.

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

import os
import sys
import time

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, StdioServer, text, tools

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def complain(*lines: str) -> None:
    os.write(2, "".join(f"{line}\n" for line in lines).encode())


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
    if len(sys.argv) > 3 and os.path.exists(sys.argv[3]):
        what = "good"
    begin(what, seconds)

    def hears(call: Call) -> None:
        if what == "crash" and call.method == "tools/call":
            complain("Traceback (most recent call last):", f"ValueError: {TOKEN} is of no use")
            os._exit(7)
        if what == "slow-lists" and call.method.endswith("/list"):
            time.sleep(seconds)

    answers = {
        "tools/list": tools("who"),
        "prompts/list": {"prompts": [{"name": "greet"}]},
        "tools/call": lambda call: text(f"pid {os.getpid()}"),
    }
    era = "" if "modern" in sys.argv else "legacy"
    StdioServer("bad", answers, {"tools": {}, "prompts": {}}, era=era, ttl_ms=60_000, hears=hears).run()


if __name__ == "__main__":
    main()
