"""Fill in the secrets of each principal for its servers: `${secret:NAME}` in the `env` and `headers` of a server, and
`${secret_file:NAME}` in `env`.

The operator configures the source of each secret: a file, a variable of the gateway, a command, or an authorization
server, which exchanges the access token of the session's client or asks the person for consent. A value goes into
the environment of one child or the headers of one session. It never goes into logs, errors or the store.
"""

import asyncio
import logging
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from cachetools import TTLCache

from gateway.config.secrets import PLACEHOLDER, ConsentSettings, ExchangeSettings, SecretSettings, secrets_in
from gateway.context.consented_tokens import ConsentedTokens
from gateway.context.process_secret_files import CurrentSecrets
from gateway.identity.credential_claims import CallerToken
from session_store import Principal
from transports.upstream.stdio import INHERITED
from transports.upstream_port import UpstreamUnavailable

if TYPE_CHECKING:
    from gateway.context.token_exchange import TokenExchange

logger = logging.getLogger(__name__)

COMMAND_S: Final = 10.0
CACHED_S: Final = 60.0
_MOST_BYTES: Final = 64 << 10
_FILE: Final = "secret_file"
# Subjects that are plain names in a path, a variable's name and a command's argument. None begins with `-`, `+` or `@`:
# commands may read these as something else.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_OURS: Final = "MCP_GATEWAY_"
_MAX_CACHED: Final = 1_024


def is_template(value: str) -> bool:
    """Return True if a value contains `${secret:NAME}` or `${secret_file:NAME}`, even with another `$` before it, which
    escapes the placeholder."""
    return PLACEHOLDER.search(value) is not None


def without_templates(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that are the same for all sessions: those without a placeholder for a principal's secret."""
    return {name: value for name, value in values.items() if not is_template(value)}


def secrets_in_files(values: Mapping[str, str]) -> dict[str, str]:
    """Return, by name, the secrets that `${secret_file:NAME}` in the values names. Each has the text
    `${secret:NAME}`, from which `PrincipalSecrets.current` makes the content of its file."""
    return {name: f"${{secret:{name}}}" for name in secrets_in(*values.values(), kind=_FILE)}


def with_paths(values: Mapping[str, str], paths: Mapping[str, str]) -> dict[str, str]:
    """Return the values, with each `${secret_file:NAME}` replaced by the path of its file. `paths`: the paths by the
    secret's name. Raises `UpstreamUnavailable` if a path is missing."""
    if missing := secrets_in_files(values).keys() - paths:
        # A reload has removed a rule that gave the variable another value, after the files were made.
        raise UpstreamUnavailable(f"there is no file of credential {min(missing)!r} yet: send the request again")

    def filled(found: re.Match[str]) -> str:
        return paths[found[3]] if found[2] == _FILE and not found[1] else found[0]

    return {name: PLACEHOLDER.sub(filled, value) for name, value in values.items()}


class PrincipalSecrets:
    """Fill in the secrets of a principal, by its issuer and subject: two issuers may use the same subject.

    The output of a command is cached for `CACHED_S` seconds. `issuers`: all issuers that can name a principal.
    `consented` has the tokens of those who have consented; None: no secret has `consent`.
    """

    def __init__(
        self, secrets: Mapping[str, SecretSettings], issuers: Sequence[str], consented: ConsentedTokens | None = None
    ) -> None:
        self._consented = consented
        self._only = issuers[0] if len(issuers) == 1 else ""
        self.replace(secrets)

    def replace(self, secrets: Mapping[str, SecretSettings]) -> None:
        """Read the secrets from these sources from now on, and forget all cached values."""
        self._secrets = secrets
        self._cached: TTLCache[tuple[str, Principal], str] = TTLCache(_MAX_CACHED, CACHED_S)
        self._exchanges: dict[str, TokenExchange] = {}

    def sources(self, values: Mapping[str, str]) -> list[ExchangeSettings | ConsentSettings | None]:
        """Return an item for each secret whose placeholder is in the values: the settings by which its token is
        obtained (exchange or consent), or None if the secret is no token of an authorization server."""
        named = map(self._secrets.get, secrets_in(*values.values()))
        return [None if settings is None else settings.tokens for settings in named]

    def asks_for_consent(self, name: str = "") -> bool:
        """Return True if people have to consent to the use of the secret `name`; without a name, of any secret."""
        return any(settings.consent is not None for known, settings in self._secrets.items() if name in ("", known))

    def consent_of(self, name: str, principal: Principal) -> ConsentSettings | None:
        """Return the settings by which a principal consents to the use of a secret. Return None if there is no
        such secret, if the principal may not use it, or if it needs no consent."""
        settings = self._secrets.get(name)
        return None if settings is None or not self._is_for(settings, principal) else settings.consent

    async def current(
        self, values: Mapping[str, str], principal: Principal, token: CallerToken | None = None
    ) -> CurrentSecrets:
        """Return the values, with each `${secret:NAME}` replaced by the principal's secret, and the time from which the
        tokens in them have to be renewed. `token`: the access token of the principal; None if there is none.

        Raises:
            UpstreamUnavailable: the principal lacks a secret. The message has the secret's name, never its value.
        """
        own, until = dict[str, str](), math.inf
        for name in secrets_in(*values.values()):
            own[name], its_until = await self._secret(name, principal, token)
            until = min(until, its_until)

        def filled(found: re.Match[str]) -> str:
            return found[0][1:] if found[1] else own[found[3]]

        return CurrentSecrets({name: PLACEHOLDER.sub(filled, value) for name, value in values.items()}, until)

    async def reject(self, values: Mapping[str, str], principal: Principal, sent: Collection[str]) -> None:
        """Have the principal's consented tokens replaced that a server has not accepted (`ConsentedTokens.reject`).
        `values`: the values with their placeholders. `sent`: the values as they were sent to the server, with tokens
        that may be older than the present ones."""
        for name in secrets_in(*values.values()):
            settings = self.consent_of(name, principal)
            if settings is not None and self._consented is not None:
                await self._consented.reject(name, settings, principal, sent)

    async def _secret(self, name: str, principal: Principal, token: CallerToken | None) -> tuple[str, float]:
        """Return the value of the secret `name` for a principal, and the Unix time from which it has to be renewed:
        infinity if it is no token. Raises `UpstreamUnavailable` if the principal has no value."""
        settings = self._secrets.get(name)
        if settings is None or not self._is_for(settings, principal):
            raise UpstreamUnavailable(f"there is no credential {name!r} for this principal")
        if settings.exchange is not None:
            return await self._exchanged(name, settings.exchange, token)
        if settings.consent is not None:
            if self._consented is None:
                raise UpstreamUnavailable(f"there is no credential {name!r} outside of a session")
            grant = await self._consented.token_for(name, settings.consent, principal)
            return grant.token, grant.until
        if (cached := self._cached.get((name, principal))) is not None:
            return cached, math.inf
        try:
            found = await self._read(settings, principal)
        except (OSError, ValueError, TimeoutError) as error:
            reason = type(error).__name__  # its text may contain the output of a command
            if isinstance(error, OSError) and error.filename is not None:
                reason = f"{error.filename}: {error.strerror}"
            logger.warning("gateway.secrets.%s could not be read: %s", name, reason)
            found = ""
        if not found:
            raise UpstreamUnavailable(f"there is no credential {name!r} for this principal")
        if settings.command and self._secrets.get(name) is settings:  # else it was replaced meanwhile
            self._cached[name, principal] = found
        return found, math.inf

    async def _exchanged(self, name: str, settings: ExchangeSettings, token: CallerToken | None) -> tuple[str, float]:
        from gateway.context.authorization_server_client import NoToken  # loads an HTTP client
        from gateway.context.token_exchange import TokenExchange

        if token is None:
            raise UpstreamUnavailable(
                f"there is no credential {name!r} for this client: it is given in exchange for an access token, and "
                "the client did not send one"
            )
        if name not in self._exchanges:
            self._exchanges[name] = TokenExchange(name, settings)
        try:
            held = await self._exchanges[name].token_for(token)
        except NoToken as error:
            raise UpstreamUnavailable(f"there is no credential {name!r} for this client: {error}") from None
        return held.token, held.until

    def _is_for(self, settings: SecretSettings, principal: Principal) -> bool:
        """Return True if a principal may use a secret. If the source of the secret contains the principal's subject,
        the subject must be safe to insert there, and no principal of another issuer may get the same source."""
        if settings.issuer and settings.issuer != principal.issuer:
            return False
        if not settings.is_personal:
            return not (settings.has("{issuer}") and principal.is_anonymous)
        named = settings.issuer or settings.has("{issuer}") or self._only == principal.issuer
        return bool(named) and _NAME.fullmatch(principal.subject) is not None

    async def _read(self, settings: SecretSettings, principal: Principal) -> str:
        # Issuers are often URLs. Encoded, an issuer is one part of a path, and differs from every other issuer.
        issuer = quote(principal.issuer, safe="")

        def filled(text: str) -> str:
            return text.replace("{issuer}", issuer).replace("{subject}", principal.subject)

        if settings.file:
            path = Path(filled(settings.file))
            return (await asyncio.to_thread(path.read_bytes))[:_MOST_BYTES].decode().strip("\r\n")
        if settings.env:
            variable = filled(settings.env)
            is_ours = settings.env != variable and variable.startswith(_OURS)
            return "" if is_ours else os.environ.get(variable, "")
        process = await asyncio.create_subprocess_exec(
            *map(filled, settings.command),
            env={name: os.environ[name] for name in INHERITED if name in os.environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(COMMAND_S):
                printed, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return printed[:_MOST_BYTES].decode().strip("\r\n") if process.returncode == 0 else ""
