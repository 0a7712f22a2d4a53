"""Requests to an app behind `SessionMiddleware`, without a server."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.integrations.app_session import AppSession
from gateway.integrations.session_middleware import SessionMiddleware
from session_store import MemoryBackend, StoreUnavailable, current_session

KEY = "k" * 40
Handler = Callable[[Any], Awaitable[Any]]


class Answer:
    """What the server of the app was sent."""

    def __init__(self) -> None:
        self.events: list[MutableMapping[str, Any]] = []

    async def send(self, event: MutableMapping[str, Any]) -> None:
        self.events.append(event)

    @property
    def status(self) -> int:
        return int(self.events[0]["status"])

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.events[0].get("headers", ()))

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.events)

    def header(self, name: str) -> str:
        """The value; empty if the header is not there."""
        return dict(self.headers).get(name.encode(), b"").decode()


class Client:
    """A client with a cookie jar of one cookie."""

    def __init__(self, app: Any, **headers: str) -> None:
        self.app = app
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.cookie = ""

    def scope(self, kind: str, **more: Any) -> dict[str, Any]:
        headers = [("host", "app.example"), *self.headers.items(), *([("cookie", self.cookie)] if self.cookie else [])]
        raw = [(name.encode(), value.encode()) for name, value in headers]
        return {"type": kind, "path": "/mcp", "scheme": "http", "headers": raw, "client": ("192.0.2.1", 1), **more}

    async def get(self, kind: str = "http", **more: Any) -> Answer:
        answer = Answer()
        await self.app(self.scope(kind, **more), _nothing, answer.send)
        given = answer.header("set-cookie").partition(";")[0]
        self.cookie = "" if given.endswith("=") else given or self.cookie
        return answer

    async def connect(self, **more: Any) -> Answer:
        return await self.get("websocket", **more)


async def _nothing() -> MutableMapping[str, Any]:
    return {"type": "http.request"}


def app_of(handler: Handler, *, headers: Any = (), status: int = 200, **options: Any) -> SessionMiddleware:
    """An app that answers with what `handler` makes of the session; on WebSockets after it has accepted."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        session: Any = scope["mcp.session"]
        assert session is current_session()
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": str(await handler(session))})
            return
        body = str(await handler(session)).encode()
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})
        await send({"type": "http.response.body", "body": body})

    given: dict[str, Any] = {"store": MemoryBackend(), "keys": KEY} | options
    return SessionMiddleware(app, **given)


async def count(session: AppSession) -> Any:
    return await session.state.increment("visits")


async def nothing(session: AppSession) -> Any:
    return ""


class FailingStore(MemoryBackend):
    """A store that can be cut off, or lose its answers. Counts the transactions that it is asked for."""

    is_cut_off = loses_answers = False
    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.sessions._transactions = self

    def forget_all(self) -> None:
        """End all sessions without a word to who knows them."""
        for session in list(self.sessions.records.scan()):
            self.sessions.records.remove(session.id)

    async def run(self, work: Any) -> Any:
        if self.is_cut_off:
            raise StoreUnavailable("cut off", may_have_taken_effect=False)
        self.asked += 1
        result = await super().run(work)
        if self.loses_answers:
            raise StoreUnavailable("no answer")
        return result
