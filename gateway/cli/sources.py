"""Where the command line's operator looks: into a store, or at a running gateway by its REST interface."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import httpx2
import msgspec

from gateway.admin.operations import Only, matches
from gateway.admin.reports import row_of
from session_store import AuditEvent, Backend, Session, SessionGone, backend_for
from session_store.connect import BackendOptions, shown
from session_store.session import redact

__all__ = ["Mistake", "RestSource", "Source", "StoreSource", "opened"]

SHORTEST_PREFIX: Final = 4
_MOST_NAMED: Final = 10
_PAGE: Final = 1_000
_TIMEOUT_S: Final = 30.0


class Mistake(Exception):
    """What to tell the person at the terminal."""


class Source(Protocol):
    """What the commands ask for. Every method may raise `Mistake`."""

    async def page(self, *, query: str, only: Only, limit: int, after: str) -> dict[str, Any]:
        """Live sessions in order of id: `sessions`, and `after`, where the next page begins (empty: there is none)."""
        ...

    async def show(self, prefix: str) -> dict[str, Any]:
        """One session."""
        ...

    async def end(self, prefix: str) -> str:
        """End one; how its id begins."""
        ...

    async def events(self, limit: int) -> list[dict[str, Any]]:
        """What happened lately, newest first."""
        ...


@asynccontextmanager
async def opened(store: str, url: str, key: str) -> AsyncIterator[Source]:
    """The one that is meant.

    Raises:
        Mistake, StoreError: none is, or it cannot be used.
    """
    if url:
        async with RestSource(url, key).open() as rest:
            yield rest
        return
    if not store:
        raise Mistake("say where: --url of a running gateway (with MCP_GATEWAY_ADMIN_KEY), or --store")
    backend = backend_for(store, BackendOptions(exclusive=False, create=False))
    if not backend.is_durable:
        raise Mistake(
            f"{shown(store)} keeps its sessions inside the gateway's process, where no other can see them; give the "
            "URL of a sqlite or redis store, or ask the gateway with --url"
        )
    await backend.open()
    try:
        await backend.ping()
        yield StoreSource(backend)
    finally:
        await backend.close()


class StoreSource:
    """Knows what records say; processes and calls are known to gateways only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def page(self, *, query: str, only: Only, limit: int, after: str) -> dict[str, Any]:
        if only != "all":
            raise Mistake("which sessions fail or are busy is known to gateways only: ask one with --url")
        # "~" stands behind every character of an id: the page begins behind all that start like that.
        place, found = f"{after}~" if after else "", list[Session]()
        while len(found) <= limit:
            page = await self._backend.sessions.page(after=place, limit=_PAGE)
            found += [session for session in page if matches(session, query)]
            if len(page) < _PAGE:
                break
            place = page[-1].id
        more = redact(found[limit - 1].id) if len(found) > limit else ""
        return {"sessions": [await self._facts(session) for session in found[:limit]], "after": more}

    async def show(self, prefix: str) -> dict[str, Any]:
        session = await self._find(prefix)
        return await self._facts(session) | {"state_keys": await self._backend.state.keys(session.id)}

    async def end(self, prefix: str) -> str:
        from gateway.sessions.lifecycle import ENDED

        session = await self._find(prefix)
        if not await self._backend.sessions.end(session.id):
            raise Mistake("it ended a moment ago")
        await self._backend.bus.publish(ENDED, session.id.encode())
        told = AuditEvent(
            at=time.time(),
            event="ended",
            session=redact(session.id),
            principal=str(session.principal),
            endpoint=session.endpoint,
            era=session.era,
            reason="the operator ended it",
        )
        await self._backend.audit.record([told])
        return redact(session.id)

    async def events(self, limit: int) -> list[dict[str, Any]]:
        trail = await self._backend.audit.recent(limit)
        return [{name: getattr(event, name) for name in event.__slots__} for event in trail]

    async def _facts(self, session: Session) -> dict[str, Any]:
        try:
            size = await self._backend.state.size(session.id)
        except SessionGone:
            size = 0
        facts: dict[str, Any] = msgspec.to_builtins(row_of(session, None, time.time(), state_bytes=size))
        unknown = {"calls", "failed", "in_flight", "parked", "streams", "processes", "failures", "state_keys"}
        return {name: value for name, value in facts.items() if name not in unknown}

    async def _find(self, prefix: str) -> Session:
        """The one session meant. Never a guess."""
        check_prefix(prefix)
        exact = await self._backend.sessions.peek(prefix) if prefix else None
        if exact is not None:
            return exact
        page = await self._backend.sessions.page(after=prefix, limit=_MOST_NAMED + 1)
        found = [session for session in page if session.id.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        raise not_one(prefix, [(redact(s.id), str(s.principal), s.client.name) for s in found])


class RestSource:
    """Knows what all replicas know."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.removesuffix("/").removesuffix("/mcp").removesuffix("/admin")
        if not key:
            raise Mistake("MCP_GATEWAY_ADMIN_KEY is not set: it holds an operator's key of that gateway")
        self._client = httpx2.AsyncClient(
            base_url=f"{self._url}/admin/api/", headers={"Authorization": f"Bearer {key}"}, timeout=_TIMEOUT_S
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RestSource"]:
        """Inside the block it can be asked."""
        async with self._client:
            yield self

    async def page(self, *, query: str, only: Only, limit: int, after: str) -> dict[str, Any]:
        params = {"q": query, "only": only, "limit": str(limit), "after": after}
        return dict(await self.ask("GET", "sessions", {name: value for name, value in params.items() if value}))

    async def show(self, prefix: str) -> dict[str, Any]:
        return dict(await self.ask("GET", f"sessions/{await self._one(prefix)}"))

    async def end(self, prefix: str) -> str:
        return str((await self.ask("DELETE", f"sessions/{await self._one(prefix)}"))["ended"])

    async def _one(self, prefix: str) -> str:
        check_prefix(prefix)
        if prefix:
            return prefix
        found = (await self.page(query="", only="all", limit=_MOST_NAMED + 1, after=""))["sessions"]
        if len(found) == 1:
            return str(found[0]["session"])
        raise not_one("", [(row["session"], row["principal"], row["client"]) for row in found])

    async def events(self, limit: int) -> list[dict[str, Any]]:
        return list(await self.ask("GET", "events", {"limit": str(limit)}))

    async def replicas(self) -> list[dict[str, Any]]:
        """All replicas."""
        return list(await self.ask("GET", "replicas"))

    async def follow(self, session: str) -> AsyncIterator[dict[str, Any]]:
        """What happens from now on."""
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

    async def ask(self, method: str, path: str, params: dict[str, str] | None = None) -> Any:
        """One answer."""
        try:
            response = await self._client.request(method, path, params=params)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        self._check(response)
        return response.json()

    def _unreachable(self, error: Exception) -> Mistake:
        return Mistake(f"{self._url} cannot be reached: {error or type(error).__name__}")

    def _check(self, response: httpx2.Response) -> None:
        if response.status_code == 200:
            return
        if response.status_code == 401:
            raise Mistake("MCP_GATEWAY_ADMIN_KEY is not a key of that gateway's gateway.admin.keys")
        try:
            detail = response.json()["detail"]
        except (ValueError, LookupError, TypeError):
            detail = f"{self._url} answers {response.status_code}: are operators served there (gateway.admin.keys)?"
        raise Mistake(str(detail))


def check_prefix(prefix: str) -> None:
    """Raises `Mistake` for what is too short to mean one session."""
    if prefix and len(prefix) < SHORTEST_PREFIX:
        raise Mistake(f"give at least {SHORTEST_PREFIX} characters of the id")


def not_one(prefix: str, found: list[tuple[str, str, str]]) -> Mistake:
    """What to say when not one session is meant."""
    what = f"begins with {prefix}" if prefix else "is live"
    if not found:
        return Mistake(f"no session {what}")
    listed = "\n".join(
        f"  {session}  {principal}  {client or '?'}" for session, principal, client in found[:_MOST_NAMED]
    )
    more = "\n  …" if len(found) > _MOST_NAMED else ""
    return Mistake(f"more than one session {what}; say which:\n{listed}{more}")
