"""What the tests' servers on stdio share: messages, the handshakes of both eras, hints, subscriptions, questions.

A server is a table: for each method a result, or what makes one of a call. Standard library only, so that it starts
fast. It checks nothing.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
_MODERN: Final = "io.modelcontextprotocol/protocolVersion"
_OTHER: Final = {"legacy": "server/discover", "modern": "initialize"}
_KEPT: Final = ("server/discover", "resources/read")


class Refusal(Exception):
    """The error of a request."""

    def __init__(self, code: int = -32601, message: str = "Method not found", **more: Any) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **more}


class Call:
    """A message with a method. `line` is how it came."""

    def __init__(self, message: dict[str, Any], line: bytes) -> None:
        self.id: Any = message.get("id")
        self.method: str = message["method"]
        self.params: dict[str, Any] = message.get("params") or {}
        self.name: str = self.params.get("name", "")
        self.arguments: dict[str, Any] = self.params.get("arguments") or {}
        self.is_modern = _MODERN in self.params.get("_meta", {})
        self.line = line


Answers = Mapping[str, Any]
"""By method: a result, or a function that makes one of a call; None sends no answer."""
Hears = Callable[[Call], None]


class StdioServer:
    """A server of both eras, or of `era` alone.

    `answers` has results by method; a function that returns None sends no answer. `*` answers what has no entry.
    `hears` is told of each request, `notified` of each notification. With `threads`, calls run beside each other.
    """

    def __init__(
        self,
        name: str,
        answers: Answers,
        capabilities: dict[str, Any],
        *,
        era: str = "",
        ttl_ms: int = 0,
        scope: str = "public",
        hears: Hears | None = None,
        notified: Hears | None = None,
        threads: bool = False,
    ) -> None:
        self.known = {"capabilities": capabilities, "serverInfo": {"name": name, "version": "1"}}
        self.listening: list[Any] = []
        """The ids of open subscriptions."""
        self.answered: dict[Any, Any] = {}
        self._own: Answers = {
            "initialize": self.shaken,
            "server/discover": {"supportedVersions": ["2026-07-28"], **self.known},
            "subscriptions/listen": self.listen,
        }
        self._answers, self._refuses = answers, _OTHER.get(era)
        self._kept = {"ttlMs": ttl_ms, "cacheScope": scope}
        self._hears, self._notified, self._threads = hears, notified, threads
        self._lock, self._news = threading.Lock(), threading.Condition()

    def run(self) -> None:
        """Serve until stdin ends."""
        for line in sys.stdin.buffer:
            if self._threads:
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()
            else:
                self._serve(line)

    def write(self, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(1, data) :]

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def announce(self, method: str = "notifications/tools/list_changed") -> None:
        """Notify every subscription."""
        for each in self.listening:
            self.notify(method, _meta={SUBSCRIPTION: each})

    def ask(self, name: str, method: str, params: dict[str, Any], within_s: float = 30.0) -> Any:
        """Ask the client, and wait for its answer: result or error."""
        self.send({"id": name, "method": method, "params": params})
        with self._news:
            self._news.wait_for(lambda: name in self.answered, within_s)
        return self.answered.pop(name, "nobody answered")

    def shaken(self, call: Call) -> dict[str, Any]:
        """The result of the handshake."""
        return {"protocolVersion": call.params["protocolVersion"], **self.known}

    def listen(self, call: Call) -> None:
        """Open a subscription."""
        self.listening.append(call.id)
        honoured, tag = call.params["notifications"], {SUBSCRIPTION: call.id}
        self.notify("notifications/subscriptions/acknowledged", notifications=honoured, _meta=tag)

    def _serve(self, line: bytes) -> None:
        message = json.loads(line)
        if "method" not in message:
            with self._news:
                self.answered[message["id"]] = message.get("result") or message.get("error")
                self._news.notify_all()
            return
        call = Call(message, line)
        told = self._hears if "id" in message else self._notified
        if told is not None:
            told(call)
        if "id" not in message:
            return
        try:
            result = self._result(call)
        except Refusal as refusal:
            self.send({"id": call.id, "error": refusal.error})
            return
        if result is not None:
            self.send({"id": call.id, "result": result})

    def _result(self, call: Call) -> dict[str, Any] | None:
        found = self._answers.get(call.method) or self._own.get(call.method) or self._answers.get("*")
        if found is None or call.method == self._refuses:
            raise Refusal
        result: dict[str, Any] | None = found(call) if callable(found) else found
        if result is None or not call.is_modern:
            return result
        kept = self._kept if call.method in _KEPT or call.method.endswith("/list") else {}
        return {"resultType": "complete", **kept, **result}


def text(value: Any) -> dict[str, Any]:
    """The result of a tool: a text, or JSON as one."""
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def tools(*names: str, **more: Any) -> dict[str, Any]:
    """A list of tools that take anything. `more`: further members of each."""
    return {"tools": [{"name": name, **more, "inputSchema": {"type": "object"}} for name in names]}
