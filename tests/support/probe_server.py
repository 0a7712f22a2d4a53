"""A stdio server for tests: reports what it receives and misbehaves on request. Speaks both eras, validates nothing.

Standard library only, so that it starts fast. `argv[1:]` may hold `refuse` (the handshake), `ignore-term`,
`legacy-only`, `modern-only`, `notifies` (the modern era declares `listChanged`), `listens-late` (later calls
overtake a subscription), or `mirror` (an argument in a header).
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, Refusal, StdioServer, text

_state: dict[str, str] = {}
_cancelled: list[Any] = []
_shaken: dict[str, Any] = {}
_set: list[str] = []


def env(arguments: dict[str, Any], _: dict[str, Any]) -> Any:
    return {k: v for k, v in os.environ.items() if k.startswith(arguments.get("prefix", ""))}


def crash(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def close(*_: Any) -> None:
    os.close(1)


def state(arguments: dict[str, Any], _: dict[str, Any]) -> Any:
    _state.update(arguments)
    return _state


def hang(arguments: dict[str, Any], _: dict[str, Any]) -> None:
    if arguments.get("say"):
        server.notify("notifications/message", level="info", data="hanging")


def giant(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    if arguments.get("say"):
        server.notify("notifications/message", level="info", data="it is large")
    return "g" * int(arguments["size"])


def noise(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    server.write(b'this is no JSON\n{"neither": "is this a message"}\n\xff\xfe\n\n[]\nnull\n')
    os.write(2, b"x" * int(arguments.get("stderr", 0)))
    return "still here"


def spawn(*_: Any) -> str:
    return str(subprocess.Popen(["setsid", "sleep", "1000"], stdin=subprocess.DEVNULL).pid)


def change(*_: Any) -> str:
    server.send({"method": "notifications/tools/list_changed"})
    server.notify("notifications/resources/updated", uri="probe://thing")
    return "changed"


def flood(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    for _number in range(int(arguments["megabytes"])):
        server.notify("notifications/message", level="info", data="f" * (1 << 20))
    _set.append("flooded")
    return "flooded"


def announce(*_: Any) -> str:
    server.announce()
    return "announced"


def unlisten(*_: Any) -> str:
    """Ends every subscription, as a modern server does."""
    while server.listening:
        server.notify("notifications/cancelled", requestId=server.listening.pop(), reason="enough")
    return "ended"


def sleep(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    if "note" in arguments:  # a line for each time it was called
        with open(arguments["note"], "a") as file:
            file.write("called\n")
    time.sleep(arguments["seconds"])
    return "slept"


def tick(arguments: dict[str, Any], params: dict[str, Any]) -> str:
    for step in range(int(arguments["steps"])):
        server.notify("notifications/progress", **params["_meta"], progress=step)
        time.sleep(arguments["interval_s"])
    return "done"


def fail(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    os.write(2, b"probe: no route to the database; tried with Bearer abcdefgh12345678\n")
    time.sleep(arguments.get("seconds", 0))
    return "it failed"


def mutter(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    os.write(2, f"{arguments['line']}\n".encode())
    time.sleep(arguments.get("seconds", 0))
    return "muttered"


def limits(*_: Any) -> Any:
    soft = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in ("NOFILE", "AS")}
    return {"files": soft["NOFILE"], "memory_mb": soft["AS"] >> 20}


def files(arguments: dict[str, Any], _: dict[str, Any]) -> Any:
    return sorted(os.listdir(arguments["folder"])) if os.path.isdir(arguments["folder"]) else []


def roots(*_: Any) -> Any:
    return server.ask("probe-1", "roots/list", {}, 10)


def ask(arguments: dict[str, Any], _: dict[str, Any]) -> Any:
    """Asks as often as it is told to, one after the other; what was answered."""
    heard = []
    for number in range(int(arguments.get("times", 1))):
        name = f"ask-{time.monotonic_ns()}-{number}"
        params = {"message": f"question {number}", "requestedSchema": {"type": "object", "properties": {}}}
        heard.append(server.ask(name, "elicitation/create", params))
    return heard


def want(arguments: dict[str, Any], params: dict[str, Any]) -> Any:
    """As a modern server asks: by a result, as often as it is told to; what was answered."""
    rounds = int(params.get("requestState", 0))
    if rounds < int(arguments.get("rounds", 1)):
        asked = {"message": f"question {rounds}", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"method": "elicitation/create", "params": asked}
        questions = {f"q{number}": question for number in range(int(arguments.get("questions", 1)))}
        return {"resultType": "input_required", "inputRequests": questions, "requestState": str(rounds + 1)}
    return params.get("inputResponses", "nobody answered")


def python(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    """The value of `code`, or the kind of its error."""
    import pathlib  # which most tests do not wait for
    import socket

    names = {"Path": pathlib.Path, "os": os, "socket": socket, "subprocess": subprocess, "sys": sys}
    try:
        return str(eval(arguments["code"], names))
    except Exception as error:
        return type(error).__name__


NAMED: Final[dict[str, Any]] = {"workspace_id": {}, "id": {}, "team": {}, "key": {}}
"""Arguments of `echo` that a configuration can bind. It takes any others too."""

# Arguments and params → what to answer; None for no answer at all.
TOOLS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "env": env,
    "meta": lambda arguments, params: (_shaken if "initialize" in arguments else params).get("_meta", {}),
    "sleep": sleep,
    "nap": sleep,
    "tick": tick,
    "pid": lambda *_: str(os.getpid()),
    "fail": fail,
    "mutter": mutter,
    "echo": lambda arguments, _: arguments,
    "giant": giant,
    "cancelled": lambda *_: _cancelled,
    "set": lambda *_: _set,
    "state": state,
    "crash": crash,
    "close": close,
    "hang": hang,
    "noise": noise,
    "spawn": spawn,
    "change": change,
    "announce": announce,
    "unlisten": unlisten,
    "flood": flood,
    "roots": roots,
    "limits": limits,
    "files": files,
    "ask_again": ask,
    "ask_once": ask,
    "want": want,
    "python": python,
    "broken": lambda *_: None,
}


def shake(call: Call) -> dict[str, Any]:
    if "refuse" in sys.argv:
        raise Refusal(-32099, "not today")
    _shaken.update(call.params)
    legacy = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
    return {**server.shaken(call), "capabilities": legacy}


def listed(_: Call) -> dict[str, Any]:
    mirrored = {"region": {"type": "string", "x-mcp-header": "Region"}} if "mirror" in sys.argv else {}
    found = []
    for name in TOOLS:
        properties = NAMED | mirrored if name == "echo" else mirrored
        hint = {"annotations": {"idempotentHint": True}} if name in ("nap", "ask_again") else {}
        found.append({"name": name, "inputSchema": {"type": "object", "properties": properties}, **hint})
    return {"tools": found}


def called(call: Call) -> dict[str, Any] | None:
    if call.name == "broken":
        # A line as it is told to, with ID and DEEP filled in, which is no JSON for a Python that reads so many levels.
        line = call.arguments["line"].replace("ID", str(call.id))
        server.write(line.replace("DEEP", "[" * 5_000 + "NaN" + "]" * 5_000).encode("latin-1") + b"\n")
    told = TOOLS[call.name](call.arguments, call.params)
    if told is None or (isinstance(told, dict) and "resultType" in told):
        return told
    return text(told) | ({"isError": True} if call.name == "fail" else {})


def settle(call: Call) -> dict[str, Any]:
    if call.method in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
        _set.append(f"{call.method} {call.params.get('level', call.params.get('uri'))}")
    return {}


def listen(call: Call) -> None:
    if "listens-late" in sys.argv:
        time.sleep(0.4)
    server.listen(call)


def notified(call: Call) -> None:
    if call.method == "notifications/cancelled":
        _cancelled.append(call.params.get("reason"))


server = StdioServer(
    "probe",
    {"initialize": shake, "tools/list": listed, "tools/call": called, "subscriptions/listen": listen, "*": settle},
    {"tools": {"listChanged": True} if "notifies" in sys.argv else {}},
    era="legacy" if "legacy-only" in sys.argv else "modern" if "modern-only" in sys.argv else "",
    notified=notified,
    threads=True,
)


if __name__ == "__main__":
    if "ignore-term" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.run()
    while "ignore-term" in sys.argv:
        time.sleep(1)
