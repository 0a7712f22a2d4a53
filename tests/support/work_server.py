"""A stdio server with slow tools, as anybody may have written it: it knows nothing of tasks.

`argv[1]` is the era that it speaks, `legacy` or `modern`. Each call that is executed adds a line to the ledger: the
file that `LEDGER` names. Standard library only, so that it starts fast.
"""

import json
import os
import sys
import threading
import time
from typing import Any, Final

MODERN: Final = "io.modelcontextprotocol/protocolVersion"
ERA: Final = sys.argv[1]
SCHEMA: Final = {"type": "object", "properties": {"name": {"type": "string"}}}

_lock = threading.Lock()
_answers: dict[str, Any] = {}
_answered = threading.Condition()


def send(message: dict[str, Any]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with _lock:
        os.write(1, data)


def note(word: str, job: object) -> None:
    """A line of the ledger, written whole."""
    if "LEDGER" in os.environ:
        file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{word} {job}\n".encode())
        os.close(file)


def question(number: int) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": f"question {number}", "requestedSchema": SCHEMA}}


class Call:
    """One call of a tool."""

    def __init__(self, params: dict[str, Any], number: object) -> None:
        self.params = params
        self.number = number
        self.arguments: dict[str, Any] = params.get("arguments") or {}

    def wait(self, argument: str) -> None:
        """Wait until there is the file that the argument of that name names. Without it: some seconds."""
        if argument not in self.arguments:
            time.sleep(float(self.arguments.get("seconds", 0)))
            return
        while not os.path.exists(self.arguments[argument]):  # `pathlib` takes long to import
            time.sleep(0.01)

    def work(self) -> Any:
        """Work for a while. The ledger has a line for the beginning, and one for the end."""
        job = self.arguments.get("job", "")
        note("began", job)
        self.wait("until")
        note("ended", job)
        return f"done {job}"

    def steps(self) -> Any:
        """Report progress, if that is wanted."""
        token = self.params.get("_meta", {}).get("progressToken")
        for step in range(1, 4):
            told = {"progressToken": token, "progress": step, "total": 3, "message": f"step {step}"}
            if token is not None:
                send({"method": "notifications/progress", "params": told})
            time.sleep(float(self.arguments.get("seconds", 0)))
        return "all steps"

    def ask(self) -> Any:
        """Work, then ask: twice, one after the other. Says what was answered."""
        if ERA == "modern":
            return self._ask_in_rounds()
        time.sleep(float(self.arguments.get("seconds", 0)))
        heard = []
        for number in range(int(self.arguments.get("times", 2))):
            name = f"ask-{self.number}-{number}"
            send({"id": name, **question(number)})
            with _answered:
                _answered.wait_for(lambda name=name: name in _answers, 60)  # type: ignore[misc]  # of this round
            heard.append(_answers.pop(name, "nobody answered"))
        return heard

    def _ask_in_rounds(self) -> Any:
        state = json.loads(self.params.get("requestState", "[]"))
        heard = [*state, *(self.params.get("inputResponses") or {}).values()]
        if not heard:
            time.sleep(float(self.arguments.get("seconds", 0)))
        if len(heard) < int(self.arguments.get("times", 2)):
            # The key of each round is the same: nothing forbids that.
            asked = {"name": question(len(heard))}
            return {"resultType": "input_required", "inputRequests": asked, "requestState": json.dumps(heard)}
        return heard

    def give_up(self) -> Any:
        """Work, ask, and withdraw the question."""
        time.sleep(float(self.arguments.get("seconds", 0)))
        send({"id": "withdrawn", **question(0)})
        self.wait("withdraws")
        send({"method": "notifications/cancelled", "params": {"requestId": "withdrawn"}})
        self.wait("until")
        return "went on without an answer"

    def late(self) -> Any:
        """Work, then make a task of the call after all, as a server of 2026-07-28 may."""
        time.sleep(float(self.arguments.get("seconds", 0)))
        return {"resultType": "task", **own_task()}

    def large(self) -> Any:
        time.sleep(float(self.arguments.get("seconds", 0)))
        return "x" * int(self.arguments["size"])

    def wrong(self) -> Any:
        time.sleep(float(self.arguments.get("seconds", 0)))
        raise LookupError("there is no such thing")


def own_task() -> dict[str, Any]:
    """The server's own task. It asks once."""
    task: dict[str, Any] = {
        "taskId": "own/1",
        "createdAt": "",
        "lastUpdatedAt": "",
        "ttlMs": None,
        "pollIntervalMs": 100,
    }
    if "own" not in _answers:
        return task | {"status": "input_required", "inputRequests": {"who": question(0)}}
    text = json.dumps(_answers["own"])
    return task | {"status": "completed", "result": {"content": [{"type": "text", "text": text}]}}


TOOLS: Final = {
    "late": Call.late,
    "work": Call.work,
    "look": Call.work,
    "steps": Call.steps,
    "ask": Call.ask,
    "give_up": Call.give_up,
    "large": Call.large,
    "wrong": Call.wrong,
    "slow_build": Call.work,
}
HINTS: Final[dict[str, Any]] = {
    "look": {"annotations": {"readOnlyHint": True}},
    "ask": {"annotations": {"idempotentHint": True}},
    "give_up": {"execution": {"taskSupport": "forbidden"}},
}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params") or {}
    info = {"name": "work", "version": "1"}
    if method == "initialize" and ERA == "legacy":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "server/discover" and ERA == "modern":
        found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
        return found | {"ttlMs": 0, "cacheScope": "public"}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}, **HINTS.get(name, {})} for name in TOOLS]
        return {"tools": tools, "ttlMs": 0, "cacheScope": "public"}
    if method == "tools/call":
        told = TOOLS[params["name"]](Call(params, message["id"]))
        if isinstance(told, dict) and "resultType" in told:
            return told
        return {"content": [{"type": "text", "text": told if isinstance(told, str) else json.dumps(told)}]}
    if method == "tasks/get":
        return own_task()
    if method == "tasks/update":
        _answers["own"] = params["inputResponses"]["who"]
        return {}
    raise NotImplementedError(method)


def serve(message: dict[str, Any]) -> None:
    if "method" not in message:
        with _answered:
            _answers[message["id"]] = message.get("result") or message.get("error")
            _answered.notify_all()
        return
    if "id" not in message:
        if message["method"] == "notifications/cancelled":
            note("cancelled", message["params"].get("reason", ""))
        elif "ANSWERS_NOTIFICATIONS" in os.environ and message["method"] == "tools/call":
            answer({"id": 0, **message})
        return
    try:
        result = answer(message)
    except NotImplementedError as missing:
        send({"id": message["id"], "error": {"code": -32601, "message": f"Method not found: {missing}"}})
    except LookupError as error:
        send({"id": message["id"], "error": {"code": 4711, "message": str(error), "data": {"kind": "lookup"}}})
    else:
        is_modern = MODERN in (message.get("params") or {}).get("_meta", {})
        send({"id": message["id"], "result": {"resultType": "complete", **result} if is_modern else result})


def main() -> None:
    for line in sys.stdin.buffer:
        threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
