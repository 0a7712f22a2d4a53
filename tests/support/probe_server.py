"""A stdio server for tests: tells what it was told, and misbehaves on order. Speaks both eras, checks nothing.

Standard library only, so that it starts fast. `argv[1:]` may hold `refuse` (the handshake), `ignore-term`,
`legacy-only`, or `mirror` (an argument in a header).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

TOOLS = ["env", "meta", "pid", "crash", "hang", "noise", "giant", "spawn", "log", "change", "roots", "close", "state", "echo"]
_lock = threading.Lock()
_state: dict[str, str] = {}
_answers: dict[Any, Any] = {}
_answered = threading.Condition()
_cancelled: list[Any] = []
_listening: list[Any] = []
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


def call(name: str, arguments: dict[str, Any], params: dict[str, Any]) -> dict[str, Any] | None:
    if name == "env":
        return text({k: v for k, v in os.environ.items() if not arguments.get("prefix") or k.startswith(arguments["prefix"])})
    if name == "meta":
        return text(params.get("_meta", {}))
    if name == "pid":
        return text(str(os.getpid()))
    if name == "echo":
        return text(arguments)
    if name == "state":
        _state.update(arguments)
        return text(_state)
    if name == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "close":
        os.close(1)
        return None
    if name == "hang":
        if arguments.get("say"):
            send({"method": "notifications/message", "params": {"level": "info", "data": "hanging"}})
        return None
    if name == "noise":
        write(b"this is no JSON\n{\"neither\": \"is this a message\"}\n\xff\xfe\n\n[]\nnull\n")
        os.write(2, b"x" * int(arguments.get("stderr", 0)))
        return text("still here")
    if name == "giant":
        return text("g" * int(arguments["size"]))
    if name == "spawn":
        child = subprocess.Popen(["setsid", "sleep", "1000"], stdin=subprocess.DEVNULL)
        return text(str(child.pid))
    if name == "log":
        send({"method": "notifications/message", "params": {"level": "info", "data": arguments.get("data", "")}})
        return text("logged")
    if name == "change":
        send({"method": "notifications/tools/list_changed"})
        send({"method": "notifications/resources/updated", "params": {"uri": "probe://thing"}})
        return text("changed")
    if name == "cancelled":
        return text(_cancelled)
    if name == "announce":
        for listener in _listening:
            send({"method": "notifications/tools/list_changed", "params": {"_meta": {SUBSCRIPTION: listener}}})
        return text("announced")
    if name == "roots":
        send({"id": "probe-1", "method": "roots/list", "params": {}})
        with _answered:
            _answered.wait_for(lambda: "probe-1" in _answers, 10)
        return text(_answers.pop("probe-1", "nobody answered"))
    raise ValueError(name)


def result(message: dict[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
        info = {"name": "probe", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "server/discover":
        info = {"name": "probe", "version": "1"}
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info, "ttlMs": 0, "cacheScope": "public"}
    if method == "tools/list":
        mirrored = {"region": {"type": "string", "x-mcp-header": "Region"}} if "mirror" in sys.argv else {}
        schema = {"type": "object", "properties": mirrored}
        return {"tools": [{"name": n, "inputSchema": schema} for n in TOOLS], "ttlMs": 0, "cacheScope": "public"}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {}, params)
    return {}


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
        _listening.append(message["id"])
        acknowledged = {"notifications": message["params"]["notifications"], "_meta": {SUBSCRIPTION: message["id"]}}
        send({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})
        return
    if message["method"] == "server/discover" and "legacy-only" in sys.argv:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    if message["method"] == "initialize" and "refuse" in sys.argv:
        send({"id": message["id"], "error": {"code": -32099, "message": "not today"}})
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
