"""A stdio server for tests: reports what it receives and misbehaves on request. Speaks both eras, validates nothing.

Standard library only, so that it starts fast. `argv[1:]` may hold `refuse` (the handshake), `ignore-term`,
`legacy-only`, `modern-only`, `notifies` (the modern era declares `listChanged`), `listens-late` (later calls
overtake a subscription), or `mirror` (an argument in a header).
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

_lock = threading.Lock()
_state: dict[str, str] = {}
_answers: dict[Any, Any] = {}
_answered = threading.Condition()
_cancelled: list[Any] = []
_listening: list[Any] = []
_shaken: dict[str, Any] = {}
_set: list[str] = []
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def write(data: bytes) -> None:
    with _lock:
        os.write(1, data)


def send(message: dict[str, Any]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with _lock:
        while data:
            data = data[os.write(1, data) :]


def text(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


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
        send({"method": "notifications/message", "params": {"level": "info", "data": "hanging"}})


def giant(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    if arguments.get("say"):
        send({"method": "notifications/message", "params": {"level": "info", "data": "it is large"}})
    return "g" * int(arguments["size"])


def noise(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    write(b'this is no JSON\n{"neither": "is this a message"}\n\xff\xfe\n\n[]\nnull\n')
    os.write(2, b"x" * int(arguments.get("stderr", 0)))
    return "still here"


def spawn(*_: Any) -> str:
    return str(subprocess.Popen(["setsid", "sleep", "1000"], stdin=subprocess.DEVNULL).pid)


def change(*_: Any) -> str:
    send({"method": "notifications/tools/list_changed"})
    send({"method": "notifications/resources/updated", "params": {"uri": "probe://thing"}})
    return "changed"


def flood(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    for _number in range(int(arguments["megabytes"])):
        send({"method": "notifications/message", "params": {"level": "info", "data": "f" * (1 << 20)}})
    _set.append("flooded")
    return "flooded"


def announce(*_: Any) -> str:
    for listener in _listening:
        send({"method": "notifications/tools/list_changed", "params": {"_meta": {SUBSCRIPTION: listener}}})
    return "announced"


def unlisten(*_: Any) -> str:
    """Ends every subscription, as a modern server does."""
    while _listening:
        send({"method": "notifications/cancelled", "params": {"requestId": _listening.pop(), "reason": "enough"}})
    return "ended"


def sleep(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    if "note" in arguments:  # a line for each time it was called
        with open(arguments["note"], "a") as file:
            file.write("called\n")
    time.sleep(arguments["seconds"])
    return "slept"


def tick(arguments: dict[str, Any], params: dict[str, Any]) -> str:
    for step in range(int(arguments["steps"])):
        send({"method": "notifications/progress", "params": {**params["_meta"], "progress": step}})
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
    soft = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in ("NOFILE", "CPU", "AS")}
    return {"files": soft["NOFILE"], "cpu_s": soft["CPU"], "memory_mb": soft["AS"] >> 20}


def files(arguments: dict[str, Any], _: dict[str, Any]) -> Any:
    return sorted(os.listdir(arguments["folder"])) if os.path.isdir(arguments["folder"]) else []


def roots(*_: Any) -> Any:
    send({"id": "probe-1", "method": "roots/list", "params": {}})
    with _answered:
        _answered.wait_for(lambda: "probe-1" in _answers, 10)
    return _answers.pop("probe-1", "nobody answered")


def ask(arguments: dict[str, Any], _: dict[str, Any]) -> Any:
    """Asks as often as it is told to, one after the other; what was answered."""
    heard = []
    for number in range(int(arguments.get("times", 1))):
        name = f"ask-{time.monotonic_ns()}-{number}"
        params = {"message": f"question {number}", "requestedSchema": {"type": "object", "properties": {}}}
        send({"id": name, "method": "elicitation/create", "params": params})
        with _answered:
            _answered.wait_for(lambda name=name: name in _answers, 30)  # type: ignore[misc]  # of this round
        heard.append(_answers.pop(name, "nobody answered"))
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
    "broken": lambda *_: None,
}


def settings(method: str, params: dict[str, Any]) -> None:
    if method in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
        _set.append(f"{method} {params.get('level', params.get('uri'))}")


def result(message: dict[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        _shaken.update(params)
        capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
        info = {"name": "probe", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "server/discover":
        info = {"name": "probe", "version": "1"}
        return {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": True} if "notifies" in sys.argv else {}},
            "serverInfo": info,
            "ttlMs": 0,
            "cacheScope": "public",
        }
    if method == "tools/list":
        mirrored = {"region": {"type": "string", "x-mcp-header": "Region"}} if "mirror" in sys.argv else {}
        schema = {"type": "object", "properties": mirrored}
        named = {"type": "object", "properties": NAMED | mirrored}
        tools = [{"name": n, "inputSchema": named if n == "echo" else schema} for n in TOOLS]
        for tool in tools:
            if tool["name"] in ("nap", "ask_again"):
                tool["annotations"] = {"idempotentHint": True}
        return {"tools": tools, "ttlMs": 0, "cacheScope": "public"}
    if method == "tools/call":
        told = TOOLS[params["name"]](params.get("arguments") or {}, params)
        if isinstance(told, dict) and "resultType" in told:
            return told
        failed = {"isError": True} if params["name"] == "fail" else {}
        return None if told is None else text(told) | failed
    settings(method, params)
    return {}


def listen(message: dict[str, Any]) -> None:
    if "listens-late" in sys.argv:
        time.sleep(0.4)
    _listening.append(message["id"])
    acknowledged = {"notifications": message["params"]["notifications"], "_meta": {SUBSCRIPTION: message["id"]}}
    send({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})


def serve(message: dict[str, Any]) -> None:
    if "method" not in message:
        with _answered:
            _answers[message["id"]] = message.get("result") or message.get("error")
            _answered.notify_all()
        return
    if "id" not in message:
        if message["method"] == "notifications/cancelled":
            _cancelled.append(message["params"].get("reason"))
        return
    if message["method"] == "subscriptions/listen":
        listen(message)
        return
    if message["method"] == "server/discover" and "legacy-only" in sys.argv:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    if message["method"] == "initialize" and "modern-only" in sys.argv:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    if message["method"] == "initialize" and "refuse" in sys.argv:
        send({"id": message["id"], "error": {"code": -32099, "message": "not today"}})
        return
    if message["method"] == "tools/call" and message["params"]["name"] == "broken":
        # A line as it is told to, with ID and DEEP filled in, which is no JSON for a Python that reads so many levels.
        line = message["params"]["arguments"]["line"].replace("ID", str(message["id"]))
        write(line.replace("DEEP", "[" * 5_000 + "NaN" + "]" * 5_000).encode("latin-1") + b"\n")
        return
    answer = result(message)
    if answer is not None:
        modern = "io.modelcontextprotocol/protocolVersion" in (message.get("params") or {}).get("_meta", {})
        send({"id": message["id"], "result": {"resultType": "complete", **answer} if modern else answer})


def main() -> None:
    if "ignore-term" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
    while "ignore-term" in sys.argv:
        time.sleep(1)


if __name__ == "__main__":
    main()
