"""Exchange the access tokens of callers for tokens of servers, at an authorization server (RFC 8693).

A token belongs to the caller's token that it was given for: another token of the same principal may have fewer rights.
It is kept in memory only, and is not used after the caller's token has expired.
"""

import asyncio
import hashlib
import logging
import re
import ssl
import time
from collections.abc import Callable
from functools import cached_property
from math import isnan
from typing import Final
from urllib.parse import quote_plus

import httpx2
import msgspec
from cachetools import FIFOCache

from gateway.config.addresses import is_of_this_machine
from gateway.config.secrets import ExchangeSettings, UnusableSecret, secret_in
from gateway.identity.credential_claims import CallerToken
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

EXCHANGE_S: Final = 10.0
"""Seconds that the authorization server has to answer."""
ASKED_AGAIN_S: Final = 5.0
"""Seconds after which it is asked again about a token that it has refused, or not answered for."""
_EARLY: Final = 0.1
_MOST_EARLY_S: Final = 30.0
"""A token is exchanged anew in the last tenth of its lifetime, at most half a minute before its end: it must not expire
on the way to the server."""
_UNSAID_S: Final = 60.0
"""The assumed lifetime of a token if the authorization server does not say it (RFC 8693 §2.2.1)."""
_SHORTEST_S: Final = 1.0
_CODE: Final = re.compile(r"[a-z_]{1,40}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750 §2.1."""
_MOST_AT_ONCE: Final = 16
"""Requests to the authorization server at the same time: one that hangs must not take all sockets."""
_MAX_CACHED: Final = 10_000
_MOST_BYTES: Final = 64 << 10
_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"


class ExchangeFailed(Exception):
    """There is no token for this caller. The message says why, without any token, and may be sent to the client."""


class _BadAnswer(Exception):
    """The endpoint is no token endpoint. The message says what it does, and may be sent to the client."""


class _Given(msgspec.Struct):
    """The answer of a token endpoint (RFC 6749 §5.1 and §5.2)."""

    access_token: str = ""
    token_type: str = ""
    expires_in: float | None = None
    error: str | None = None

    __repr__ = object.__repr__


class _Held(msgspec.Struct, frozen=True):
    """A token, or why there is none; and the Unix time at which it is asked for again."""

    token: str
    until: float
    fault: str = ""

    __repr__ = object.__repr__


class TokenExchange:
    """Get the tokens of one secret, each once for all callers that ask for it at the same time.

    `name` is the secret's, for log lines.
    """

    def __init__(self, name: str, settings: ExchangeSettings, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._held: FIFOCache[bytes, _Held] = FIFOCache(_MAX_CACHED)
        self._tasks = Tasks(f"gateway.secrets.{name}")
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()  # it takes 30 ms, in which nothing else runs

    async def token_for(self, caller: CallerToken) -> str:
        """Return the token for a caller with that access token.

        Raises:
            ExchangeFailed: the caller's token has expired, or the authorization server gives none for it.
        """
        if self._clock() >= caller.expires:
            raise ExchangeFailed("the client's access token has expired")
        key = hashlib.sha256(caller.token.encode()).digest()
        held = self._held.get(key)
        if held is None or self._clock() >= held.until:
            held = await self._tasks.share(key, lambda: self._exchanged(key, caller))
        if held.fault:
            raise ExchangeFailed(held.fault)
        return held.token

    async def _exchanged(self, key: bytes, caller: CallerToken) -> _Held:
        """Exchange a token, and hold the result before this task ends: who comes after it must not start another."""
        held = self._held[key] = await self._result(caller)
        return held

    async def _result(self, caller: CallerToken) -> _Held:
        fault = "the authorization server does not answer"
        try:
            async with self._at_once:
                given = await self._ask(caller)
        except UnusableSecret as error:
            logger.error("%s", error)
            fault = "the gateway has no client secret for the authorization server"
        except _BadAnswer as error:
            logger.warning("gateway.secrets.%s: the token endpoint %s: is its URL right?", self._name, error)
            fault = f"the authorization server {error}"
        except (httpx2.HTTPError, OSError, ValueError) as error:
            # The text of the error may contain what was sent.
            logger.warning("gateway.secrets.%s: the exchange of a token failed: %s", self._name, type(error).__name__)
        else:
            if not given.error:
                lives_s = _UNSAID_S if given.expires_in is None or isnan(given.expires_in) else given.expires_in
                until = min(self._clock() + lives_s - min(_EARLY * lives_s, _MOST_EARLY_S), caller.expires)
                return _Held(given.access_token, max(until, self._clock() + _SHORTEST_S))
            code = given.error if _CODE.fullmatch(given.error) else "unknown error"
            logger.warning("gateway.secrets.%s: the authorization server refused a token: %s", self._name, code)
            fault = f"the authorization server gives none for this client ({code})"
        return _Held("", self._clock() + ASKED_AGAIN_S, fault)

    async def _ask(self, caller: CallerToken) -> _Given:
        """Send the request of RFC 8693 §2.1."""
        settings = self._settings
        form = {
            "grant_type": _GRANT,
            "subject_token": caller.token,
            "subject_token_type": _ACCESS_TOKEN,
            "requested_token_type": _ACCESS_TOKEN,
        }
        more = {"audience": settings.audience, "resource": settings.resource, "scope": settings.scope}
        form |= {name: value for name, value in more.items() if value}
        auth = None
        if settings.client_secret_file is None:
            form["client_id"] = settings.client_id
        else:
            where = f"gateway.secrets.{self._name}.exchange.client_secret_file"
            secret = secret_in(settings.client_secret_file, where)
            auth = httpx2.BasicAuth(quote_plus(settings.client_id), quote_plus(secret))  # RFC 6749 §2.3.1
        data, headers = b"", {"accept": "application/json", "accept-encoding": "identity"}
        uses_proxy = not is_of_this_machine(settings.token_endpoint)
        async with (
            asyncio.timeout(EXCHANGE_S),
            httpx2.AsyncClient(timeout=EXCHANGE_S, trust_env=uses_proxy, verify=self._tls) as client,
            client.stream("POST", settings.token_endpoint, data=form, headers=headers, auth=auth) as response,
        ):
            if response.status_code not in (200, 400, 401, 403):
                raise _BadAnswer(f"answers with status {response.status_code}")
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise _BadAnswer("sends too much")
        try:
            given = msgspec.json.decode(data, type=_Given, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _BadAnswer("does not answer as RFC 6749 says") from None
        is_bearer = given.token_type.lower() == "bearer" and _TOKEN.fullmatch(given.access_token) is not None
        if response.status_code == 200 and is_bearer:
            return given
        if response.status_code == 200 and not given.error:
            raise _BadAnswer("gives no bearer token that a header can hold")
        return _Given(error=given.error or "unknown error")
