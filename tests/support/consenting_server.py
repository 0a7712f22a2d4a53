"""An MCP server that only serves who has consented, and its authorization server: the SDK's own, at which people say
who they are, or an issuer of identity assertions (ID-JAG) says it."""

import contextlib
import itertools
import secrets
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import jwt
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    RefreshToken,
    TokenError,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthClientInformationFull, OAuthToken
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tests.support.asgi import served
from tests.support.free_ports import free_port
from tests.support.issuer import ASSERTING_CLIENT, Issuer


class ConsentingServer:
    """What the server has seen. `lives_s`: the lifetime of access tokens. `names_issuer`: what it sends as `iss`."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.url = f"{self.base}/mcp"
        self.lives_s = 60
        self.issuer = self.base
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.asked: dict[str, tuple[OAuthClientInformationFull, AuthorizationParams]] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.expires: dict[str, float] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.refreshed: list[str] = []
        """Whose tokens were refreshed."""
        self.calls: list[str] = []
        """Whose token each call of the tool had."""
        self.asserted: list[str] = []
        """Whom each assertion that was accepted named."""
        self._trusted: Issuer | None = None
        self._numbers = itertools.count()

    # -- the authorization server (mcp.server.auth.provider.OAuthAuthorizationServerProvider)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.asked[name := secrets.token_hex(8)] = client, params
        return f"{self.base}/login?request={name}"

    async def login(self, request: Request) -> Response:
        """Send a person back who has said who it is, or that it does not consent."""
        client, asked = self.asked.pop(request.query_params["request"])
        person = request.query_params.get("person", "")
        back: dict[str, Any] = {"state": asked.state, "iss": self.issuer}
        if person:
            code = AuthorizationCode(
                code=secrets.token_urlsafe(24),
                scopes=asked.scopes or [],
                expires_at=time.time() + 60,
                client_id=str(client.client_id),
                code_challenge=asked.code_challenge,
                redirect_uri=asked.redirect_uri,
                redirect_uri_provided_explicitly=True,
                resource=asked.resource,
                subject=person,
            )
            self.codes[code.code] = code
            back["code"] = code.code
        else:
            back["error"] = "access_denied"
        return RedirectResponse(f"{asked.redirect_uri}?{urlencode(back)}", 302)

    async def load_authorization_code(self, _: Any, code: str) -> AuthorizationCode | None:
        return self.codes.get(code)

    async def exchange_authorization_code(self, _: Any, code: AuthorizationCode) -> OAuthToken:
        del self.codes[code.code]
        return self._given(code)

    async def load_refresh_token(self, _: Any, token: str) -> RefreshToken | None:
        return self.refresh.get(token)

    async def exchange_refresh_token(self, _: Any, token: RefreshToken, scopes: list[str]) -> OAuthToken:
        del self.refresh[token.token]
        self.refreshed.append(token.subject or "")
        return self._given(token)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if time.time() < self.expires.get(token, 0.0) else None

    async def revoke_token(self, token: Any) -> None:
        raise NotImplementedError

    def trust(self, issuer: Issuer, secret: str) -> None:
        """Give tokens to the gateway, which has that client secret, for assertions of an issuer."""
        self._trusted = issuer
        self.clients[ASSERTING_CLIENT] = OAuthClientInformationFull(
            client_id=ASSERTING_CLIENT,
            client_secret=secret,
            token_endpoint_auth_method="client_secret_basic",
            grant_types=[JWT_BEARER_GRANT_TYPE],
            redirect_uris=None,
        )

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        assert self._trusted is not None
        try:
            if jwt.get_unverified_header(params.assertion)["typ"] != "oauth-id-jag+jwt":
                raise TokenError("invalid_grant")
            key = next(iter(self._trusted.keys.values())).public_key()
            known = {"audience": self.base, "issuer": self._trusted.url}
            claims = jwt.decode(params.assertion, key, ["RS256"], **known)  # type: ignore[arg-type]  # they are texts
        except jwt.InvalidTokenError:
            raise TokenError("invalid_grant", params.assertion) from None
        if (claims["client_id"], claims["resource"]) != (client.client_id, params.resource):
            raise TokenError("invalid_grant", params.assertion)
        self.asserted.append(claims["sub"])
        facts: dict[str, Any] = {"client_id": client.client_id, "scopes": ["mcp"], "resource": claims["resource"]}
        return self._given(RefreshToken(token="", subject=claims["sub"], **facts))

    def _given(self, by: AuthorizationCode | RefreshToken) -> OAuthToken:
        facts: dict[str, Any] = {"client_id": by.client_id, "scopes": by.scopes, "resource": by.resource}
        facts["subject"] = by.subject
        name = f"{by.subject}-{next(self._numbers)}-{secrets.token_urlsafe(16)}"
        access = AccessToken(token=f"access-{name}", **facts)
        self.expires[access.token] = time.time() + self.lives_s
        refresh = RefreshToken(token=f"refresh-{name}", **facts)
        self.access[access.token], self.refresh[refresh.token] = access, refresh
        return OAuthToken(
            access_token=access.token, token_type="Bearer", expires_in=self.lives_s, refresh_token=refresh.token
        )


@contextlib.contextmanager
def consenting_server() -> Iterator[ConsentingServer]:
    """A server that runs until the end of the block."""
    state = ConsentingServer(port := free_port())
    options = ClientRegistrationOptions(enabled=True, valid_scopes=["mcp"], default_scopes=["mcp"])
    auth = AuthSettings.model_validate(
        {
            "issuer_url": state.base,
            "resource_server_url": state.url,
            "client_registration_options": options,
            "required_scopes": ["mcp"],
            "identity_assertion_enabled": True,
            "validate_token_resource": True,
        }
    )
    server = MCPServer("consenting", auth=auth, auth_server_provider=state)

    @server.tool()
    def whoami() -> str:
        """Say whose token the call had."""
        token = get_access_token()
        assert token is not None
        state.calls.append(token.subject or "")
        return token.subject or ""

    server.custom_route("/login", methods=["GET"])(state.login)
    with served(server.streamable_http_app(), port=port, lifespan="on"):
        yield state


class Person:
    """A person with a browser, who has a key of the gateway, and an account called `account` at the server."""

    def __init__(self, account: str, key: str = "", user: str = "") -> None:
        self.account, self.key = account, key
        named = {"X-User": user} if user else {}  # as a proxy does
        self.browser = httpx.Client(timeout=30, headers={"Connection": "close", **named})

    def open(self, link: str) -> httpx.Response:
        """Open a link of the gateway and continue on its page, to the authorization server if it lets the person."""
        page = self.browser.get(link)
        if page.status_code != 200:
            return page
        return self.browser.post(link, data={"credential": self.key} if 'name="credential"' in page.text else {})

    def log_in(self, page: httpx.Response) -> httpx.Response:
        """Log in at the authorization server to which a page has led, and consent. Return the address that leads back,
        which is not opened."""
        page = self.browser.get(page.headers["location"])
        return self.browser.get(f"{page.headers['location']}&person={self.account}")

    def connect(self, link: str) -> httpx.Response:
        """Do all of it. Return the last page."""
        page = self.open(link)
        return self.browser.get(self.log_in(page).headers["location"]) if page.status_code == 303 else page
