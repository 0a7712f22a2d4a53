"""Authenticate operators: by a key in `Authorization: Bearer`, or by the cookie of a browser that has signed in.

A sign-in is a signed cookie and a flag in the store. Signing out deletes the flag, for all replicas at once. While the
store does not answer, no cookie is accepted.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from cachetools import TTLCache
from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from gateway.identity.authenticate import KeyDigests, digest_of
from gateway.observability.audit import Audit
from gateway.observability.logs import CLIENT
from session_store import ExpiringFlags, KeyRing
from session_store.token_signing import Purpose, is_canonical
from transports.inbound.host_and_origin import Guard, is_same_site

_HOST_CHARS: Final = 261
"""The most characters of a Host header: a host name and a port."""

_NOT_OF_A_HOST: Final = frozenset("@/?#\\")
FREE: Final = 10
"""The number of wrong keys that a network may send before it has to wait: a script may send an old key, or a person a
wrong one by mistake."""

LONGEST_S: Final = 60.0
"""The longest wait after a wrong key, in seconds."""

_FORGOTTEN_S: Final = 900.0
_MOST_NETWORKS: Final = 4_096
OPERATOR: Final = "local"
"""The operator's name of whoever signs in by the one-time link, or sends its key."""

VALID_S: Final = 600.0
_LINK_BYTES: Final = 32
SIGNED_IN_S: Final = 12 * 3_600
_COOKIE: Final = "mcp_gateway_operator_"
"""The prefix of the cookie's name. The rest differs between gateways with different keys, because a browser sends its
cookies to every port of a host."""

_NAME_BYTES: Final = 6
_PROOF_CHARS: Final = 16

CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="mcp-session-gateway operators"'}
"""The header of a response that refuses an operator without a valid credential."""


class HostNotAllowed(Exception):
    """The Host header of an operator's request names no allowed host. The message says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "The Host header does not name this gateway. Use an address or localhost, or add the host name to "
            "gateway.admin.allowed_hosts."
        )


class OperatorHosts:
    """Check the Host header of operators' requests: IP addresses and `localhost` are always allowed. `names` are the
    other allowed hosts, as `gateway.config.addresses.host_names` spells them: `*.` before a domain stands for all names
    below it, `*` for any name."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = frozenset(names) | {"localhost"}
        self._domains = tuple(name[1:] for name in names if name.startswith("*."))

    def check(self, host: str) -> None:
        """Raise `HostNotAllowed` unless the Host header `host` has an IP address or an allowed name."""
        name = _hostname(host)
        if "*" in self._names or name in self._names or name.endswith(self._domains) or _is_address(name):
            return
        raise HostNotAllowed


def _hostname(host: str) -> str:
    # A browser sends a name and a port. Of a URL with more the name would be read as well.
    if len(host) > _HOST_CHARS or not _NOT_OF_A_HOST.isdisjoint(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class TooManyAttempts(Exception):
    """One network has sent too many wrong keys. Its further wrong keys get this error for `wait_s` more seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong keys came from your address: try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class SignInAttempts:
    """Count the wrong keys of each network on this replica. From its `FREE`th wrong key on, a network must wait after
    each one: longer each time, but at most `LONGEST_S` seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._wrong: TTLCache[str, tuple[int, float]] = TTLCache(_MOST_NETWORKS, _FORGOTTEN_S, timer=clock)

    def check(self, network: str) -> None:
        """Raise `TooManyAttempts` if the network has to wait."""
        _, until = self._wrong.get(network, (0, 0.0))
        if (wait := until - self._clock()) > 0:
            raise TooManyAttempts(max(1.0, wait))

    def wrong(self, network: str) -> None:
        """Count a wrong key from this network. From the `FREE`th wrong key on, the network must wait after each one."""
        count = self._wrong.get(network, (0, 0.0))[0] + 1
        wait = min(LONGEST_S, 2.0 ** min(count - FREE, 16)) if count >= FREE else 0.0
        self._wrong[network] = (count, self._clock() + wait)


class SignInLink:
    """A one-time link by which a person signs in to the console. It is valid for `VALID_S` seconds.

    - `token`: the last part of the link's URL.
    - `proof`: a random value in the cookie of whoever signs in by the link. Once this process has ended, such a cookie
      is invalid.
    - `key`: a generated operator's key, for commands on this machine.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = clock() + VALID_S
        self._is_used = False
        self.token = secrets.token_urlsafe(_LINK_BYTES)
        self.proof = secrets.token_urlsafe(_LINK_BYTES)
        self.key = secrets.token_urlsafe(_LINK_BYTES)

    def opens_with(self, token: str) -> bool:
        """Return True if `token` is the link's token, and the link is neither used nor expired. Does not use the link
        up."""
        is_right = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        return is_right and not self._is_used and self._clock() < self._until

    def use_up(self, token: str) -> bool:
        """Use the link up if `token` is valid (`opens_with`). Return True if it was valid; of several concurrent calls,
        only the first gets True."""
        is_open = self.opens_with(token)
        self._is_used = self._is_used or is_open
        return is_open


class Access:
    """Authenticate operators. Compare their keys with the configured digests. Give a signed cookie to each browser that
    sends a key or uses the link."""

    def __init__(
        self,
        keys: Mapping[str, Sequence[str]],
        ring: KeyRing,
        *,
        guard: Guard,
        flags: ExpiringFlags,
        audit: Audit,
        link: SignInLink | None = None,
        hosts: OperatorHosts | None = None,
    ) -> None:
        self._guard = guard
        self._hosts = OperatorHosts() if hosts is None else hosts
        self._link = link
        self._flags = flags
        self._audit = audit
        self._attempts = SignInAttempts()
        self.replace_keys(keys)
        derived = ring.derive(Purpose.OPERATOR)
        self._cookies = [_COOKIE + hashlib.blake2b(key, digest_size=_NAME_BYTES).hexdigest() for key in derived]
        # The newest key signs: itsdangerous takes the last one.
        self._serializer = URLSafeTimedSerializer(list(reversed(derived)), salt=Purpose.OPERATOR)

    def replace_keys(self, keys: Mapping[str, Sequence[str]]) -> None:
        """Accept these operators' keys, and no others, from now on. Sign-ins with other keys end."""
        link = self._link
        configured = [(name, digest) for name, digests in keys.items() for digest in digests]
        self.has_keys = bool(configured)  # whether there is a key to sign in to the console with
        self._keys = KeyDigests([*configured, *([] if link is None else [(OPERATOR, digest_of(link.key))])])
        # What a cookie holds: the name, how the digest of its key begins, and the name of its flag.
        self._proofs = {(name, digest[:_PROOF_CHARS]) for name, digests in keys.items() for digest in digests}
        if link is not None:
            self._proofs.add((OPERATOR, link.proof))

    @property
    def is_open(self) -> bool:
        """Return True if an operator can sign in, with a key or with the link."""
        return self.has_keys or self._link is not None

    def is_secure(self, request: Request) -> bool:
        """Return True if the browser uses TLS: on the connection, or to a proxy that is trusted or on this machine."""
        return self._guard.is_secure(request.scope, request.headers)

    def check_host(self, request: Request) -> None:
        self._hosts.check(request.headers.get("host", ""))

    async def operator(self, request: Request) -> str | None:
        """Return the name of the operator that sends a request. The credential is a key in `Authorization`, or without
        that header the sign-in cookie. Return None if the request has no valid credential. A cookie does not count if
        another site has caused the request.

        Raises:
            TooManyAttempts: the key is wrong, and its network has sent too many wrong keys.
            StoreUnavailable: the store cannot be asked whether the sign-in is valid.
        """
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self._holder(request, key.strip()) if scheme.lower() == "bearer" else None
        signed_in = self._signed_in(request)
        if signed_in is None or not await self._flags.has(_flag(signed_in[1])):
            return None
        return signed_in[0]

    def _signed_in(self, request: Request) -> tuple[str, str] | None:
        """Return the operator's name and the sign-in's id from the request's cookie, without asking the store. Return
        None if there is no valid cookie, if another site has caused the request, or if the operator's key is no longer
        configured."""
        cookie = next((request.cookies[name] for name in self._cookies if name in request.cookies), None)
        if cookie is None or not is_canonical(cookie) or not is_same_site(request.headers):
            return None
        try:
            name, proof, sign_in = self._serializer.loads(cookie, max_age=SIGNED_IN_S)
        except (BadSignature, ValueError, TypeError):
            return None
        return (name, sign_in) if (name, proof) in self._proofs else None

    def _holder(self, request: Request, key: str) -> str | None:
        """Return the name of the operator with the key `key`; None if no operator has it. Raises `TooManyAttempts` if
        the key is wrong and its network has to wait. A right key is accepted even then: otherwise an attacker in the
        operator's network could lock the operator out."""
        name = self._keys.holder(key)
        if name is None:
            # Some proxies add a line of their own.
            forwarded = {"x-forwarded-for": ", ".join(request.headers.getlist("x-forwarded-for"))}
            network = self._guard.client_network(request.scope, forwarded)
            self._attempts.check(network)
            self._attempts.wrong(network)
            CLIENT.set(network)
            self._audit.record("refused", reason="unknown operator key")
        return name

    async def sign_in(self, request: Request, response: Response, key: str) -> bool:
        """Set a sign-in cookie in `response` if `key` is an operator's key. Return True if it is one.

        Raises:
            TooManyAttempts: the key is wrong, and its network has sent too many wrong keys.
            StoreUnavailable: the sign-in cannot be stored.
        """
        name = self._holder(request, key)
        if name is None:
            return False
        sign_in = await self._marked()
        self._give_cookie(request, response, [name, digest_of(key)[:_PROOF_CHARS], sign_in])
        self._audit.record("operated", reason=f"the operator {name} has signed in")
        return True

    async def sign_in_by_link(self, request: Request, response: Response, token: str) -> bool:
        """Set a sign-in cookie in `response`, and mark the link as used, if `token` opens the link
        (`SignInLink.opens_with`). Return True if it does.

        Raises:
            StoreUnavailable: the sign-in cannot be stored. The link can be used again.
        """
        if self._link is None or not self._link.opens_with(token):
            return False
        sign_in = await self._marked()
        if not self._link.use_up(token):  # another has been let in meanwhile
            await self._flags.drop(_flag(sign_in))
            return False
        self._give_cookie(request, response, [OPERATOR, self._link.proof, sign_in])
        self._audit.record("operated", reason="the one-time link of the terminal was used to sign in")
        return True

    async def _marked(self) -> str:
        """Store the flag of a new sign-in, which makes its cookie valid. Return the sign-in's random id."""
        sign_in = secrets.token_urlsafe(18)
        await self._flags.set(_flag(sign_in), SIGNED_IN_S)
        return sign_in

    def _give_cookie(self, request: Request, response: Response, held: Sequence[str]) -> None:
        response.set_cookie(
            self._cookies[0],
            str(self._serializer.dumps(held)),
            max_age=SIGNED_IN_S,
            path=f"{request.scope.get('root_path', '')}/admin",
            secure=self._guard.is_secure(request.scope, request.headers),
            httponly=True,
            samesite="strict",
        )

    async def sign_out(self, request: Request, response: Response) -> None:
        """Delete the browser's cookie, and the sign-in's flag in the store: this makes copies of the cookie invalid,
        too.

        Raises:
            StoreUnavailable: the sign-in is still valid.
        """
        signed_in = self._signed_in(request)
        if signed_in is not None:
            await self._flags.drop(_flag(signed_in[1]))
            self._audit.record("operated", reason=f"the operator {signed_in[0]} has signed out")
        for name in self._cookies:
            response.delete_cookie(name, path=f"{request.scope.get('root_path', '')}/admin")


def _flag(sign_in: str) -> str:
    return f"operator/{sign_in}"
