"""Serve the pages on which people consent (`gateway.secrets.NAME.consent`).

A link is for one principal. The person who opens it first proves to be this principal: by the name that a trusted proxy
sends, or with a credential of the gateway. A cookie then lets only this browser complete the consent. So neither a link
of the gateway nor one of the authorization server is of use to another person (MCP 2026-07-28, Elicitation §Phishing).
"""

import functools
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.admin.auth import SignInAttempts, TooManyAttempts
from gateway.config.secrets import ConsentSettings
from gateway.context.consented_tokens import LINK_S, ConsentedTokens, Link, grant_name
from gateway.context.principal_secrets import PrincipalSecrets
from gateway.identity.authenticate import Authenticator
from gateway.observability.audit import Audit
from gateway.observability.logs import CLIENT
from gateway.policy.rate_limits import RateLimits
from gateway.serving.pages.html_pages import page_headers, rendered
from session_store import ANONYMOUS, Principal, StoreError
from transports.inbound.host_and_origin import Guard, is_same_site
from transports.inbound.http_requests_and_responses import peer_of, read_body
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_REQUEST

if TYPE_CHECKING:
    from gateway.context.consent_flow import ConsentFlow

logger = logging.getLogger(__name__)

_MOST_BYTES: Final = 16 << 10
_MOST_FIELDS: Final = 8
_STATE_CHARS: Final = 12
_TITLE: Final = "Connect your account"
_OLD: Final = "This link is not valid any more. Repeat the request in your client, which gets a new one."


@dataclass(eq=False, repr=False)
class ConsentPages:
    """Serve the pages on which people let the gateway use their account at a server (OAuth).

    `credentials` holds the configured secrets, and `is_known` returns True if a principal is configured. Both follow
    a reload of the configuration.
    """

    tokens: ConsentedTokens
    credentials: PrincipalSecrets
    _: KW_ONLY
    identity: Authenticator
    guard: Guard
    rates: RateLimits
    audit: Audit
    is_known: Callable[[Principal], bool]

    def __post_init__(self) -> None:
        self._is_secure = self.tokens.base.startswith("https:")
        self._attempts = SignInAttempts()
        # With `no-referrer`, browsers send the form without its origin.
        self._headers = page_headers(referrer="same-origin")

    @property
    def routes(self) -> list[BaseRoute]:
        """Return the routes of the pages for Starlette. They answer 404 as long as no secret has `consent`."""
        return [
            Route("/oauth/connect/{link}", self._checked(self._connect), methods=["GET", "POST"]),
            Route("/oauth/callback/{secret}", self._checked(self._callback), methods=["GET"]),
            Route("/oauth/client/{secret}.json", self._checked(self._client), methods=["GET"]),
        ]

    @functools.cached_property
    def _flow(self) -> "ConsentFlow":
        from gateway.context.consent_flow import ConsentFlow  # loads the SDK

        return ConsentFlow(self.tokens)

    def _page(
        self, text: str, status: int = 200, *, title: str = _TITLE, server: str = "", key: bool = False
    ) -> Response:
        facts = {"title": title, "text": text, "asks": bool(server), "server": server, "needs_credential": key}
        return HTMLResponse(rendered("consent.html", **facts), status, self._headers)

    def _checked(
        self, page: Callable[[Request, dict[str, str]], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that serves `page`. Before that, it checks the headers and counts the request against the
        rate limit of clients without a credential. It turns errors into pages. Without consent settings: 404."""

        async def answer(request: Request) -> Response:
            if not self.credentials.asks_for_consent() or request.method == "HEAD":
                return PlainTextResponse("Not Found", 404)
            try:
                headers = self.guard.headers(request.scope)
                self.guard.check(headers)
                CLIENT.set(self.guard.client_network(request.scope, headers))
                await self.rates.count_message(ANONYMOUS, CLIENT.get())
                return await page(request, headers)
            except Refused as refused:
                return self._page(str(refused), refused.status)
            except TooManyAttempts as error:
                return self._page(f"{error}.", 429)
            except StoreError:
                return self._page("The gateway's store does not answer. Try again.", 503)

        return answer

    # -- who opens the link

    async def _connect(self, request: Request, headers: dict[str, str]) -> Response:
        link = self.tokens.link_in(request.path_params["link"])
        if link is None:
            return self._page(_OLD, 404)
        is_answer = request.method == "POST"
        if is_answer and not is_same_site(headers):
            return self._page("Open the link itself, not by way of another page.", 403)
        if is_answer and (credential := (await _form(request)).get("credential", "").strip()):
            headers["authorization"] = f"Bearer {credential}"
        try:
            principal = await self._principal(request, headers)
        except Refused as refused:
            if is_answer and "authorization" in headers:
                return self._page(f"{refused} Go back and try again.", refused.status)
            principal = ANONYMOUS
        if principal.is_anonymous:
            if is_answer:
                return self._page("Go back and enter a credential.", 401)
            return self._page("Whose request was it? The gateway has to know that it is yours.", server="…", key=True)
        settings = self.credentials.consent_of(link.secret, principal)
        if settings is None or grant_name(link.secret, settings, principal) != link.grant:  # the link of another
            self.audit.record("refused", principal=str(principal), reason="a link to consent is of somebody else")
            return self._page("This link belongs to a request of somebody else. Nothing has happened.", 403)
        if is_answer:
            return await self._begin(link, settings, principal)
        server = urlsplit(settings.resource).hostname or ""
        text = f"A client of yours ({principal}) wants to use {settings.resource} with your account there."
        return self._page(text, server=server)

    async def _principal(self, request: Request, headers: dict[str, str]) -> Principal:
        """Return the principal that has sent the request: the one that a trusted proxy names, or that of the credential
        in `headers`.

        Raises:
            Refused: the request proves no identity.
            TooManyAttempts: the credential is wrong, and too many wrong ones came before it. A right one is always
                accepted.
        """
        peer = peer_of(request.scope)
        try:
            who = self.identity.known(headers, peer)
            return (await self.identity.verify(headers, peer) if who is None else who).principal
        except Refused:
            if "authorization" in headers:
                self._attempts.check(CLIENT.get())
                self._attempts.wrong(CLIENT.get())
                self.audit.record("refused", reason="unknown credential on a page for consent")
            raise

    # -- to the authorization server, and back

    async def _begin(self, link: Link, settings: ConsentSettings, principal: Principal) -> Response:
        from gateway.context.consent_flow import ConsentFailed

        browser = secrets.token_urlsafe(32)
        try:
            url, state = await self._flow.begin(link.secret, settings, principal, browser)
        except ConsentFailed as error:
            logger.warning("gateway.secrets.%s: nobody can consent: %s", link.secret, error)
            return self._page(f"The server cannot be asked: {error}.", 502)
        response = RedirectResponse(url, 303, self._headers)
        response.set_cookie(
            self._cookie(state),
            browser,
            max_age=int(LINK_S),
            secure=self._is_secure,
            httponly=True,
            samesite="lax",  # the authorization server sends the browser back
        )
        return response

    async def _callback(self, request: Request, headers: dict[str, str]) -> Response:
        from gateway.context.consent_flow import ConsentFailed

        given, secret = dict(request.query_params), request.path_params["secret"]
        name = self._cookie(given.get("state", ""))
        try:
            grant = await self._flow.finish(secret, given, request.cookies.get(name, ""), self._known_settings)
        except ConsentFailed as error:
            return self._page(f"Your account is not connected: {error}.", 400, title="Not connected")
        reason = f"an account was connected for the secret {grant.secret!r}"
        self.audit.record("operated", principal=str(grant.principal), reason=reason)
        response = self._page("Go back to your client, and repeat the request.", title="Connected")
        response.delete_cookie(name, secure=self._is_secure, httponly=True, samesite="lax")
        return response

    def _known_settings(self, secret: str, principal: Principal) -> ConsentSettings | None:
        """Return the settings by which `principal` consents to the use of `secret`. Return None if the secret has none
        for this principal, or if the principal is not configured."""
        return self.credentials.consent_of(secret, principal) if self.is_known(principal) else None

    async def _client(self, request: Request, headers: dict[str, str]) -> Response:
        """Return the document that tells an authorization server who the gateway is (OAuth Client ID Metadata
        Document); 404 if the secret in the path has no `consent`."""
        from gateway.context.consent_flow import client_metadata, client_url

        base, secret = self.tokens.base, request.path_params["secret"]
        if not self.credentials.asks_for_consent(secret):
            return PlainTextResponse("Not Found", 404)
        return JSONResponse({"client_id": client_url(base, secret), **client_metadata(base, secret)})

    def _cookie(self, state: str) -> str:
        """Return the name of the cookie that ties one consent to a browser. `state`: the OAuth `state` of this consent.
        With TLS, the name has the prefix `__Host-`: no other host can set the cookie (RFC 6265bis §4.1.3.2)."""
        digest = hashlib.sha256(state.encode("utf-8", "replace")).hexdigest()[:_STATE_CHARS]
        return f"{'__Host-' if self._is_secure else ''}mcp_gateway_consent_{digest}"


async def _form(request: Request) -> dict[str, str]:
    """Read a POST body, and return the fields of its form. Raises `Refused`: 400 if the body is incomplete or has too
    many fields, 413 if it is too large."""
    data = await read_body(request.receive, request.headers, _MOST_BYTES)
    if data is None:
        raise Refused(400, INVALID_REQUEST, "The request ended before its form did.")
    try:
        return dict(parse_qsl(data.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise Refused(400, INVALID_REQUEST, "The form has too many fields.") from None
