"""Ask a person for consent at the authorization server of a server: OAuth 2.1, authorization code with PKCE, as MCP
2026-07-28 (Authorization) says. Discovery, client ids and checks are the functions of the official SDK.

Each step is bound to one browser, whose user has proved to be the principal (`gateway.serving.pages.consent_pages`). So
a person who opens somebody else's link, at the gateway or at the authorization server, cannot connect an account.
"""

import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, PKCEParameters
from mcp.client.auth import utils as sdk
from mcp.client.auth.oauth2 import OAuthContext, check_registration_usable
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    ProtectedResourceMetadata,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import ValidationError

from gateway.config.addresses import is_of_this_machine
from gateway.config.secrets import ConsentSettings, safe_url
from gateway.context.authorization_server_client import BadAnswer, NoToken, client_headers
from gateway.context.consented_tokens import LINK_S, ConsentedTokens, Grant, Registration, grant_name, with_token
from session_store import Principal

logger = logging.getLogger(__name__)

CALLBACK: Final = "/oauth/callback/"
CLIENT: Final = "/oauth/client/"
"""The beginnings of two paths: authorization servers send browsers back to `CALLBACK`, and read the gateway's metadata
at `CLIENT`. The name of the secret follows. So if an authorization server redirects people to the authorization server
of another secret, it does not get the code of that one (RFC 9700 §4.4.2.2)."""
_GRANTS: Final = ["authorization_code", "refresh_token"]
_REGISTERED_S: Final = 90 * 86_400.0
_KEPT: Final = {"issuer", "authorization_endpoint", "token_endpoint", "authorization_response_iss_parameter_supported"}


class ConsentFailed(Exception):
    """A consent has failed, and no token was stored. The message says why, and may be shown to the person."""


class _Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A stored request for consent: its browser was sent to an authorization server, and has not come back yet."""

    grant: Grant
    """The grant that the consent will make, still without a token."""
    browser: str
    """The digest of the cookie with which the browser must come back."""
    verifier: str
    """The code verifier of PKCE, to be sent with the token request."""
    metadata: str
    """The metadata of the authorization server, as JSON."""
    redirect_uri: str

    __repr__ = object.__repr__


class _Found(NamedTuple):
    """The metadata of a server and of its authorization server, and the scopes to ask for."""

    resource: ProtectedResourceMetadata | None
    metadata: OAuthMetadata
    scope: str

    def context(self, server: str, client: OAuthClientInformationFull) -> OAuthContext:
        """Return the SDK's `OAuthContext` of the gateway's `client` at `server`, without storage and browser
        handlers."""
        own, client_of = cast("Any", None), OAuthClientMetadata(redirect_uris=client.redirect_uris)
        return OAuthContext(
            server,
            client_of,
            own,
            own,
            own,
            protected_resource_metadata=self.resource,
            oauth_metadata=self.metadata,
            client_info=client,
        )


class ConsentFlow:
    """Take people to the authorization server of a secret, and get their tokens when they come back."""

    def __init__(self, tokens: ConsentedTokens) -> None:
        self._tokens = tokens
        self._sealed = tokens.sealed

    async def begin(
        self, secret: str, settings: ConsentSettings, principal: Principal, browser: str
    ) -> tuple[str, str]:
        """Store a request for consent. Return the URL of the authorization server at which the principal consents, and
        the parameter `state` in that URL. `browser`: the value of the cookie with which the browser must come back.

        Raises:
            ConsentFailed: no authorization server was found, or it cannot be used.
            StoreUnavailable: the request cannot be stored.
        """
        found = await self._discovered(settings)
        client, registration = await self._client(secret, found, settings)
        try:
            headers = client_headers(f"gateway.secrets.{secret}.consent", settings)
        except NoToken as error:
            raise ConsentFailed(str(error)) from None
        context, metadata = found.context(settings.resource, client), found.metadata
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        redirect_uri = self._tokens.base + CALLBACK + secret
        form = {"client_id": client.client_id, "resource": settings.resource}
        if not headers:
            form, headers = context.prepare_token_auth(form, {})
        grant = Grant(
            name=grant_name(secret, settings, principal),
            issuer=principal.issuer,
            subject=principal.subject,
            secret=secret,
            token="",
            until=0.0,
            expires=0.0,
            since=self._tokens.clock(),
            endpoint=str(metadata.token_endpoint),
            form={name: value for name, value in form.items() if value is not None},
            headers={} if settings.client_secret_file else headers,
            registration=registration,
        )
        pending = _Pending(
            grant=grant,
            browser=_digest(browser),
            verifier=pkce.code_verifier,
            metadata=metadata.model_dump_json(include=_KEPT, exclude_none=True),
            redirect_uri=redirect_uri,
        )
        name = _state_name(state)
        await self._sealed.store.replace(name, None, self._sealed.seal(name, pending), LINK_S)
        asked = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": pkce.code_challenge,
            "code_challenge_method": "S256",
            "resource": settings.resource,
        }
        if found.scope:
            asked["scope"] = found.scope
            if "offline_access" in found.scope.split():
                asked["prompt"] = "consent"  # OpenID Connect Core §11
        endpoint = str(metadata.authorization_endpoint)
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}", state

    async def finish(
        self,
        secret: str,
        given: dict[str, str],
        browser: str,
        settings_of: Callable[[str, Principal], ConsentSettings | None],
    ) -> Grant:
        """Request the token when a browser comes back from the authorization server, store it, and return the grant.
        `secret`: the name of the secret, from the path to which the browser comes back. `given`: the query parameters.
        `settings_of` returns the present settings by which a principal consents to a secret.

        Raises:
            ConsentFailed: the request is not one that this browser was sent with, or the server gives no token.
            StoreUnavailable: the store does not answer.
        """
        name = _state_name(given.get("state", ""))
        text, pending = await self._sealed.read(name, _Pending)
        if pending is None or text is None or not hmac.compare_digest(pending.browser, _digest(browser)):
            raise ConsentFailed("this page was opened too late, twice, or in another browser than the link")
        if not await self._sealed.store.replace(name, text, None):
            raise ConsentFailed("this page was opened twice")
        grant, metadata = pending.grant, OAuthMetadata.model_validate_json(pending.metadata)
        try:
            if secret != grant.secret:
                raise OAuthFlowError
            sdk.validate_authorization_response_iss(given.get("iss"), metadata)
        except OAuthFlowError:
            raise ConsentFailed("the answer is of another authorization server than the one that was asked") from None
        settings = _current(grant, settings_of)
        if not given.get("code"):
            is_refusal = given.get("error") == "access_denied"
            raise ConsentFailed("you have not consented" if is_refusal else "the authorization server refuses")
        form = {
            **grant.form,
            "grant_type": "authorization_code",
            "code": given["code"],
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
        }
        named_by = f"gateway.secrets.{secret}.consent"
        try:
            headers = client_headers(named_by, settings) or grant.headers
            answer = await self._tokens.requests.token(named_by, grant.endpoint, form, headers)
        except NoToken as error:
            await self._tokens.forget_client(grant, error.code)
            raise ConsentFailed(str(error)) from None
        _current(grant, settings_of)
        grant = with_token(grant, answer, self._tokens.clock())
        await self._tokens.keep(grant.name, grant)
        return grant

    # -- discovery

    async def _discovered(self, settings: ConsentSettings) -> "_Found":
        """Ask a server for its authorization server (RFC 9728), and return the metadata of both (RFC 8414) and the
        scopes. Raises `ConsentFailed` if no authorization server is found, or if the gateway may not use it."""
        answer = await self._answer(httpx2.Request("GET", settings.resource, headers=_ACCEPT), head_only=True)
        named = None if answer is None else sdk.extract_resource_metadata_from_www_auth(answer)
        resource = None
        for url in sdk.build_protected_resource_metadata_discovery_urls(named, settings.resource):
            if resource is None and (read := await self._metadata(url, settings)) is not None:
                resource = await sdk.handle_protected_resource_response(read)
        issuer, metadata = settings.issuer or _issuer_of(resource, settings), None
        for url in sdk.build_oauth_authorization_server_metadata_discovery_urls(issuer, settings.resource):
            if metadata is None and (read := await self._metadata(url, settings)) is not None:
                _, metadata = await sdk.handle_auth_metadata_response(read)
        if metadata is None:
            raise ConsentFailed("the authorization server publishes no metadata that can be used (RFC 8414)")
        self._check(metadata, issuer, settings)
        wanted = None if answer is None else sdk.extract_scope_from_www_auth(answer)
        scope = sdk.get_client_metadata_scopes(wanted, resource, metadata, _GRANTS)
        return _Found(resource, metadata, " ".join(settings.scopes) or scope or "")

    def _check(self, metadata: OAuthMetadata, issuer: str, settings: ConsentSettings) -> None:
        if not sdk.issuers_match(str(metadata.issuer), issuer):
            raise ConsentFailed("the metadata of the authorization server are of another issuer (RFC 8414 §3.3)")
        if "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise ConsentFailed("the authorization server does not offer PKCE with S256, which MCP requires")
        urls = (metadata.authorization_endpoint, metadata.token_endpoint, metadata.registration_endpoint)
        if not all(self._is_usable(str(url), settings) for url in urls if url is not None):
            raise ConsentFailed("the authorization server has endpoints that are not https, or are on this machine")

    @staticmethod
    def _is_usable(url: str, settings: ConsentSettings) -> bool:
        """Return True if the gateway may send requests and people to `url`, which an MCP server or its authorization
        server has named: it is safe (`safe_url`), and is on this machine only if the MCP server is, too."""
        try:
            return bool(safe_url(url)) and (is_of_this_machine(settings.resource) or not is_of_this_machine(url))
        except ValueError:
            return False

    async def _metadata(self, url: str, settings: ConsentSettings) -> httpx2.Response | None:
        try:
            return (
                await self._answer(sdk.create_oauth_metadata_request(url)) if self._is_usable(url, settings) else None
            )
        except httpx2.InvalidURL:
            return None

    async def _answer(self, request: httpx2.Request, *, head_only: bool = False) -> httpx2.Response | None:
        try:
            return await self._tokens.requests.send(request, head_only=head_only)
        except (BadAnswer, httpx2.HTTPError, OSError, ValueError) as error:
            logger.info("%s does not answer as authorization server: %s", request.url.host, type(error).__name__)
            return None

    # -- the gateway as client

    async def _client(
        self, secret: str, found: "_Found", settings: ConsentSettings
    ) -> tuple[OAuthClientInformationFull, str]:
        """Return what identifies the gateway as a client of the authorization server. If it has no client id and no
        usable metadata URL there, register it first, once. Also return the name of the stored registration; empty if
        there is none. Raises `ConsentFailed` if the server does not register it, and `StoreUnavailable`."""
        metadata = found.metadata
        if settings.client_id:
            return OAuthClientInformationFull(client_id=settings.client_id, token_endpoint_auth_method="none"), ""
        url = client_url(self._tokens.base, secret)
        if sdk.is_valid_client_metadata_url(url) and sdk.should_use_client_metadata_url(metadata, url):
            return sdk.create_client_info_from_metadata_url(url), ""
        own = OAuthClientMetadata.model_validate(
            {**client_metadata(self._tokens.base, secret), "scope": found.scope or None}
        )
        key = json.dumps([str(metadata.issuer), own.model_dump(mode="json")])
        name = f"client/{_digest(key)}"
        _, known = await self._sealed.read(name, Registration)
        if known is not None:
            return OAuthClientInformationFull.model_validate_json(known.client), name
        if metadata.registration_endpoint is None:
            raise ConsentFailed("the authorization server registers no clients: set consent.issuer and client_id")
        response = await self._answer(sdk.create_client_registration_request(metadata, own, str(metadata.issuer)))
        try:
            if response is None:
                raise OAuthRegistrationError("no answer")
            client = await sdk.handle_registration_response(response)
            check_registration_usable(client)
        except (OAuthRegistrationError, ValidationError):
            why = "the authorization server does not register the gateway: set consent.issuer and client_id"
            raise ConsentFailed(why) from None
        ends = client.client_secret_expires_at
        kept_s = min(_REGISTERED_S, ends - self._tokens.clock()) if ends else _REGISTERED_S
        record = self._sealed.seal(name, Registration(client.model_dump_json()))
        await self._sealed.store.replace(name, await self._sealed.store.get(name), record, max(kept_s, LINK_S))
        return client, name


def client_url(base: str, secret: str) -> str:
    """Return the URL at which authorization servers read the gateway's client metadata for a secret (OAuth Client ID
    Metadata Document). `base`: the gateway's URL for browsers. `secret`: the secret's name."""
    return f"{base}{CLIENT}{secret}.json"


def client_metadata(base: str, secret: str) -> dict[str, Any]:
    """Return the gateway's client metadata for a secret (RFC 7591 §2). `base`: the gateway's URL for browsers.
    `secret`: the secret's name, which is in the redirect URI."""
    return {
        "client_name": "MCP Session Gateway",
        "redirect_uris": [base + CALLBACK + secret],
        "grant_types": _GRANTS,
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


_ACCEPT: Final = {"accept": "application/json, text/event-stream"}


def _issuer_of(found: ProtectedResourceMetadata | None, settings: ConsentSettings) -> str:
    """Return the issuer URL of the authorization server that a server's metadata (`found`) name. Raises `ConsentFailed`
    if they name none, or are another server's."""
    if found is None or not found.authorization_servers:
        raise ConsentFailed("the server does not say which authorization server it has (RFC 9728): set consent.issuer")
    own = resource_url_from_server_url(settings.resource)
    if not check_resource_allowed(requested_resource=own, configured_resource=str(found.resource)):
        raise ConsentFailed("the server's metadata are of another server (RFC 9728 §3.3)")
    return str(found.authorization_servers[0])


def _current(grant: Grant, settings_of: Callable[[str, Principal], ConsentSettings | None]) -> ConsentSettings:
    """Return the present settings of the secret that a grant is for. Raises `ConsentFailed` if the person may no
    longer consent to its use, or if what the person consents to has changed since the consent began."""
    settings = settings_of(grant.secret, grant.principal)
    if settings is None or grant_name(grant.secret, settings, grant.principal) != grant.name:
        raise ConsentFailed("the gateway's configuration has changed meanwhile")
    return settings


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _state_name(state: str) -> str:
    return f"state/{_digest(state)}"
