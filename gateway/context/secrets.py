"""Secrets of each principal for its servers: `${secret:NAME}` in the `env` and `headers` of a server.

Where a secret comes from the operator declares: a file, a variable of the gateway, or a command. Values go into one
child's environment, or one session's headers, and nowhere else: not into logs, errors, or the store.
"""

import asyncio
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cachetools import TTLCache

from gateway.config.secrets import SecretSettings
from session_store import Principal
from transports.upstream.stdio import INHERITED
from transports.upstream_port import UpstreamUnavailable

__all__ = ["PrincipalSecrets", "is_template"]

logger = logging.getLogger(__name__)

COMMAND_S: Final = 10.0
REMEMBERED_S: Final = 60.0
_MOST_BYTES: Final = 64 << 10
_TEMPLATE: Final = re.compile(r"\$\{secret:([A-Za-z0-9_.-]+)\}")
# What may stand in a path, a variable's name or a command's argument without meaning more than a name: commands read
# what begins with `-`, `+` or `@` otherwise.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_OURS: Final = "MCP_GATEWAY_"
_KNOWN: Final = 1_024


def is_template(value: str) -> bool:
    """Whether a value has a secret in it."""
    return _TEMPLATE.search(value) is not None


class PrincipalSecrets:
    """Fills in secrets, by principal: (issuer, subject), since a name alone may be somebody else's with another issuer.

    What a command gave is remembered for a minute. `issuers` are all that can say who calls.
    """

    def __init__(self, secrets: Mapping[str, SecretSettings], issuers: Sequence[str]) -> None:
        self._secrets = secrets
        self._only = issuers[0] if len(issuers) == 1 else ""
        self._known: TTLCache[tuple[str, Principal], str] = TTLCache(_KNOWN, REMEMBERED_S)

    async def fill(self, values: Mapping[str, str], principal: Principal) -> dict[str, str]:
        """The values with their secrets.

        Raises:
            UpstreamUnavailable: this principal has no such secret; says which, never what.
        """
        return {name: await self._filled(value, principal) for name, value in values.items()}

    async def _filled(self, value: str, principal: Principal) -> str:
        for name in dict.fromkeys(_TEMPLATE.findall(value)):
            secret = await self._secret(name, principal)
            value = value.replace(f"${{secret:{name}}}", secret)
        return value

    async def _secret(self, name: str, principal: Principal) -> str:
        settings = self._secrets.get(name)
        if settings is None or not self._is_for(settings, principal):
            raise UpstreamUnavailable(f"there is no credential {name!r} for this principal")
        if (known := self._known.get((name, principal))) is not None:
            return known
        try:
            found = await self._read(settings, principal)
        except (OSError, ValueError, TimeoutError) as error:
            # The error's text may hold what a command has printed.
            logger.warning("gateway.secrets.%s could not be read: %s", name, type(error).__name__)
            found = ""
        if not found:
            raise UpstreamUnavailable(f"there is no credential {name!r} for this principal")
        if settings.command:
            self._known[name, principal] = found
        return found

    def _is_for(self, settings: SecretSettings, principal: Principal) -> bool:
        """Whether a principal may have that secret, and can be named where it comes from."""
        if settings.issuer and settings.issuer != principal.issuer:
            return False
        if not settings.is_personal:
            return not (settings.has("{issuer}") and principal.is_anonymous)
        named = settings.issuer or settings.has("{issuer}") or self._only == principal.issuer
        return bool(named) and _NAME.fullmatch(principal.subject) is not None

    async def _read(self, settings: SecretSettings, principal: Principal) -> str:
        # An issuer is a URL more often than not: encoded it is one part of a path, and still like no other.
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
            env={name: os.environ[name] for name in (*INHERITED, *settings.pass_env) if name in os.environ},
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
