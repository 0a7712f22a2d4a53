"""The servers of simulated gateways: objects in the gateway's process, as an app that embeds it gives them.

Each session has its own conversation with such a server, which ends with its gateway's claim: it stands for a process.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from session_store import current_session
from tests.proof.histories import Event
from tests.simulation.network import SimulatedLoop

_SLOW_S = (0.0, 0.02, 0.05, 0.05, 0.4, 1.5)
"""What calls take, each as often as the others: faults hit calls that were executed and not answered."""

_START_S = (0.0, 0.05, 0.6)
"""What the start of a process takes: faults hit calls that wait for it."""


class Server:
    """A server with one tool, which each process writes down before it answers."""

    def __init__(self, loop: SimulatedLoop, tool: str, told: Callable[[Event], None]) -> None:
        self._loop = loop
        self._tool = tool
        self._told = told
        self._started = 0

    def create_initialization_options(self) -> None:
        """There are none."""

    async def run(self, inbox: Any, outbox: Any, _: Any) -> None:
        """Be one process: until its link ends."""
        self._started += 1
        name = f"{self._tool}-{self._started}@{self._loop.host}"
        calls: set[asyncio.Task[None]] = set()
        try:
            async for sent in inbox:
                if isinstance(request := sent.message, JSONRPCRequest):
                    answering = self._answer(name, request, outbox)
                    calls.add(task := asyncio.get_running_loop().create_task(answering, context=inbox.last_context))
                    task.add_done_callback(calls.discard)
        finally:
            for task in calls:
                task.cancel()

    async def _answer(self, name: str, request: JSONRPCRequest, outbox: Any) -> None:
        params: dict[str, Any] = request.params or {}
        if request.method == "initialize":
            await asyncio.sleep(self._loop.random.choice(_START_S))
            facts: Any = {"name": self._tool, "version": "1"}
            found: Any = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": facts}
        elif request.method == "tools/list":
            found = {"tools": [{"name": self._tool, "inputSchema": {"type": "object"}}]}
        elif request.method == "tools/call":
            found = await self._call(name, params.get("arguments") or {})
        else:
            error: Any = {"code": -32601, "message": "no such method"}
            await outbox.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))
            return
        await outbox.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=found)))

    async def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._tool == "bump":
            try:
                text = str(await current_session().state.increment(arguments["key"]))
            except Exception:  # the store does not answer
                return {"content": [{"type": "text", "text": "the state is away"}], "isError": True}
        else:
            if "call" in arguments:
                self._told(Event(at=self._loop.now, what="executed", call=arguments["call"], by=name))
            text = "ok"
        await asyncio.sleep(self._loop.random.choice(_SLOW_S))
        return {"content": [{"type": "text", "text": text}]}
