"""The operators' model at a running gateway, asked by its REST interface. It knows what all replicas know."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from gateway.admin.figures import HistoryView, Range, UsageBy, UsageRow
from gateway.admin.operators import (
    SHORTEST_PREFIX,
    Ambiguous,
    NoSuch,
    OperatorError,
    Page,
    PastQuery,
    SessionFilter,
    SessionQuery,
    TaskPage,
    TaskQuery,
    TooShort,
)
from gateway.admin.reports import ReplicaReport, ServerRow, SessionEnvironment, SessionRow, SessionTimeline, TaskRow
from gateway.config.addresses import is_of_this_machine
from gateway.sessions.returns import UnreturningClient
from session_store import TimelineHead

__all__ = ["RestClient"]

_MOST_CANDIDATES: Final = 10
_TIMEOUT_S: Final = 30.0
_LONG_TIMEOUT_S: Final = 600.0
"""For the end of many sessions, each with its processes."""

T = TypeVar("T")


class RestClient:
    """Implements `admin.operators.Operators`. The gateway knows who asks by the key, so `by` is not sent."""

    sees_calls = True

    def __init__(self, url: str, key: str) -> None:
        self._url = url.removesuffix("/").removesuffix("/mcp").removesuffix("/admin")
        if not key:
            raise OperatorError(
                "MCP_GATEWAY_ADMIN_KEY is not set: set it to an operator's key of that gateway (gateway.admin.keys). "
                "Only a gateway that you have started at a terminal of this machine, on loopback, with each server in "
                "a sandbox, needs none"
            )
        self._client = httpx2.AsyncClient(
            base_url=f"{self._url}/admin/api/",
            headers={"Authorization": f"Bearer {key}"},
            timeout=_TIMEOUT_S,
            trust_env=not is_of_this_machine(self._url),  # no proxy gets the key of this machine
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RestClient"]:
        """Inside the block it can be asked."""
        async with self._client:
            yield self

    async def sessions(self, query: SessionQuery) -> Page:
        params = {"q": query.query, "only": query.only, "limit": str(query.limit), "after": query.after}
        params |= {"sort": query.sort, **({} if query.which is None else query.which.given)}
        return await self._ask("GET", "sessions", Page, {name: value for name, value in params.items() if value})

    async def session(self, prefix: str) -> SessionRow:
        return await self._ask("GET", f"sessions/{await self._one(prefix)}", SessionRow)

    async def environment(self, prefix: str) -> SessionEnvironment:
        return await self._ask("GET", f"sessions/{await self._one(prefix)}/environment", SessionEnvironment)

    async def end(self, prefix: str, by: str = "") -> str:
        return (await self._ask("DELETE", f"sessions/{await self._one(prefix)}", dict[str, str]))["ended"]

    async def end_all(self, which: SessionFilter, by: str = "") -> int:
        return (await self._ask("DELETE", "sessions", dict[str, int], which.given, timeout_s=_LONG_TIMEOUT_S))["ended"]

    async def _one(self, prefix: str) -> str:
        """A prefix that can stand in a path: that of the only session where none is given."""
        if prefix:
            if len(prefix) < SHORTEST_PREFIX:
                raise TooShort("session")
            return quote(prefix, safe="")
        found = (await self.sessions(SessionQuery(limit=_MOST_CANDIDATES + 1))).sessions
        if not found:
            raise NoSuch("no session is live")
        if len(found) > 1:
            raise Ambiguous("more than one session is live: give more characters of the id", tuple(found))
        return found[0].session

    async def events(self, limit: int = 100, session: str = "") -> list[dict[str, Any]]:
        params = {"limit": str(limit)} | ({"session": session} if session else {})
        return await self._ask("GET", "events", list[dict[str, Any]], params)

    async def follow(self, session: str = "") -> AsyncIterator[dict[str, Any]]:
        params = {"session": session} if session else {}
        accept = {"Accept": "text/event-stream"}
        try:
            async with self._client.stream("GET", "events", params=params, headers=accept, timeout=None) as response:
                if response.status_code != 200:
                    await response.aread()
                self._check(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line[6:])
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    async def tasks(self, query: TaskQuery) -> TaskPage:
        params = {"q": query.query, "status": query.status, "limit": str(query.limit), "after": query.after}
        return await self._ask("GET", "tasks", TaskPage, {name: value for name, value in params.items() if value})

    async def task(self, prefix: str) -> TaskRow:
        return await self._ask("GET", _task_path(prefix), TaskRow)

    async def cancel_task(self, prefix: str, by: str = "") -> str:
        return (await self._ask("DELETE", _task_path(prefix), dict[str, str]))["cancelled"]

    async def timeline(self, prefix: str) -> SessionTimeline:
        return await self._ask("GET", f"sessions/{await self._one(prefix)}/timeline", SessionTimeline)

    async def past_sessions(self, query: PastQuery) -> list[TimelineHead]:
        params = {"q": query.query, "principal": query.principal, "client": query.client, "limit": str(query.limit)}
        given = {name: value for name, value in params.items() if value}
        return await self._ask("GET", "timelines", list[TimelineHead], given)

    async def history(self, over: Range, server: str = "", tool: str = "") -> HistoryView:
        params = {"range": over, "server": server, "tool": tool}
        given: dict[str, str] = {name: value for name, value in params.items() if value}
        return await self._ask("GET", "history", HistoryView, given)

    async def usage(self, by: UsageBy, over: Range) -> list[UsageRow]:
        return await self._ask("GET", "usage", list[UsageRow], {"by": by, "range": over})

    async def servers(self, over: Range) -> list[ServerRow]:
        return await self._ask("GET", "servers", list[ServerRow], {"range": over})

    async def replicas(self) -> list[ReplicaReport]:
        return await self._ask("GET", "replicas", list[ReplicaReport])

    async def warnings(self) -> list[UnreturningClient]:
        return await self._ask("GET", "warnings", list[UnreturningClient])

    async def drain(self, prefix: str, by: str = "") -> str:
        return (await self._ask("POST", f"replicas/{quote(prefix, safe='')}/drain", dict[str, str]))["drained"]

    async def admit(self, prefix: str, by: str = "") -> str:
        return (await self._ask("DELETE", f"replicas/{quote(prefix, safe='')}/drain", dict[str, str]))["admitted"]

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        params: dict[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> T:
        try:
            response = await self._client.request(method, path, params=params, timeout=timeout_s)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        self._check(response)
        return msgspec.json.decode(response.content, type=kind)

    def _unreachable(self, error: Exception) -> OperatorError:
        return OperatorError(f"{self._url} cannot be reached: {error or type(error).__name__}")

    def _check(self, response: httpx2.Response) -> None:
        if response.status_code == 200:
            return
        if response.status_code == 401:
            raise OperatorError("MCP_GATEWAY_ADMIN_KEY is not a key of that gateway's gateway.admin.keys")
        kind = NoSuch if response.status_code == 404 else OperatorError
        try:
            detail = response.json()["detail"]
        except (ValueError, LookupError, TypeError):
            kind = OperatorError
            check = "check that gateway.admin.keys is set there; if gateway.admin.listen is set, give that address"
            detail = f"{self._url} answers {response.status_code}: {check}"
        raise kind(str(detail))


def _task_path(prefix: str) -> str:
    """The path of one task. Raises `TooShort`: the prefix could not stand in a path."""
    if len(prefix) < SHORTEST_PREFIX:
        raise TooShort("task")
    return f"tasks/{quote(prefix, safe='')}"
