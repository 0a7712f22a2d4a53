"""Choose the alias of a request without a token: a second name under which the store finds a session."""

import json
from collections.abc import Container
from typing import Final, NamedTuple

from gateway.config.sessions import SessionSettings
from gateway.errors import session_key_needed
from gateway.sessions.client_chosen_keys import key_alias
from gateway.sessions.client_return_tracking import ReturnTracker, client_key
from gateway.sessions.returning_clients import agent_of, implementation_of, session_key_line
from gateway.sessions.token_carriers import Carriers, asks_for_new, modern_client
from session_store import Principal
from transports.era import Era
from transports.inbound_port import Request

_COOKIE_HEADER: Final = "cookie"


class Alias(NamedTuple):
    """A second name under which the store finds a session."""

    name: str
    is_key: bool = False
    """True if the name comes from the client's session key."""


class Aliases:
    """Chooses the alias of a request without a token: the alias made from its session key, else that of its default
    session.

    `endpoints` are the gateway's own paths. Any other path belongs to an app behind the middleware, whose sessions are
    valid on all its paths."""

    def __init__(
        self, settings: SessionSettings, carriers: Carriers, returns: ReturnTracker, endpoints: Container[str]
    ) -> None:
        default = settings.default_session
        self._has_default = default is not False
        self._default_for = frozenset(default) if isinstance(default, tuple) else frozenset()
        self._refuses_default = default == "refuse"
        self._key_header = settings.key_header
        self._carriers = carriers
        self._returns = returns
        self._endpoints = endpoints

    def of_key(self, request: Request, principal: Principal) -> Alias | None:
        """Return the alias made from the request's session key; None if the request has no key.

        Raises:
            Refused: 400, the key is invalid, or too easy to guess for an anonymous client.
        """
        key = self._carriers.session_key(request)
        if key is None:
            return None
        endpoint = request.endpoint if request.endpoint in self._endpoints else ""
        return Alias(key_alias(key, principal, endpoint), is_key=True)

    async def of_default(self, request: Request, principal: Principal) -> Alias | None:
        """Return the alias of the client's default session. Return None if the client gets a session of its own.

        Raises:
            Refused: 400, the client would share a session, and `session.default_session` is `refuse`.
        """
        if not self._has_default or (name := default_alias(request, principal)) is None or asks_for_new(request):
            return None
        if not await self._brings_nothing(request, principal):
            return None
        if self._refuses_default:
            agent, client = agent_of(request), modern_client(request).name
            raise session_key_needed(session_key_line(agent, client, self._key_header))
        return Alias(name)

    async def _brings_nothing(self, request: Request, principal: Principal) -> bool:
        """Return True if it is known that the client sends no token or cookie back. Only then may it share a default
        session."""
        agent, name = agent_of(request), modern_client(request).name
        if agent in self._default_for or name in self._default_for:
            return True
        if self._carriers.uses_cookies and _COOKIE_HEADER in request.headers:
            return False
        implementation = implementation_of(agent, name)
        if implementation is None or (implementation.keeps_cookies and self._carriers.uses_cookies):
            return False
        return not await self._returns.carries(client_key(request, principal))


def default_alias(request: Request, principal: Principal) -> str | None:
    """Return the alias of the default session of a principal's client, made from the client's name and version. Return
    None for a legacy or anonymous client."""
    if request.era is not Era.MODERN or principal.is_anonymous:
        return None
    client = modern_client(request)
    return json.dumps(["default", principal.issuer, principal.subject, client.name, client.version])


def reattach_alias(principal: Principal, client: str, endpoint: str) -> str | None:
    """Return the alias under which an `initialize` finds the earlier session of a principal's client at an endpoint
    (setting `session.reattach`). `client` is the name of the client. Return None for an anonymous client."""
    if principal.is_anonymous:
        return None
    return json.dumps(["reattach", principal.issuer, principal.subject, client, endpoint])
