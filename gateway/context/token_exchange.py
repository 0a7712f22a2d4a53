"""Exchange the access tokens of callers for tokens of servers, at an authorization server (RFC 8693).

If the server has another authorization server, that one gives the token (RFC 7523) for an identity assertion (ID-JAG)
of the first one.

A token belongs to the caller's token that it was given for: another token of the same principal may have fewer rights.
It is kept in memory only, and is not used after the caller's token has expired.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
from cachetools import FIFOCache

from gateway.config.secrets import ExchangeSettings, TokenEndpoint
from gateway.context.authorization_server_client import (
    ACCESS_TOKEN,
    ASKED_AGAIN_S,
    ID_JAG,
    AuthorizationServerClient,
    Given,
    NoToken,
    client_headers,
)
from gateway.identity.credential_claims import CallerToken
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

_MAX_CACHED: Final = 10_000
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ASSERTION: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class CachedToken(msgspec.Struct, frozen=True):
    """The cached outcome of an exchange: a token, or the reason why there is none."""

    token: str
    until: float
    """The Unix time from which another exchange is made."""
    fault: str = ""
    """Why there is no token; empty if there is one."""

    __repr__ = object.__repr__


class TokenExchange:
    """Gets the tokens of one secret by token exchange. Concurrent requests with the same access token share one
    exchange.

    `name` is the secret's, for log lines.
    """

    def __init__(self, name: str, settings: ExchangeSettings, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._cached: FIFOCache[bytes, CachedToken] = FIFOCache(_MAX_CACHED)
        self._tasks = Tasks(f"gateway.secrets.{name}")
        self._requests = AuthorizationServerClient()

    async def token_for(self, caller: CallerToken) -> CachedToken:
        """Return the token for a caller, from the cache or in exchange for the caller's access token.

        Raises:
            NoToken: the caller's token has expired, or the authorization server gives none for it.
        """
        if self._clock() >= caller.expires:
            raise NoToken("the client's access token has expired")
        key = hashlib.sha256(caller.token.encode()).digest()
        outcome = self._cached.get(key)
        if outcome is None or self._clock() >= outcome.until:
            outcome = await self._tasks.share(key, lambda: self._exchanged(key, caller))
        if outcome.fault:
            raise NoToken(outcome.fault)
        return outcome

    async def _exchanged(self, key: bytes, caller: CallerToken) -> CachedToken:
        """Exchange a caller's token. Return the outcome, which is a token or the reason why there is none. The outcome
        is cached under `key` before this task ends, so that no later request starts another exchange."""
        try:
            given = await self._ask(caller)
            outcome = CachedToken(given.access_token, min(self._clock() + given.used_s, caller.expires))
        except NoToken as error:
            outcome = CachedToken("", self._clock() + ASKED_AGAIN_S, str(error))
        self._cached[key] = outcome
        return outcome

    async def _ask(self, caller: CallerToken) -> Given:
        """Request a token by token exchange (RFC 8693 §2.1). If the exchange gives an identity assertion (ID-JAG),
        exchange that for the token, at the server's own authorization server."""
        settings = self._settings
        wanted = {"resource": settings.resource, "scope": settings.scope}
        form = {
            "grant_type": _EXCHANGE,
            "subject_token": caller.token,
            "subject_token_type": ACCESS_TOKEN,
            "requested_token_type": ACCESS_TOKEN if settings.id_jag is None else ID_JAG,
            "audience": settings.audience,
        }
        given = await self._send("exchange", settings, form | wanted, caller)
        if settings.id_jag is None:
            return given
        # The authorization server of the MCP SDK finds the client by the form, although the header names it.
        form = {"grant_type": _ASSERTION, "assertion": given.access_token, "client_id": settings.id_jag.client_id}
        return await self._send("exchange.id_jag", settings.id_jag, form | wanted, caller)

    async def _send(self, setting: str, to: TokenEndpoint, form: dict[str, str], caller: CallerToken) -> Given:
        named_by = f"gateway.secrets.{self._name}.{setting}"
        headers = client_headers(named_by, to)
        form = {name: value for name, value in form.items() if value}
        if not headers:
            form["client_id"] = to.client_id
        given = await self._requests.token(named_by, to.token_endpoint, form, headers)
        if given.access_token in (caller.token, form.get("assertion")):  # no other server must get them
            logger.warning("%s: the token endpoint gives back what it was sent", named_by)
            raise NoToken("the authorization server gives back what it was sent")
        return given
