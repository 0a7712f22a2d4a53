"""Send requests to authorization servers, and read what their token endpoints answer.

These servers are not trusted: no redirect is followed, an answer has at most 64 KiB and ten seconds, and a bearer token
only the characters that RFC 6750 allows. Only the code of an error is read, because its description may quote what was
sent.
"""

import asyncio
import base64
import logging
import re
import ssl
from functools import cached_property
from http.cookiejar import CookieJar, DefaultCookiePolicy
from math import isfinite
from typing import Final
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from cachetools import LRUCache

from gateway.config.addresses import is_of_this_machine
from gateway.config.secrets import ConsentSettings, TokenEndpoint, UnusableSecret, secret_in
from transports.jsonrpc import UNREADABLE

logger = logging.getLogger(__name__)

ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
"""The types of tokens that a token exchange can request (RFC 8693 §3,
draft-ietf-oauth-identity-assertion-authz-grant)."""
_NO_ACCESS: Final = (ID_JAG, "urn:ietf:params:oauth:token-type:refresh_token")
"""Types of tokens that only authorization servers accept. They must not be sent to other servers."""
ANSWER_S: Final = 10.0
"""Seconds within which an authorization server has to answer."""
ASKED_AGAIN_S: Final = 5.0
"""Seconds after which a server is asked again for a token that it has refused, or has not answered for."""
_EARLY: Final = 0.1
_MOST_EARLY_S: Final = 30.0
"""A token is replaced in the last tenth of its lifetime, at most half a minute before its end: it must not expire on
the way to the server."""
_UNSAID_S: Final = 60.0
"""The assumed lifetime of a token if the authorization server does not say it (RFC 6749 §5.1, RFC 8693 §2.2.1)."""
_SHORTEST_S: Final = 1.0
"""Minimum seconds for which a token is used, even if its lifetime is shorter."""
_LONGEST_S: Final = 10 * 365 * 86_400.0
"""The longest lifetime in seconds that a token may have, because a store cannot keep a value for an unlimited time. A
longer one is shortened to it."""
_CODE: Final = re.compile(r"[a-z_]{1,40}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The syntax of a bearer token (RFC 6750 §2.1)."""
_MOST_AT_ONCE: Final = 16
"""The most concurrent requests to one authorization server: one that hangs must not take all sockets."""
_MOST_SERVERS: Final = 256
"""The most authorization servers whose concurrent requests are counted."""
_MOST_BYTES: Final = 64 << 10
_MOST_PARTS: Final = 1_024
"""The most chunks in which an answer may arrive, because no other work is done while many small chunks are read."""
_KEPT: Final = ("content-type", "www-authenticate")


class BadAnswer(Exception):
    """Raised for a response that no authorization server would give. The message says why, and may be sent to the
    client."""


class NoToken(Exception):
    """Raised if no token can be obtained. The message says why, and may be sent to the client: it repeats nothing that
    was sent. `code`: the error code of the authorization server's refusal; empty if it has not refused."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


class Given(msgspec.Struct):
    """The answer of a token endpoint (RFC 6749 §5.1 and §5.2, RFC 8693 §2.2)."""

    access_token: str = ""
    token_type: str = ""
    expires_in: float | None = None
    refresh_token: str = ""
    issued_token_type: str = ""
    error: str | None = None

    __repr__ = object.__repr__

    @property
    def code(self) -> str:
        """Return the error code if it has the valid form, so that it can be shown; otherwise `unknown error`."""
        return self.error if self.error and _CODE.fullmatch(self.error) else "unknown error"

    def is_of(self, wanted: str) -> bool:
        """Return True if the answer has a token of the type `wanted` (`ID_JAG`, or else an access token for a server),
        and the token has only characters that a header may contain. An `ID_JAG` must not have expired."""
        is_text, kind = _TOKEN.fullmatch(self.access_token) is not None, self.token_type.lower()
        if wanted != ID_JAG:
            return is_text and kind == "bearer" and self.issued_token_type not in _NO_ACCESS
        is_over = self.expires_in is not None and not self.expires_in > 0
        # A token of another type is meant for another server than the one that would get it.
        return is_text and kind == "n_a" and self.issued_token_type == ID_JAG and not is_over

    @property
    def lives_s(self) -> float:
        """Return the seconds for which the token counts as valid: what the answer says, within limits, or a default if
        it says nothing."""
        lives_s = _UNSAID_S if self.expires_in is None or not isfinite(self.expires_in) else self.expires_in
        return min(max(lives_s, _SHORTEST_S), _LONGEST_S)

    @property
    def used_s(self) -> float:
        """Return the seconds for which the token is used before it is replaced: a little less than its lifetime."""
        return max(self.lives_s - min(_EARLY * self.lives_s, _MOST_EARLY_S), _SHORTEST_S)


class AuthorizationServerClient:
    """Send requests to authorization servers."""

    def __init__(self) -> None:
        self._at_once: LRUCache[bytes, asyncio.Semaphore] = LRUCache(_MOST_SERVERS)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()  # it takes 30 ms, in which nothing else runs

    async def send(self, request: httpx2.Request, *, head_only: bool = False) -> httpx2.Response:
        """Send a request and return its response: status, content, and the headers `_KEPT`. With `head_only`, do not
        read the content.

        Raises:
            BadAnswer: the content is too large.
            httpx2.HTTPError, OSError: there is no answer, or not in time. The text may contain what was sent.
        """
        data, uses_proxy = b"", not is_of_this_machine(str(request.url))
        no_cookies = CookieJar(DefaultCookiePolicy(netscape=False, rfc2965=False))  # it parses none: some take long
        request.headers["accept-encoding"] = "identity"
        at_once = self._at_once.setdefault(request.url.netloc, asyncio.Semaphore(_MOST_AT_ONCE))
        async with (
            asyncio.timeout(ANSWER_S),  # the wait for others counts too: callers rely on the limit
            at_once,
            httpx2.AsyncClient(timeout=ANSWER_S, trust_env=uses_proxy, verify=self._tls, cookies=no_cookies) as client,
        ):
            response = await client.send(request, stream=True)
            try:
                if not head_only:
                    data = await _limited(response)
            finally:
                await response.aclose()
        headers = {name: response.headers[name] for name in _KEPT if name in response.headers}
        return httpx2.Response(response.status_code, headers=headers, content=data, request=request)

    async def token(self, named_by: str, endpoint: str, form: dict[str, str], headers: dict[str, str]) -> Given:
        """Send a token request with `form` and `headers`, and return the endpoint's answer, which has a token.
        `named_by`: the name of the setting that has the endpoint, for log lines. Raises `NoToken` if the endpoint
        refuses, does not answer in time, or answers wrongly; each is logged."""
        where = f"{named_by}: the token endpoint of {urlsplit(endpoint).hostname}"
        why, code = "the authorization server does not answer", ""
        try:
            given = await self.answer_to(endpoint, form, headers)
            if not given.error:
                return given
            why, code = f"the authorization server gives no token ({given.code})", given.code
            logger.warning("%s refuses: %s", where, code)
        except BadAnswer as error:
            why = f"the authorization server {error}"
            logger.warning("%s %s: is its URL right?", where, error)
        except (httpx2.HTTPError, OSError, ValueError) as error:
            # The text of the error may contain what was sent.
            logger.warning("%s does not answer: %s", where, type(error).__name__)
        raise NoToken(why, code)

    async def answer_to(self, endpoint: str, form: dict[str, str], headers: dict[str, str]) -> Given:
        """Send a token request, and return the answer, which has a token of the requested type or an error. Raises as
        `send`, and `BadAnswer` if the response is not one of a token endpoint."""
        headers = {"accept": "application/json", **headers}
        response = await self.send(httpx2.Request("POST", endpoint, data=form, headers=headers))
        if response.status_code not in (200, 400, 401, 403):
            raise BadAnswer(f"answers with status {response.status_code}")
        try:
            answer = msgspec.json.decode(response.content, type=Given, strict=False)
        except UNREADABLE:
            raise BadAnswer("does not answer as RFC 6749 says") from None
        wanted = form.get("requested_token_type", ACCESS_TOKEN)
        if response.status_code == 200 and answer.is_of(wanted):
            return answer
        if response.status_code == 200 and not answer.error:
            raise BadAnswer(f"gives no {'ID-JAG' if wanted == ID_JAG else 'bearer token for a server'}")
        return Given(error=answer.error or "unknown error")


async def _limited(response: httpx2.Response) -> bytes:
    """Return the content of a response, as it was sent. Raises `BadAnswer` if it is too large, or in too many parts."""
    data, parts = b"", 0
    async for part in response.aiter_raw():
        data += part
        parts += 1
        if len(data) > _MOST_BYTES or parts > _MOST_PARTS:
            raise BadAnswer("sends too much")
    return data


def client_headers(named_by: str, settings: TokenEndpoint | ConsentSettings) -> dict[str, str]:
    """Return the headers by which the gateway, as a client, authenticates with its client secret (RFC 6749 §2.3.1);
    empty if `settings` have no secret. `named_by`: the name of these settings in the configuration, for the log.
    Raises `NoToken` if the secret cannot be read."""
    if settings.client_secret_file is None:
        return {}
    try:
        secret = secret_in(settings.client_secret_file, f"{named_by}.client_secret_file")
    except UnusableSecret as error:
        logger.error("%s", error)
        raise NoToken("the gateway has no client secret for the authorization server") from None
    # `%20` is a space to every server; `+` is none to some, the SDK's among them.
    pair = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}"
    return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
