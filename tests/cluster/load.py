"""A steady load of many sessions, both eras, that knows of each of its calls what became of it."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx
import msgspec

from tests.proof.histories import Event
from tests.support.mcp_clients import ACCEPT, RESTARTED, events, messages, modern_body, modern_headers

EVERY_S: Final = 0.1
HUNG_AFTER_S: Final = 20.0
OUTCOME_UNKNOWN: Final = -32014
EVENT_STREAM: Final = {"Accept": "text/event-stream"}
_BUMP_EACH: Final = 5


@dataclass(slots=True)
class Outcome:
    """What became of the calls of one phase."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    resets: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class LoadSession:
    """One client. It calls `echo` with a name for the call, and now and then `bump`, which counts in the state."""

    def __init__(self, load: "Load", number: int) -> None:
        self.load = load
        self.number = number
        self.is_modern = number % 2 == 1
        self.token = ""
        self.calls = 0

    @property
    def session_id(self) -> str:
        return self.token.rpartition(".")[0]

    async def open(self) -> None:
        if self.is_modern:
            answer = await self._post("echo", "echo", {"text": "open"})
            self.token = answer.headers["mcp-gateway-session"]
        else:
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "l", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            answer = await self.load.http.post(f"{self.load.url}/servers/echo/mcp", json=body, headers=ACCEPT)
            self.token = answer.headers["mcp-session-id"]
            await self._post("echo", "", {})
            await self._post("echo", "echo", {"text": "open"})

    async def _post(self, server: str, tool: str, arguments: Any, base: str = "") -> httpx.Response:
        self.calls += 1
        params: Any = {"name": tool, "arguments": arguments}
        url = f"{base or self.load.url}/servers/{server}/mcp"
        if self.is_modern:
            body = modern_body("tools/call", params, request_id=self.calls)
            headers = modern_headers(body)
            if self.token:
                headers["MCP-Gateway-Session"] = self.token
        else:
            headers = {**ACCEPT, "Mcp-Session-Id": self.token, "MCP-Protocol-Version": "2025-11-25"}
            body = {"jsonrpc": "2.0", "id": self.calls, "method": "tools/call", "params": params}
            if not tool:
                body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answer = await self.load.http.post(url, json=body, headers=headers)
        while not self.is_modern and (last := _last_event(answer)):
            answer = await self.load.http.get(url, headers={**headers, **EVENT_STREAM, "Last-Event-ID": last})
        return answer

    async def run(self) -> None:
        while not self.load.stopped.is_set():
            began, outcome = time.monotonic(), self.load.outcome
            outcome.counts["sent"] += 1
            ended, complaint = await self._call("bump" if self.calls % _BUMP_EACH == 0 else "echo")
            outcome.counts[ended.how] += 1
            if ended.how == "reset":
                outcome.resets[complaint] += 1
            elif ended.how == "wrong":
                outcome.wrong.append(complaint)
            if ended.how not in ("hung", "reset"):
                outcome.slowest_s = max(outcome.slowest_s, ended.at - began)
            await asyncio.sleep(max(0.0, began + self.load.every_s - time.monotonic()))

    async def _call(self, tool: str, base: str = "") -> tuple[Event, str]:
        """Call a tool, and keep in the history what became of it. Returns that, and what was wrong."""
        name = f"{self.number}-{self.calls}"
        self.load.tell("asked", session=self.session_id, call=name, how=tool)
        answer, complaint = Answer(), ""
        try:
            server, arguments = ("state", {"key": "n"}) if tool == "bump" else ("echo", {"call": name})
            answer, complaint = _judged(await self._post(server, tool, arguments, base=base), tool)
        except httpx.ReadTimeout:
            answer.how = "hung"
        except httpx.HTTPError as error:
            answer.how, complaint = "reset", repr(error)[:150]
        told = msgspec.structs.asdict(answer)
        return self.load.tell("ended", session=self.session_id, call=name, **told), complaint

    async def probe(self, base: str) -> float:
        """Seconds until that gateway gives a good answer for this session."""
        began = time.monotonic()
        while True:
            ended, _ = await self._call("echo", base)
            if ended.how == "answered":
                return ended.at - began
            await asyncio.sleep(0.02)


class Answer(msgspec.Struct):
    """What a client has read: how the call ended, the count, and why the session has a new process."""

    how: str = "answered"
    value: int = 0
    told: str = ""


def _last_event(answer: httpx.Response) -> str:
    """The id of the last event of a stream that has ended without an answer: its client asks for the rest."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return ""
    last = ""
    for event, data in events(answer.text):
        if "result" in (message := json.loads(data or "{}")) or "error" in message:
            return ""
        last = event or last
    return last


def _judged(answer: httpx.Response, tool: str) -> tuple[Answer, str]:
    """What an answer says, and what is wrong with it."""
    if answer.status_code == 404:
        return Answer("lost"), ""
    if answer.status_code in (502, 503, 504):
        try:  # by the load balancer, or by a gateway
            code = answer.json()["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return Answer("reset"), f"{answer.status_code} {answer.text[:60]}"
        return Answer("unknown" if code == OUTCOME_UNKNOWN else "refused"), ""
    try:
        message = messages(answer)[-1]
    except (ValueError, KeyError, IndexError):
        message = {}
    if message.get("error", {}).get("code") == OUTCOME_UNKNOWN:
        return Answer("unknown"), ""
    result = message.get("result", {})
    if tool == "bump" and result.get("isError"):
        return Answer("failed"), ""  # the tool says so: it did not reach its state, or not the answer
    text = result.get("content", [{}])[0].get("text", "")
    told = result.get("_meta", {}).get(RESTARTED, {}).get("reason", "")
    if tool == "bump" and text.isdigit():
        return Answer(value=int(text), told=told), ""
    good = tool == "echo" and text == "ok"
    return Answer("answered" if good else "wrong", told=told), f"{answer.status_code} {answer.text[:300]!r}"


class Load:
    """Sessions at work. `url` is the load balancer's, without a path; `transport` leads to it, if not the network."""

    def __init__(
        self,
        url: str,
        sessions: int,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self.url = url
        self.every_s = every_s
        self.http = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(HUNG_AFTER_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=200),
        )
        self.outcome = Outcome()
        self.history: list[Event] = []
        self.stopped = asyncio.Event()
        self.sessions = [LoadSession(self, n) for n in range(sessions)]
        self._tasks: list[asyncio.Task[None]] = []

    def tell(self, what: Literal["asked", "ended", "failed over"], **facts: Any) -> Event:
        """Add an event to the history."""
        event = Event(at=time.monotonic(), what=what, **facts)
        self.history.append(event)
        return event

    async def start(self, at_once: int = 1) -> None:
        """Open the sessions and go on until `stop`. Each has that many calls at once."""
        for session in self.sessions:
            await session.open()
            self.http.cookies.clear()
        self.http.cookies.jar.clear()
        for _ in range(at_once):
            self._tasks += [asyncio.create_task(session.run()) for session in self.sessions]
            await asyncio.sleep(self.every_s / at_once)

    async def stop(self) -> None:
        self.stopped.set()
        await asyncio.gather(*self._tasks)
        await self.http.aclose()
