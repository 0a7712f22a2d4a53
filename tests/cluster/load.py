"""A steady load of many sessions, both eras, that knows of each of its calls what became of it."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.support.mcp_clients import ACCEPT, messages, modern_body, modern_headers

EVERY_S: Final = 0.1
HUNG_AFTER_S: Final = 20.0
OUTCOME_UNKNOWN: Final = -32014
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
        self.bumps = 0
        self.unknown_bumps = 0
        self.last_bump = 0

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
        return await self.load.http.post(url, json=body, headers=headers)

    async def run(self) -> None:
        while not self.load.stopped.is_set():
            began = time.monotonic()
            await self._call(began, bumps=self.calls % _BUMP_EACH == 0)
            await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))

    async def _call(self, began: float, *, bumps: bool) -> None:
        outcome = self.load.outcome
        outcome.counts["sent"] += 1
        name = f"{self.number}-{self.calls}"
        try:
            if bumps:
                answer = await self._post("state", "bump", {"key": "n"})
            else:
                answer = await self._post("echo", "echo", {"call": name})
        except httpx.ReadTimeout:
            outcome.counts["hung"] += 1
            self.unknown_bumps += bumps
            return
        except httpx.HTTPError as error:
            outcome.counts["reset"] += 1
            outcome.resets[repr(error)[:150]] += 1
            self.unknown_bumps += bumps
            return
        outcome.slowest_s = max(outcome.slowest_s, time.monotonic() - began)
        self._judge(outcome, answer, name, bumps=bumps)

    def _judge(self, outcome: Outcome, answer: httpx.Response, name: str, *, bumps: bool) -> None:
        if answer.status_code in (502, 503, 504):
            self._judge_error(outcome, answer, name, bumps=bumps)
            return
        if answer.status_code == 404:
            outcome.counts["lost"] += 1
            return
        try:
            message = messages(answer)[-1]
        except (ValueError, KeyError, IndexError):
            message = {}
        error = message.get("error", {}).get("code")
        if error == OUTCOME_UNKNOWN:
            outcome.counts["unknown"] += 1
            self.unknown_bumps += bumps
            return
        text = message.get("result", {}).get("content", [{}])[0].get("text")
        if bumps and message.get("result", {}).get("isError"):
            outcome.counts["failed"] += 1  # the tool says so: it did not reach its state, or not the answer
            self.unknown_bumps += 1
            return
        good = text == "ok"
        if bumps and text is not None and text.isdigit():
            good = int(text) > self.last_bump
            self.last_bump = int(text)
            self.bumps += 1
        if good:
            outcome.counts["answered"] += 1
            self.load.answered.add(name)
        else:
            outcome.counts["wrong"] += 1
            outcome.wrong.append(f"{answer.status_code} {json.dumps(message)[:300]}")

    def _judge_error(self, outcome: Outcome, answer: httpx.Response, name: str, *, bumps: bool) -> None:
        """Whether the load balancer or a gateway says what became of the call."""
        try:
            code = answer.json()["error"]["code"]
        except (ValueError, KeyError, TypeError):
            outcome.counts["reset"] += 1
            outcome.resets[f"{answer.status_code} {answer.text[:60]}"] += 1
            self.unknown_bumps += bumps
            return
        if code == OUTCOME_UNKNOWN:
            outcome.counts["unknown"] += 1
            self.unknown_bumps += bumps
        else:
            outcome.counts["refused"] += 1
            self.load.refused.add(name)

    async def probe(self, base: str) -> float:
        """Seconds until that gateway gives a good answer for this session."""
        began = time.monotonic()
        while True:
            answer = await self._post("echo", "echo", {"text": "probe"}, base=base)
            if answer.status_code == 200 and "result" in messages(answer)[-1]:
                return time.monotonic() - began
            await asyncio.sleep(0.02)

    def state_is_exact(self) -> bool:
        """What was counted is what was answered, and at most what nobody knows of more."""
        return self.bumps <= self.last_bump <= self.bumps + self.unknown_bumps


class Load:
    """Sessions at work. `url` is the load balancer's, without a path."""

    def __init__(self, url: str, sessions: int) -> None:
        self.url = url
        self.http = httpx.AsyncClient(
            timeout=httpx.Timeout(HUNG_AFTER_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=200),
        )
        self.outcome = Outcome()
        self.answered: set[str] = set()
        self.refused: set[str] = set()
        self.stopped = asyncio.Event()
        self.sessions = [LoadSession(self, n) for n in range(sessions)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the sessions and go on until `stop`."""
        for session in self.sessions:
            await session.open()
            self.http.cookies.clear()
        self.http.cookies.jar.clear()
        self._tasks = [asyncio.create_task(session.run()) for session in self.sessions]

    async def stop(self) -> None:
        self.stopped.set()
        await asyncio.gather(*self._tasks)
        await self.http.aclose()
