"""Keep the tokens that authorization servers have given for people who consented, and refresh them.

A token belongs to a principal, a secret and the settings of the secret: another person never gets it, and it goes to no
other server. The store has it encrypted, so that all replicas use it. Each use asks the store, so that a revoked token
is not used any more. A token is refreshed once, by the replica that marks it first. `gateway.context.consent_flow` gets
new tokens.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.config.secrets import ConsentSettings, SecretSettings
from gateway.errors import ConsentNeeded, ConsentRefusal
from session_store import Principal, SealedValues, StoreUnavailable
from transports.background_tasks import Tasks
from transports.upstream_port import UpstreamUnavailable

if TYPE_CHECKING:
    from gateway.context.authorization_server_client import AuthorizationServerClient, Given

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

LINK_S: Final = 600.0
"""Seconds for which a link to consent is valid. A browser that was sent to the authorization server has as long to come
back."""
KEPT_S: Final = 30 * 86_400.0
"""Seconds for which a refresh token that nobody uses is kept."""
_REFRESH_S: Final = 15.0
"""Seconds that a replica has for a refresh. If the replica dies meanwhile, another replica refreshes afterwards."""
_LOOK_AGAIN_S: Final = 0.05
_MOST_TRIES: Final = 8
_LOST: Final = ("invalid_client", "unauthorized_client")
"""Error codes that say that a registered client is not valid any more (RFC 6749 §5.2)."""


class Cipher(Protocol):
    """Encrypts and authenticates texts (`gateway.bridge.state_cipher.StateCipher`)."""

    def seal(self, content: bytes) -> str: ...
    def open(self, text: str) -> bytes: ...


class Sealed:
    """Encrypt records and read them again. A record is bound to its name: under another name it cannot be read."""

    def __init__(self, store: SealedValues, cipher: Cipher) -> None:
        self.store = store
        self._cipher = cipher

    def seal(self, name: str, record: msgspec.Struct) -> bytes:
        """Return the record as an encrypted text, which can be opened only under the same `name`."""
        return self._cipher.seal(name.encode() + b"\n" + msgspec.json.encode(record)).encode()

    def open(self, name: str, text: bytes, kind: type[T]) -> T | None:
        """Return the record in an encrypted text; None if the text was not encrypted with a key of this gateway, or was
        encrypted for another name."""
        try:
            found, _, content = self._cipher.open(text.decode()).partition(b"\n")
            return msgspec.json.decode(content, type=kind) if found == name.encode() else None
        except (ValueError, msgspec.MsgspecError):
            return None

    async def read(self, name: str, kind: type[T]) -> tuple[bytes | None, T | None]:
        """Return the encrypted text that is stored under a name, and the record in this text. If nothing is stored,
        both are None. If the text cannot be opened (`open`), only the record is None. Raises `StoreUnavailable`."""
        text = await self.store.get(name)
        return text, None if text is None else self.open(name, text, kind)


class Link(msgspec.Struct, frozen=True):
    """A link that a person opens to consent to the use of `secret`. `grant`: the name of the grant that the consent
    makes. `until`: the Unix time at which the link expires."""

    secret: str
    grant: str
    until: float


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The stored consent of a principal to the use of a secret: its tokens, and how to refresh them. Times are Unix
    times."""

    name: str
    """The name under which it is stored (`grant_name`)."""
    issuer: str
    subject: str
    secret: str
    token: str
    until: float
    """When the token is replaced: a little before `expires`."""
    expires: float
    """When the token is not valid any more."""
    since: float
    """When the consent began."""
    refresh: str = ""
    """The refresh token; empty if there is none."""
    endpoint: str = ""
    """The token endpoint of the authorization server."""
    form: dict[str, str] = {}
    """Form fields of each request for a token."""
    headers: dict[str, str] = {}
    """Headers of each request for a token."""
    registration: str = ""
    """The name of the stored `Registration` of the client; empty if there is none."""
    refreshes: float = 0.0
    """Until when no other refresh begins: a replica refreshes the token now, or the last refresh has failed."""
    fault: str = ""
    """Why the last refresh has failed; empty if it has not."""
    is_rejected: bool = False
    """True: the server has not accepted this token, or the one before it."""

    __repr__ = object.__repr__

    @property
    def principal(self) -> Principal:
        """Return the principal that has consented."""
        return Principal(issuer=self.issuer, subject=self.subject)


class Registration(msgspec.Struct, frozen=True):
    """A stored registration of the gateway as a client of an authorization server."""

    client: str
    """The answer of the authorization server to the registration, as JSON."""

    __repr__ = object.__repr__


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A connected account, for operators: what a principal has consented to. Times are Unix times."""

    principal: str
    secret: str
    resource: str
    """The URL of the server."""
    since: float
    expires: float
    """When the present token is not valid any more."""
    is_refreshed: bool
    """True: a new token follows, because there is a refresh token."""


class ConsentedTokens:
    """Find, refresh and revoke the tokens of principals who have consented. `base`: the gateway's URL for browsers."""

    def __init__(self, store: SealedValues, cipher: Cipher, base: str, clock: Callable[[], float] = time.time) -> None:
        self.sealed = Sealed(store, cipher)
        self.base = base
        self.clock = clock
        self._tasks = Tasks("gateway.secrets")
        self._made: AuthorizationServerClient | None = None

    @property
    def requests(self) -> "AuthorizationServerClient":
        """Return the client that sends requests to authorization servers. It is made when it is first needed."""
        if self._made is None:
            from gateway.context.authorization_server_client import AuthorizationServerClient  # loads an HTTP client

            self._made = AuthorizationServerClient()
        return self._made

    async def token_for(self, secret: str, settings: ConsentSettings, principal: Principal) -> Grant:
        """Return the grant by which a principal has consented to the use of a secret. Its token is valid now: an old
        token is refreshed first.

        Raises:
            ConsentNeeded: the principal has not consented, or not any more.
            UpstreamUnavailable: the principal is anonymous, or store or authorization server do not answer.
        """
        if principal.is_anonymous:
            raise UpstreamUnavailable(
                f"there is no credential {secret!r} for this client: it belongs to a person, and the client has sent "
                "no credential that names one"
            )
        name = grant_name(secret, settings, principal)
        try:
            while True:
                text, grant = await self.sealed.read(name, Grant)
                if text is None or grant is None:
                    link = self.sealed.seal("link", Link(secret, name, self.clock() + LINK_S)).decode()
                    raise ConsentNeeded(ConsentRefusal(secret, f"{self.base}/oauth/connect/{link}"))
                now = self.clock()
                if now < grant.until:
                    return grant
                if grant.refresh and now >= grant.refreshes:
                    await self._tasks.share(name, lambda: self._refreshed(name, settings, text, grant))  # noqa: B023
                elif now < grant.expires:
                    return grant
                elif grant.fault:
                    raise UpstreamUnavailable(f"there is no credential {secret!r} now: {grant.fault}")
                elif grant.refresh:
                    await asyncio.sleep(_LOOK_AGAIN_S)  # another replica refreshes it
                else:
                    await self.sealed.store.replace(name, text, None)
        except StoreUnavailable:
            raise UpstreamUnavailable(f"there is no credential {secret!r} now: the store does not answer") from None

    def link_in(self, text: str) -> Link | None:
        """Return what the encrypted `text` of a link says (the last part of the URL that a person opens). Return None
        if the text is not this gateway's, or if the link has expired."""
        link = self.sealed.open("link", text.encode("utf-8", "replace"), Link)
        return link if link is not None and self.clock() < link.until else None

    # -- refreshing

    async def _refreshed(self, name: str, settings: ConsentSettings, text: bytes, grant: Grant) -> None:
        """Refresh the token of a grant, and store the outcome. `text`: the grant as it is stored under `name` now. Do
        nothing if the stored text has changed, as when another replica refreshes the token already."""
        claimed = replace(grant, refreshes=self.clock() + _REFRESH_S, fault="")
        mark = self.sealed.seal(name, claimed)
        if not await self.sealed.store.replace(name, text, mark, self._kept_s(grant)):
            return
        after = await self._after_refresh(settings, claimed)
        if after is None:
            logger.warning("gateway.secrets.%s: a refresh was refused, and its grant has ended", grant.secret)
        stored = None if after is None else self.sealed.seal(name, after)
        while True:
            try:
                # If it was revoked meanwhile, or given anew, this does nothing.
                await self.sealed.store.replace(name, mark, stored, self._kept_s(after or grant))
                return
            except StoreUnavailable:
                # Without this write, the refresh token is sent again: who detects reuse revokes everything.
                if self.clock() >= claimed.refreshes:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def settled(self) -> None:
        """Wait until the refreshes that have begun are stored, or have failed."""
        await self._tasks.settled()

    async def _after_refresh(self, settings: ConsentSettings, grant: Grant) -> Grant | None:
        """Ask the authorization server for a new token. Return the grant with this token. If there is none now, return
        the grant with the reason in `fault`. If the server says that the grant has ended, return None."""
        from gateway.context.authorization_server_client import ASKED_AGAIN_S, NoToken, client_headers

        form = {**grant.form, "grant_type": "refresh_token", "refresh_token": grant.refresh}
        named_by = f"gateway.secrets.{grant.secret}.consent"
        try:
            headers = client_headers(named_by, settings) or grant.headers
            given = await self.requests.token(named_by, grant.endpoint, form, headers)
        except NoToken as error:
            if error.code == "invalid_grant" or await self.forget_client(grant, error.code):
                return None
            return replace(grant, refreshes=self.clock() + ASKED_AGAIN_S, fault=str(error))
        return with_token(grant, given, self.clock())

    async def forget_client(self, grant: Grant, code: str) -> bool:
        """Handle the error `code` with which an authorization server has refused a token. If it says that the server
        has forgotten the client that the gateway registered for this grant, remove the stored registration and return
        True: the next consent registers anew. Otherwise return False. Raises `StoreUnavailable`."""
        if not grant.registration or code not in _LOST:
            return False
        text, found = await self.sealed.read(grant.registration, Registration)
        if found is not None and json.loads(found.client)["client_id"] == grant.form["client_id"]:
            await self.sealed.store.replace(grant.registration, text, None)
        return True

    def _kept_s(self, grant: Grant) -> float:
        left_s = max(grant.expires - self.clock(), 1.0)
        return max(left_s, KEPT_S) if grant.refresh else left_s

    async def reject(self, secret: str, settings: ConsentSettings, principal: Principal, sent: Collection[str]) -> None:
        """Have a token replaced that its server does not accept: the next use of the token refreshes it. If the token
        cannot be refreshed, or it came in place of a rejected one, remove the grant. The person then has to consent
        again.

        Do nothing if no text in `sent` has the present token, so that several rejections of one token count once. Do
        nothing either if a refresh is due anyway: the token may have expired on its way."""
        name = grant_name(secret, settings, principal)
        with contextlib.suppress(StoreUnavailable):
            text, grant = await self.sealed.read(name, Grant)
            if text is None or grant is None or not any(grant.token in value for value in sent):
                return
            if grant.refresh and self.clock() >= grant.until:
                return  # a refresh is due: the token was old by the time of the answer, or is marked already
            is_over = grant.is_rejected or not grant.refresh
            logger.info("gateway.secrets.%s: its server does not accept a token of %s", secret, principal)
            after = (
                None if is_over else self.sealed.seal(name, replace(grant, until=0.0, expires=0.0, is_rejected=True))
            )
            await self.sealed.store.replace(name, text, after, self._kept_s(grant))

    # -- keeping

    async def keep(self, name: str, grant: Grant) -> None:
        """Store a grant under `name`, in place of an earlier one if there is one. Raises `StoreUnavailable`."""
        text = self.sealed.seal(name, grant)
        for _ in range(_MOST_TRIES):
            if await self.sealed.store.replace(name, await self.sealed.store.get(name), text, self._kept_s(grant)):
                return
        raise StoreUnavailable("the grant changes too often")

    async def connections(self) -> list[Connection]:
        """Return the connected accounts of all principals, sorted, for operators. Raises `StoreUnavailable`."""
        found = [
            Connection(
                principal=str(grant.principal),
                secret=grant.secret,
                resource=grant.form.get("resource", ""),
                since=grant.since,
                expires=grant.expires,
                is_refreshed=bool(grant.refresh),
            )
            async for _, _, grant in self._grants()
        ]
        return sorted(found, key=lambda each: (each.principal, each.secret))

    async def revoke(self, is_meant: Callable[[Grant], bool]) -> int:
        """Remove the grants for which `is_meant` returns True, and return their number. Later requests of their
        principals get no token from them. Raises `StoreUnavailable`."""
        count = 0
        async for name, text, grant in self._grants():
            if not is_meant(grant):
                continue
            before: bytes | None = text
            while before is not None and not await self.sealed.store.replace(name, before, None):
                before = await self.sealed.store.get(name)  # it was refreshed meanwhile
            count += 1
        return count

    async def end_unused(self, secrets: Mapping[str, SecretSettings], is_known: Callable[[Principal], bool]) -> None:
        """Remove the grants that no session can use any more, because the settings of their secret have changed, or
        their principal is no longer known. Otherwise, a person who gets such a principal's name later would get its
        grants."""

        def is_unused(grant: Grant) -> bool:
            consent = None if (settings := secrets.get(grant.secret)) is None else settings.consent
            if consent is None or grant.name != grant_name(grant.secret, consent, grant.principal):
                return True
            return not is_known(grant.principal)

        try:
            count = await self.revoke(is_unused)
        except StoreUnavailable:
            return  # the next start or reload removes them
        if count:
            logger.info("gateway.secrets: %d connections have ended, because the configuration has changed", count)

    async def _grants(self) -> AsyncIterator[tuple[str, bytes, Grant]]:
        for name in await self.sealed.store.names():
            if name.startswith("grant/"):
                text, grant = await self.sealed.read(name, Grant)
                if text is not None and grant is not None:
                    yield name, text, grant


def with_token(grant: Grant, given: "Given", now: float) -> Grant:
    """Return a copy of the grant with the token that its authorization server has just given. `now`: Unix time."""
    return replace(
        grant,
        token=given.access_token,
        until=now + given.used_s,
        expires=now + given.lives_s,
        refresh=given.refresh_token or grant.refresh,  # RFC 6749 §6
        refreshes=0.0,
        fault="",
        is_rejected=grant.is_rejected and not grant.until,
    )


def grant_name(secret: str, settings: ConsentSettings, principal: Principal) -> str:
    """Return the name under which a principal's grant is stored: a digest of the principal and of what the person
    consents to (server, issuer, client, scopes). So a change of these settings makes the grant invalid, but a change of
    the client's secret does not."""
    consented = [settings.resource, settings.issuer, settings.client_id, settings.scopes]
    text = json.dumps([secret, principal.key, *consented])
    return f"grant/{hashlib.blake2b(text.encode(), digest_size=24).hexdigest()}"
