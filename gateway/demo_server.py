"""Serve the bundled demo: a small stdio MCP server that shows what sessions do. It speaks both eras.

It starts fast because it imports only small standard modules: neither the gateway nor an SDK.
"""

import base64
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]

_CONTEXT_KEY: Final = "io.github.mcp-session-gateway/context"
_SPEC: Final = "io.modelcontextprotocol/"
_MODERN: Final = "2026-07-28"
_HANDSHAKE: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_FACTS: Final = {
    "session_id": "MCP_SESSION_ID",
    "workspace": "MCP_SESSION_WORKSPACE",
    "trust": "MCP_SESSION_TRUST",
    "principal": "MCP_SESSION_PRINCIPAL",
}
_INFO: Final = {"name": "mcp-session-gateway-demo", "version": "0.1.0"}
_CAPABILITIES: Final[Json] = {"tools": {}, "resources": {}, "prompts": {}, "logging": {}}
_URI: Final = "demo://session"
_NAME_FORM: Final = {
    "mode": "form",
    "message": "What is your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


def _object(properties: Json | None = None, *required: str) -> Json:
    schema = {"type": "object", "properties": properties or {}, "additionalProperties": False}
    return schema | {"required": list(required)} if required else schema


_TOOLS: Final[list[Json]] = [
    {
        "name": "whoami",
        "description": "Which session this is, as the server sees it.",
        "inputSchema": _object(),
        "outputSchema": {
            "type": "object",
            "properties": {fact: {"type": "string"} for fact in _FACTS},
            "required": list(_FACTS),
        },
        "annotations": {"readOnlyHint": True},
    },
    {"name": "count", "description": "How often this process was asked.", "inputSchema": _object()},
    {"name": "ask", "description": "Asks for your name and greets you.", "inputSchema": _object()},
    {
        "name": "slow",
        "description": "Takes its time and reports progress.",
        "inputSchema": _object(
            {
                "steps": {"type": "integer", "minimum": 0, "maximum": 1000, "default": 3},
                "interval_s": {"type": "number", "minimum": 0, "maximum": 60, "default": 0.2},
            }
        ),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "remember",
        "description": "Keeps a text in the session's state, where it outlives this process.",
        "inputSchema": _object({"key": {"type": "string"}, "value": {"type": "string"}}, "key", "value"),
    },
    {
        "name": "recall",
        "description": "What was remembered under a key.",
        "inputSchema": _object({"key": {"type": "string"}}, "key"),
        "annotations": {"readOnlyHint": True},
    },
]


class _Fault(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Cancelled(Exception):
    """The client has cancelled the call."""


class _DemoServer:
    """Serve one connection. Tool calls run in threads, so that a slow call does not delay others."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._count = 0
        self._log_level = "info"
        self._client: Json = {}
        self._asked: set[str] = set()
        self._questions: dict[str, tuple[threading.Event, list[Json]]] = {}
        self._calls: dict[Any, threading.Event] = {}

    # -- messages

    def receive(self, message: Json) -> None:
        """Handle one message. The answer is written when it is ready."""
        if "method" not in message:
            self._answered(message)
        elif "id" not in message:
            self._notified(message)
        elif message["method"] == "tools/call":
            self._calls[message["id"]] = threading.Event()
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        else:
            self._answer(message)

    def _answer(self, message: Json) -> None:
        request_id, params = message["id"], message.get("params") or {}
        modern = f"{_SPEC}protocolVersion" in params.get("_meta", {})
        try:
            result = self._result(request_id, message["method"], params, modern)
        except _Fault as fault:
            self._send({"id": request_id, "error": {"code": fault.code, "message": str(fault)}})
        except _Cancelled:
            pass  # MCP 2025-11-25, Cancellation: no response is sent
        else:
            if modern:
                result = {"resultType": "complete", "_meta": {f"{_SPEC}serverInfo": _INFO}} | result
            self._send({"id": request_id, "result": result})
        finally:
            self._calls.pop(request_id, None)

    def _notified(self, message: Json) -> None:
        params = message.get("params") or {}
        if message["method"] == "notifications/cancelled":
            event = self._calls.get(params.get("requestId"))
            if event is not None:
                event.set()

    def _answered(self, message: Json) -> None:
        question = self._questions.pop(str(message.get("id")), None)
        if question is not None:
            event, answers = question
            answers.append(message.get("result") or {"action": "cancel"})
            event.set()

    def _send(self, message: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0"} | message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._write(line)

    # -- methods

    def _result(self, request_id: Any, method: str, params: Json, modern: bool) -> Json:
        if method == "tools/call":
            return self._call(request_id, params, modern)
        if method in ("initialize", "ping", "logging/setLevel") and not modern:
            return self._legacy(method, params)
        if method == "server/discover" and modern:
            return _cacheable(
                {"supportedVersions": [_MODERN], "capabilities": _CAPABILITIES, "serverInfo": _INFO}, modern
            )
        if method == "tools/list":
            return _cacheable({"tools": _TOOLS}, modern)
        if method == "resources/list":
            resource = {"uri": _URI, "name": "session", "mimeType": "application/json"}
            return _cacheable({"resources": [resource]}, modern)
        if method == "resources/templates/list":
            return _cacheable({"resourceTemplates": []}, modern)
        if method == "prompts/list":
            return _cacheable({"prompts": [{"name": "introduce", "description": "Who am I talking to?"}]}, modern)
        if method == "resources/read":
            return self._read(params, modern)
        if method == "prompts/get":
            return self._prompt(params)
        raise _Fault(-32601, f"Method not found: {method}")

    def _legacy(self, method: str, params: Json) -> Json:
        if method == "initialize":
            self._client = params.get("capabilities") or {}
            wanted = params.get("protocolVersion")
            version = wanted if wanted in _HANDSHAKE else _HANDSHAKE[-1]
            return {"protocolVersion": version, "capabilities": _CAPABILITIES, "serverInfo": _INFO}
        if method == "logging/setLevel":
            if params.get("level") not in _LEVELS:
                raise _Fault(-32602, "level must be one of " + ", ".join(_LEVELS))
            self._log_level = params["level"]
        return {}

    def _read(self, params: Json, modern: bool) -> Json:
        if params.get("uri") != _URI:
            raise _Fault(-32602 if modern else -32002, f"Resource not found: {params.get('uri')}")
        text = json.dumps(_facts(params))
        return _cacheable({"contents": [{"uri": _URI, "mimeType": "application/json", "text": text}]}, modern)

    def _prompt(self, params: Json) -> Json:
        if params.get("name") != "introduce":
            raise _Fault(-32602, f"Unknown prompt: {params.get('name')}")
        text = "Introduce yourself, then say which session you are in."
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    # -- tools

    def _call(self, request_id: Any, params: Json, modern: bool) -> Json:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if name == "whoami":
            facts = _facts(params)
            return _text(json.dumps(facts)) | {"structuredContent": facts}
        if name == "count":
            with self._lock:
                self._count += 1
                return _text(str(self._count))
        if name == "ask":
            return self._ask_modern(params) if modern else self._ask_legacy()
        if name == "slow":
            return self._slow(request_id, params, arguments, modern)
        if name in ("remember", "recall"):
            return _text(*_state(name, arguments))
        raise _Fault(-32602, f"Unknown tool: {name}")

    def _ask_modern(self, params: Json) -> Json:
        state, answer = params.get("requestState"), (params.get("inputResponses") or {}).get("name")
        if state is None:
            state, answer = base64.b64encode(secrets.token_bytes(12)).decode(), None
            self._asked.add(state)
        elif state not in self._asked:
            return _text("This process did not ask: the answer reached another one.", failed=True)
        if answer is None:
            question = {"method": "elicitation/create", "params": _NAME_FORM}
            return {"resultType": "input_required", "inputRequests": {"name": question}, "requestState": state}
        return _greeting(answer)

    def _ask_legacy(self) -> Json:
        if "elicitation" not in self._client:
            return _text("Your client cannot be asked: it did not declare elicitation.", failed=True)
        number = secrets.token_hex(4)
        answered = threading.Event()
        answers: list[Json] = []
        self._questions[number] = (answered, answers)
        self._send({"id": number, "method": "elicitation/create", "params": _NAME_FORM})
        answered.wait()
        return _greeting(answers[0])

    def _slow(self, request_id: Any, params: Json, arguments: Json, modern: bool) -> Json:
        steps, interval_s = arguments.get("steps", 3), arguments.get("interval_s", 0.2)
        if not isinstance(steps, int) or not isinstance(interval_s, int | float) or steps < 0 or interval_s < 0:
            return _text("steps must be a whole number and interval_s a number, neither below 0.", failed=True)
        meta = params.get("_meta", {})
        level = meta.get(f"{_SPEC}logLevel") if modern else self._log_level
        cancelled = self._calls[request_id]
        for step in range(1, steps + 1):
            if cancelled.wait(interval_s):
                raise _Cancelled
            if "progressToken" in meta:
                progress = {"progressToken": meta["progressToken"], "progress": step, "total": steps}
                self._send({"method": "notifications/progress", "params": progress})
            if level in _LEVELS and _LEVELS.index(level) <= _LEVELS.index("info"):
                record = {"level": "info", "logger": "slow", "data": f"step {step} of {steps}"}
                self._send({"method": "notifications/message", "params": record})
        return _text("done")


def _facts(params: Json) -> dict[str, str]:
    """Return the facts of the session: from the process's environment, or in a shared process from the call's
    `_meta`."""
    told = params.get("_meta", {}).get(_CONTEXT_KEY, {})
    if "MCP_SESSION_ID" in os.environ:
        told = {fact: os.environ.get(variable, "") for fact, variable in _FACTS.items()}
    return {fact: str(told.get(fact, "")) for fact in _FACTS}


def _state(tool: str, arguments: Json) -> tuple[str, bool]:
    """Store (`remember`) or read (`recall`) a value in the session's state, over the session's socket. Return the text
    of the tool result, and True if it failed."""
    key, value = arguments.get("key"), arguments.get("value")
    if not isinstance(key, str) or not key or (tool == "remember" and not isinstance(value, str)):
        return "key and value must be text, and the key not empty.", True
    if "MCP_SESSION_SOCKET" not in os.environ:
        return "This process serves no session of its own, so there is no state to keep anything in.", True
    import http.client  # half of this server's start, were it loaded then

    headers = {"Authorization": f"Bearer {os.environ['MCP_SESSION_ACCESS']}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("session")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(5)
        connection.sock.connect(os.environ["MCP_SESSION_SOCKET"])
        body = json.dumps(value).encode() if tool == "remember" else None
        connection.request("GET" if body is None else "PUT", f"/v1/state/{_quoted(key)}", body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read() or b"null")
    except OSError as error:
        return f"The gateway cannot be reached: {error}", True
    finally:
        connection.close()
    if response.status == 404:
        return "Nothing is remembered under that key.", False
    if response.status >= 400:
        return str(answer.get("error")), True
    return "Remembered." if tool == "remember" else str(answer), False


def _quoted(key: str) -> str:
    return "".join(f"%{byte:02X}" for byte in key.encode("utf-8", "replace"))


def _greeting(answer: Json) -> Json:
    if answer.get("action") != "accept":
        return _text("Then I will greet you without a name. Hello!")
    return _text(f"Hello, {(answer.get('content') or {}).get('name', 'stranger')}!")


def _text(text: str, failed: bool = False) -> Json:
    result: Json = {"content": [{"type": "text", "text": text}]}
    return result | {"isError": True} if failed else result


def _cacheable(result: Json, modern: bool) -> Json:
    return result | {"ttlMs": 0, "cacheScope": "private"} if modern else result


def main() -> None:
    """Serve stdin and stdout until stdin ends."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer

    def write(line: bytes) -> None:
        stdout.write(line)
        stdout.flush()

    server = _DemoServer(write)
    try:
        for line in stdin:
            if line.strip():
                server.receive(json.loads(line))
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    # Calls still running must not hold up the end, nor write to a closed pipe on the way out.
    os._exit(0)


if __name__ == "__main__":
    main()
