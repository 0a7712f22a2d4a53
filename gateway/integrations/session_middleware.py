"""Sessions for any ASGI app. The app needs a store and keys, but no gateway and no MCP server."""

import json
import logging
from collections.abc import Awaitable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.load import explained, gathered
from gateway.config.secrets import given_keys
from gateway.config.sessions import SessionSettings
from gateway.config.settings import GatewaySettings
from gateway.config.settings_base import Frozen
from gateway.errors import session_unknown, store_refused, store_unavailable, write_unknown
from gateway.integrations.app_session import AppSession, Client, WhoIs
from gateway.integrations.app_session_id_carriers import AppCarriers, has_header, with_session_headers
from gateway.integrations.app_session_store import AppSessions, AppStore, StorePerLoop
from session_store import InvalidKeyRing, KeyRing, SessionGone, StoreError, StoreFull, backend_for
from session_store.app_store import DocumentBackend, DocumentStore
from session_store.connect import BackendOptions, check_store_url
from session_store.current_tool_session import SCOPE_KEY, bound_session
from transports.inbound.http_requests_and_responses import Receive, Scope, Send, send_json
from transports.inbound_port import HeaderList, Refused

_ISSUES: Final = "SessionMiddleware"


class AppSettings(Frozen):
    """The settings of the gateway that also apply to sessions of an app."""

    store: str = ""
    store_file: str = ""
    session: SessionSettings = SessionSettings()


class _Given(Frozen):
    """The settings from the environment under the key `gateway`, so that error messages name the right variables."""

    gateway: AppSettings


def settings_of(store: str | None, times: Mapping[str, float | None]) -> AppSettings:
    """Return the settings of an app from the environment. `store` (a URL) and `times` (`idle_ttl_s` and `max_age_s` by
    name) override them, unless they are None.

    Logs a warning for each `MCP_GATEWAY_…` variable that is not a setting.

    Raises:
        ConfigurationError: a value is invalid, or the name of a variable is misspelt. The message names the variable,
            and says what to do.
    """
    given = {name: value for name, value in times.items() if value is not None}
    # A URL in the program also replaces the variable that names a file.
    overrides = {} if store is None else {"store": store, "store_file": ""}
    # All settings of a gateway are known names: one may run beside the app.
    found = gathered(None, overrides, GatewaySettings)
    for note in found.notes:
        logger.warning("%s: %s", _ISSUES, note.text)
    own = {name: value for name, value in found.document["gateway"].items() if name in AppSettings.model_fields}
    try:
        settings = _Given.model_validate({"gateway": own}).gateway
    except ValidationError as error:
        raise ConfigurationError(f"{_ISSUES}: {explained(error, found.origins, _Given)}") from None
    try:
        session = SessionSettings.model_validate({**settings.session.model_dump(), **given})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ConfigurationError(f"{_ISSUES}({fault['loc'][0]}={fault['input']!r}): {fault['msg']}") from None
    return settings.model_copy(update={"session": session})


def backend_of(settings: AppSettings) -> Any:
    """Return the backend for the store's URL. It is not open yet.

    Raises:
        ConfigurationError: there is no URL, or no backend for it.
    """
    if not settings.store:
        raise ConfigurationError(
            f'{_ISSUES} needs a store: give store="redis://host:6379/0", or set MCP_GATEWAY_STORE. '
            '"memory://" keeps sessions in one process, for as long as it runs'
        )
    try:
        check_store_url(settings.store)
        return backend_for(settings.store, BackendOptions(max_sessions=settings.session.max_sessions))
    except (StoreError, ValueError) as error:
        raise ConfigurationError(f"{_ISSUES}: store: {error}") from None


def ring_of(keys: str | Sequence[str] | KeyRing | None, backend: Any) -> KeyRing:
    """Return the keys that sign session ids: `keys`, else the keys in the environment, else the backend's own.

    Raises:
        ConfigurationError: the keys are invalid, or there are none and several processes may share the store.
    """
    try:
        if isinstance(keys, KeyRing):
            return keys
        if keys is not None:
            return KeyRing.parse(keys) if isinstance(keys, str) else KeyRing(keys)
    except InvalidKeyRing as error:
        raise ConfigurationError(f"{_ISSUES}(keys=…): {error}") from None
    ring = given_keys()
    if ring is not None:
        return ring
    if not backend.needs_keys:
        return backend.own_keys()  # type: ignore[no-any-return]  # a backend of any kind
    raise ConfigurationError(
        f"{_ISSUES} needs keys: give keys=…, or set MCP_GATEWAY_KEYS or MCP_GATEWAY_KEYS_FILE. All processes of "
        "the app have the same keys (`mcp-session-gateway keygen` makes one)"
    )


logger = logging.getLogger(__name__)


class SessionMiddleware:
    """Middleware that gives each request and WebSocket of an ASGI app its session, as `scope["mcp.session"]` and with
    `current_session()`.

    Clients send their session in the header `MCP-Gateway-Session` or in a signed cookie. Any number of processes can
    serve the same sessions, if they have the same store and the same keys.
    """

    def __init__(
        self,
        app: Any,
        *,
        store: str | DocumentStore | AppStore | None = None,
        keys: str | Sequence[str] | KeyRing | None = None,
        idle_ttl_s: float | None = None,
        max_age_s: float | None = None,
        principal: WhoIs | None = None,
        lazy: bool = True,
    ) -> None:
        """Wrap an app. Arguments that are None are taken from the environment.

        `store`: a URL (`MCP_GATEWAY_STORE`), a backend, or an object with the methods of `DocumentStore`. `keys`: keys
        that sign session ids, newest first (`MCP_GATEWAY_KEYS`). `idle_ttl_s` and `max_age_s`: seconds after which
        sessions end (`MCP_GATEWAY_SESSION__IDLE_TTL_S`, `…__MAX_AGE_S`). `principal` gets a request's scope, and
        returns its sender. Only the principal that has opened a session can use it. `lazy` False: look up the session
        of each request before the app runs.

        Raises:
            ConfigurationError: the store or the keys are missing or invalid.
        """
        url = store if isinstance(store, str) else "memory://" if store is not None else None
        settings = settings_of(url, {"idle_ttl_s": idle_ttl_s, "max_age_s": max_age_s})
        given: Any = store
        if isinstance(store, str | None):
            given = backend_of(settings)
        elif not hasattr(store, "sessions"):
            given = DocumentBackend(given)
        self._app = app
        self._carriers = AppCarriers(ring_of(keys, given), cookie=settings.session.cookie)
        if isinstance(store, str | None) and getattr(given, "is_shared", False):
            given = StorePerLoop(lambda: backend_of(settings))
        self._sessions = AppSessions(given, settings.session)
        self._client = Client(self._carriers, principal)
        self._lazy = lazy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, self._with_store(send) if kind == "lifespan" else send)
            return
        session = scope[SCOPE_KEY] = AppSession(self._sessions, self._client, scope)
        answer = (_Response if kind == "http" else _Handshake)(scope, self._carriers, session, send)
        try:
            if (is_named := has_header(scope)) or not self._lazy:
                await session.load()
                if is_named and not session.known_id:
                    raise session_unknown()
            with bound_session(session):
                await self._app(scope, receive, answer.send)
        except (Refused, SessionGone, StoreError) as error:
            if answer.has_begun:
                raise
            await answer.refuse(_refusal(error, session))
        finally:
            session.finish()

    def _with_store(self, send: Send) -> Send:
        """Return a `send` function for the app's ASGI lifespan: it opens the store at the startup, and closes it at the
        shutdown. An app without a lifespan opens the store at the first use."""

        failed = False

        async def sending(event: MutableMapping[str, Any]) -> None:
            nonlocal failed
            if failed:
                return  # the app tells of the error below, and the server knows it
            if event["type"] == "lifespan.startup.complete":
                try:
                    await self._sessions.open_store()
                except StoreError as error:
                    failed = True
                    await send({"type": "lifespan.startup.failed", "message": f"SessionMiddleware: {error}"})
                    raise  # the app waits for its end, and some servers wait for that of the app
            elif event["type"].startswith("lifespan.shutdown."):
                await self._sessions.close()
            await send(event)

        return sending


def _refusal(error: Refused | SessionGone | StoreError, session: AppSession) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, SessionGone):
        return session_unknown()
    if not isinstance(error, StoreFull):
        logger.warning("a request needs its session, and the store does not answer: %s", error)
    return write_unknown() if session.writes else store_refused(error)


def response_of(refused: Refused) -> tuple[int, bytes, HeaderList]:
    """Return the HTTP status, the body and the headers of the response to a refused request."""
    headers = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in refused.headers.items()]
    return refused.status, json.dumps({"error": str(refused)}).encode(), headers


class _Answer:
    """The app's answer to one request or WebSocket handshake. Subclasses send it, with the id of a new session, or
    refuse the request in the app's place."""

    __slots__ = ("_carriers", "_is_replaced", "_scope", "_send", "has_begun", "session")

    def __init__(self, scope: Scope, carriers: AppCarriers, session: AppSession, send: Send) -> None:
        self._scope = scope
        self._carriers = carriers
        self._send = send
        self.session = session
        self.has_begun = False
        self._is_replaced = False


class _Response(_Answer):
    """The response to one HTTP request: that of the app, with the headers that set or delete the client's session; or
    an error in place of it."""

    __slots__ = ()

    def send(self, event: MutableMapping[str, Any]) -> Awaitable[None]:
        """Send an ASGI event of the app to the HTTP server. If the event begins the response and the session is not
        settled (`is_settled`), leave it to `_begin`."""
        if event["type"] != "http.response.start":
            return self._go_on(event)
        session = self.session
        if not session.is_settled:
            return self._begin(event)
        session.seal()
        self.has_begun = True
        if session.is_used:
            event = {**event, "headers": with_session_headers(event.get("headers", ()), [])}
        return self._send(event)

    async def _begin(self, event: MutableMapping[str, Any]) -> None:
        """Send the head of the response, with the headers that set or delete the client's session. If the session
        cannot be opened, or if the app answers 5xx after the store has failed, send an error response instead."""
        session = self.session
        refused: Refused | None = None
        try:
            await session.settle()
        except (SessionGone, StoreError) as error:
            refused = _refusal(error, session)
        if refused is None and session.has_failed and event["status"] >= 500:
            # Frameworks answer 500 to exceptions that they do not know.
            refused = write_unknown() if session.writes else store_unavailable()
        if refused is not None:
            self._is_replaced = True
            await self.refuse(refused)
            return
        self.has_begun = True
        given: HeaderList = []
        if session.is_new:
            given = self._carriers.giving(self._scope, session.known_id)
        elif session.ended_id:
            given = self._carriers.taking(self._scope, session.ended_id)
        await self._send({**event, "headers": with_session_headers(event.get("headers", ()), given)})

    async def _go_on(self, event: MutableMapping[str, Any]) -> None:
        if self._is_replaced:
            return
        if event.get("more_body"):
            await self._send(event)
            return
        # The HTTP server may start the next request of the connection in here, which must not get this session.
        with bound_session(None):
            await self._send(event)

    async def refuse(self, refused: Refused) -> None:
        """Send an error response in place of the app's response."""
        self.has_begun = True
        with bound_session(None):
            await send_json(self._send, *response_of(refused))


class _Handshake(_Answer):
    """The answer to one WebSocket handshake, which sends the session's id to the client."""

    __slots__ = ()

    async def send(self, event: MutableMapping[str, Any]) -> None:
        """Send an ASGI event of the app to the server. Before accepting the WebSocket, look up or open its session.
        Raises `StoreError`: the store does not answer, or is full."""
        if not self.has_begun:
            if event["type"] == "websocket.accept":
                await self.session.load()
                await self.session.open()
                await self.session.settle()
                if self.session.is_new:
                    given = self._carriers.giving(self._scope, self.session.known_id)
                    event = {**event, "headers": [*event.get("headers", ()), *given]}
            self.has_begun = True
        await self._send(event)

    async def refuse(self, refused: Refused) -> None:
        """Refuse the WebSocket handshake in place of the app."""
        self.has_begun = True
        status, body, headers = response_of(refused)
        if "websocket.http.response" not in (self._scope.get("extensions") or {}):
            # 1008: policy violation. 1011: internal error. 1013: try again later (RFC 6455 §7.4, IANA).
            await self._send({"type": "websocket.close", "code": {503: 1013, 504: 1011}.get(status, 1008)})
            return
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
        await self._send({"type": "websocket.http.response.start", "status": status, "headers": head})
        await self._send({"type": "websocket.http.response.body", "body": body})
