"""A stdio server with slow tools, as anybody may have written it: it knows nothing of tasks.

`argv[1]` is the era that it speaks, `legacy` or `modern`. Each call that is executed adds a line to the ledger: the
file that `LEDGER` names.
"""

import json
import os
import sys
import time
from typing import Any, Final

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support import stdio_server
from tests.support.stdio_server import Refusal, StdioServer, text

ERA: Final = sys.argv[1]
SCHEMA: Final = {"type": "object", "properties": {"name": {"type": "string"}}}


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
                server.notify("notifications/progress", **told)
            time.sleep(float(self.arguments.get("seconds", 0)))
        return "all steps"

    def ask(self) -> Any:
        """Work, then ask: twice, one after the other. Says what was answered."""
        if ERA == "modern":
            return self._ask_in_rounds()
        self.wait("goes_on")
        heard = []
        for number in range(int(self.arguments.get("times", 2))):
            name = f"ask-{self.number}-{number}"
            heard.append(server.ask(name, "elicitation/create", question(number)["params"], 60))
        return heard

    def _ask_in_rounds(self) -> Any:
        state = json.loads(self.params.get("requestState", "[]"))
        heard = [*state, *(self.params.get("inputResponses") or {}).values()]
        if not heard:
            self.wait("goes_on")
        if len(heard) < int(self.arguments.get("times", 2)):
            # The key of each round is the same: nothing forbids that.
            asked = {"name": question(len(heard))}
            return {"resultType": "input_required", "inputRequests": asked, "requestState": json.dumps(heard)}
        return heard

    def give_up(self) -> Any:
        """Work, ask, and withdraw the question."""
        self.wait("goes_on")
        server.send({"id": "withdrawn", **question(0)})
        self.wait("withdraws")
        server.notify("notifications/cancelled", requestId="withdrawn")
        self.wait("until")
        return "went on without an answer"

    def late(self) -> Any:
        """Work, then make a task of the call after all, as a server of 2026-07-28 may."""
        self.wait("goes_on")
        return {"resultType": "task", **own_task()}

    def large(self) -> Any:
        self.wait("goes_on")
        return "x" * int(self.arguments["size"])

    def wrong(self) -> Any:
        self.wait("goes_on")
        raise Refusal(4711, "there is no such thing", data={"kind": "lookup"})


def own_task() -> dict[str, Any]:
    """The server's own task. It asks once."""
    task: dict[str, Any] = {
        "taskId": "own/1",
        "createdAt": "",
        "lastUpdatedAt": "",
        "ttlMs": None,
        "pollIntervalMs": 100,
    }
    if "own" not in server.answered:
        return task | {"status": "input_required", "inputRequests": {"who": question(0)}}
    return task | {"status": "completed", "result": text(json.dumps(server.answered["own"]))}


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


def called(call: stdio_server.Call) -> dict[str, Any]:
    told = TOOLS[call.name](Call(call.params, call.id))
    return told if isinstance(told, dict) and "resultType" in told else text(told)


def updated(call: stdio_server.Call) -> dict[str, Any]:
    server.answered["own"] = call.params["inputResponses"]["who"]
    return {}


def notified(call: stdio_server.Call) -> None:
    if call.method == "notifications/cancelled":
        note("cancelled", call.params.get("reason", ""))
    elif "ANSWERS_NOTIFICATIONS" in os.environ and call.method == "tools/call":
        called(call)


server = StdioServer(
    "work",
    {
        "tools/list": {
            "tools": [{"name": name, "inputSchema": {"type": "object"}, **HINTS.get(name, {})} for name in TOOLS]
        },
        "tools/call": called,
        "tasks/get": lambda _: own_task(),
        "tasks/update": updated,
    },
    {"tools": {}},
    era=ERA,
    notified=notified,
    threads=True,
)

if __name__ == "__main__":
    server.run()
